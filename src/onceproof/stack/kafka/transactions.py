"""Which transactions a cluster's coordinators have not ended yet, and how to end them. Past every proxy.

`ListTransactions` (KIP-664) is asked for over a socket: librdkafka has no call for it. Topics alone would not show a transaction
that has written no record yet, or only offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaException, Producer

from onceproof.base.errors import ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.kafka_schema import Cursor
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.kafka.requests import ask

_ASK_S = 10.0
_END_S = 20.0
"""For a transaction to end once its producer is fenced: its markers reach every partition within milliseconds."""
_API, _VERSION = 66, 0
_ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_INT16, _INT32, _INT64 = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class Cluster(Protocol):
    """What is needed of `onceproof.stack.kafka.cluster.EmbeddedKafka`."""

    brokers: tuple[int, ...]
    harness_bootstrap: str

    def harness_address(self, *brokers: int) -> str: ...

    def check_health(self) -> None: ...


@dataclass(frozen=True)
class Transaction:
    """A transaction as its coordinator reports it."""

    transactional_id: str
    state: str
    """``Ongoing``, ``PrepareCommit``, ``CompleteAbort``, ...: Kafka's own word."""

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def is_ending(self) -> bool:
        """Whether its producer may have the answer already, and the partitions do not have its markers yet."""
        return self.state.startswith("Prepare")


def open_transactions(kafka: Cluster) -> list[Transaction]:
    """The transactions that have not ended, by transactional id. Raises `ServiceFailed` if a broker does not answer."""
    found = [one for broker in kafka.brokers for one in _of_broker(kafka.harness_address(broker)) if not one.ended]
    return sorted(found, key=lambda one: one.transactional_id)


def await_markers(kafka: Cluster) -> None:
    """Wait until the partitions have the markers of all transactions that have ended.

    A producer gets its answer as soon as the coordinator has logged the end, and read_committed readers get the records once the
    markers are written. Raises `WaitTimeout` with the transactions that are still ending, and `ServiceFailed` if a broker died.
    """

    ending: list[Transaction] = []

    def written() -> bool:
        ending[:] = [one for one in open_transactions(kafka) if one.is_ending]
        return not ending

    wait_until(
        "the markers of ended transactions",
        written,
        deadline_s=_END_S,
        ignoring=ServiceFailed,
        abandon=kafka.check_health,
        explain=lambda: ", ".join(f"{one.transactional_id} is {one.state}" for one in ending) or "a broker is away",
    )


def end_all(kafka: Cluster) -> list[str]:
    """Abort every transaction that is open, and return their transactional ids once none is left.

    A new producer with the same transactional id makes the coordinator abort what the old one left. Raises `ServiceFailed`, and
    `WaitTimeout` with the transactions that remain.
    """
    left = open_transactions(kafka)
    for one in left:
        if one.state == "Ongoing":  # all other states end by themselves
            config = {**producer_config(kafka.harness_bootstrap), "transactional.id": one.transactional_id}
            try:
                Producer(config).init_transactions(_END_S)
            except KafkaException as refused:
                raise ServiceFailed(f"{one.transactional_id} could not be ended: {refused.args[0].str()}") from refused
    if left:
        wait_until(
            "the transactions of the last execution to end",
            lambda: not open_transactions(kafka),
            deadline_s=_END_S,
            explain=lambda: ", ".join(f"{one.transactional_id} is {one.state}" for one in open_transactions(kafka)),
        )
    return [one.transactional_id for one in left]


def _of_broker(address: str) -> Iterator[Transaction]:
    """The transactions of which this broker is the coordinator."""

    def asked() -> Cursor | None:
        answer = _asked(address)
        return answer if answer is not None and _no_error(answer) else None

    cursor = wait_until(f"the transactions that {address} coordinates", asked, deadline_s=_END_S)
    for _ in range(cursor.length(_INT32, compact=True)):  # filters that the broker does not know: none was sent
        cursor.text(compact=True)
    for _ in range(cursor.length(_INT32, compact=True)):
        name = cursor.text(compact=True) or ""
        cursor.number(_INT64)  # producer id
        state = cursor.text(compact=True) or ""
        cursor.skip_tags()
        yield Transaction(name, state)


def _no_error(answer: Cursor) -> bool:
    """Read the head of the answer; whether the coordinator has loaded its transactions."""
    answer.number(_INT32)  # throttle time
    return answer.number(_INT16) == 0


def _asked(address: str) -> Cursor | None:
    """The body of the answer to a ListTransactions without filters; None if the broker closed the connection."""
    try:
        # Two empty filters, no tagged field.
        return ask(address, _API, _VERSION, b"\1\1\0", flexible=True, timeout_s=_ASK_S)
    except OSError as refused:
        raise ServiceFailed(f"the broker at {address} does not answer: {refused}") from refused
