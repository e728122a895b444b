"""Reads for `placement.py` what a fault left behind: the checkpoint's logs and the sink's rows, without any proxy.

Nothing here asks the harness whether a fault hit. This module reads the checkpoint's files itself, asks Postgres and Kafka at
their direct addresses, and compares with the input in Kafka's log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import client_config

Flight = tuple[str, int, str, str]
"""Carrier, flight, origin, scheduled departure (to the second, UTC): identifies one flight of the data set."""
Ends = dict[int, int]
"""Partition -> offset."""

_HEARS_S = 2.0
"""A backend notices the end of its client within milliseconds. The next driver needs longer than this until its first write."""
_IDENTITY = """SELECT carrier, flight, origin, to_char(sched_dep AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS'), xmin::text FROM {}"""


@dataclass
class Look:
    """The state of checkpoint and sink at one moment."""

    plans: dict[int, Ends]
    """Batch N -> the offsets at which it ends, from offsets/N."""
    commits: set[int]
    rows: list[tuple[Flight, str]]
    """The rows in the sink, each with the Postgres transaction that wrote it."""
    records: int = 0
    """Kafka: the sum of the end offsets of the output topic's partitions."""


@dataclass
class Trial:
    """One fault: the events about it, and the states that were found."""

    index: int
    point: str
    fault: str
    batch: int
    looks: dict[str, Look] = field(default_factory=dict)
    xid: str | None = None
    """The id of the transaction whose frame was stopped, from Postgres."""
    became: str | None = None
    correlation: int | None = None
    codes: list[int] | None = None
    reported_hit: bool = False
    """Whether the harness reported a hit."""
    evidence: list[str] = field(default_factory=list)


class Sink:
    """The output of one run: a Postgres table or a Kafka topic."""

    def __init__(self, stack: EmbeddedStack, *, table: str | None, topic: str | None) -> None:
        self._stack = stack
        self._table = table
        self._topic = topic
        self._consumer: Consumer | None = None

    def rows(self) -> list[tuple[Flight, str]]:
        if self._table is not None:
            return [((c, f, o, d), x) for c, f, o, d, x in self._ask(_IDENTITY.format(self._table))]
        return [(identity(json.loads(value)), "") for value in self._values()]

    def records(self) -> int:
        """Return the sum of the end offsets when two readings agree: what was sent before has then arrived."""
        if self._topic is None:
            return 0
        seen = [-1]

        def settled() -> bool:
            seen.append(sum(self._ends().values()))
            return seen[-1] == seen[-2]

        wait_until("the end of the topic to stay the same", settled, deadline_s=30, every_s=0.03)
        return seen[-1]

    def xid_of(self, backend_pid: int) -> str | None:
        rows = self._ask("SELECT backend_xid::text FROM pg_stat_activity WHERE pid = %s", backend_pid)
        return rows[0][0] if rows else None

    def became(self, xid: str) -> str:
        """Return the status of the transaction after the session of the dead driver has noticed the end of its client."""
        # Epoch 0: a benchmark does not use four thousand million transactions.
        asked = "SELECT pg_xact_status(%s::xid8)"
        with suppress(WaitTimeout):
            wait_until("its end", lambda: self._ask(asked, xid)[0][0] != "in progress", deadline_s=_HEARS_S)
        return str(self._ask(asked, xid)[0][0])

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def _ask(self, sql: str, *given: object) -> list[tuple[Any, ...]]:
        assert self._stack.postgres is not None
        with psycopg.connect(self._stack.postgres.harness_conninfo, autocommit=True) as connection:
            return connection.execute(sql.encode(), given or None).fetchall()

    def _kafka(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **client_config(self._stack.kafka.harness_bootstrap),
                    "group.id": "benchmark",
                    "enable.auto.commit": False,
                    "isolation.level": "read_uncommitted",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,  # the end is reported after waiting for more
                }
            )
        return self._consumer

    def _ends(self) -> Ends:
        assert self._topic is not None
        consumer = self._kafka()
        parts = consumer.list_topics(self._topic, timeout=10).topics[self._topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(self._topic, p), timeout=10)[1] for p in parts}

    def _values(self) -> Iterable[bytes]:
        assert self._topic is not None
        consumer, ends = self._kafka(), self._ends()
        # Read until the end of each partition is reported. Counting records is not enough: markers of transactions have offsets.
        left = {partition for partition, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(self._topic, p, 0) for p in left])
        while left:
            message = consumer.poll(10)
            assert message is not None, f"nothing more came of {self._topic}, and not its end in partitions {left}"
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None and offset is not None
            if error is None:
                value = message.value()
                assert value is not None
                yield value
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                if offset >= ends[partition]:
                    left.discard(partition)
        consumer.unassign()


def look(checkpoint: Path, sink: Sink, *, rows: bool = True) -> Look:
    plans = {int(path.name): ends_of(path) for path in _logs(checkpoint / "offsets")}
    commits = {int(path.name) for path in _logs(checkpoint / "commits")}
    return Look(plans, commits, sink.rows() if rows else [], sink.records())


def _logs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []


def ends_of(plan: Path) -> Ends:
    """Return the end offsets in the last line of ``offsets/N``, which names one topic."""
    (partitions,) = json.loads(plan.read_text().splitlines()[-1]).values()
    return {int(partition): int(offset) for partition, offset in partitions.items()}


def identity(flight: Mapping[str, Any]) -> Flight:
    return flight["carrier"], int(flight["flight"]), flight["origin"], flight["sched_dep"][:19]


class Truth:
    """The input in Kafka's log, and from it what a batch must have written."""

    def __init__(self, run_dir: Path, *, upsert: bool) -> None:
        columns = ["partition", "offset", "value"]
        rows = pq.read_table(run_dir / "history" / "input.parquet", columns=columns).to_pylist()
        self._rows = [(row["partition"], row["offset"], json.loads(row["value"])) for row in rows]
        self._upsert = upsert

    def by_partition(self, starts: Ends, ends: Ends | None) -> dict[int, set[Flight]]:
        """Return partition -> what the sink must hold of the records from ``starts`` up to ``ends`` (None: all that follow)."""
        kept: dict[int, dict[Any, Flight]] = {}
        for partition, offset, flight in self._rows:
            beyond = ends is not None and offset >= ends.get(partition, 0)
            if offset < starts.get(partition, 0) or beyond or flight["dep_time"] is None:
                continue
            if self._upsert and flight["tailnum"] is None:
                continue
            who = flight["tailnum"] if self._upsert else identity(flight)
            kept.setdefault(partition, {})[who] = identity(flight)
        return {partition: set(flights.values()) for partition, flights in kept.items()}


def why_not(trial: Trial, truth: Truth, last: Look, words: str) -> str | None:
    """Return None if checkpoint and sink were in the state of the point, else what was not. ``words``: the log of the driver."""
    if trial.fault == "crash":
        return _why_no_crash(trial, truth, last)
    if trial.fault == "crash-at-frame":
        return _why_no_crash_at_frame(trial, truth, last)
    if trial.correlation is not None:
        return _why_no_produce_lost(trial, truth, last, words)
    return _why_no_loss(trial, truth, last)


#: point -> is offsets/N there, is commits/N there, does the sink hold the batch's rows
_LEFT = {
    "before-offset-log": (False, False, False),
    "after-offset-log": (True, False, False),
    "after-sink-commit": (True, False, True),
    "after-commit-log": (True, True, True),
}


def _why_no_crash(trial: Trial, truth: Truth, last: Look) -> str | None:
    n, seen = trial.batch, trial.looks.get("killed")
    if seen is None:
        return "nothing was looked at: it never fired"
    planned, committed, written = _LEFT[trial.point]
    found = (n in seen.plans, n in seen.commits)
    if found != (planned, committed):
        return f"offsets/{n} and commits/{n} there: {found}, not {(planned, committed)}"
    if n + 1 in seen.plans or n - 1 not in seen.commits:
        return f"offsets/{n + 1} was there, or commits/{n - 1} was not"
    rows = {flight for flight, _ in seen.rows}
    # Without a plan of N, the sink must hold nothing after N-1.
    of_batch = _all(truth.by_partition(last.plans[n - 1], last.plans[n] if planned else None))
    if not of_batch:
        return f"batch {n} held no data"
    there = len(of_batch & rows)
    if there != (len(of_batch) if written else 0):
        return f"the sink held {there} of the {len(of_batch)} rows"
    return _why_not_done(n, truth, last)


def _why_no_crash_at_frame(trial: Trial, truth: Truth, last: Look) -> str | None:
    """Check that part of the batch is missing from the sink, and the stopped transaction completely."""
    n, seen = trial.batch, trial.looks.get("left")
    if seen is None:
        return "no frame was stopped, or the driver did not end"
    if (n in seen.plans, n in seen.commits) != (True, False):
        return f"offsets/{n} and commits/{n} there: {(n in seen.plans, n in seen.commits)}, not (True, False)"
    rows = {flight for flight, _ in seen.rows}
    if _all(truth.by_partition(last.plans[n - 1], last.plans[n])) <= rows:
        return f"all rows of batch {n} were in the sink already"
    if trial.point == "before-sink-commit" and trial.xid is None:
        return "the transaction that was stopped before its COMMIT had written nothing"
    if trial.xid is not None and (trial.became != "aborted" or any(xid == trial.xid for _, xid in seen.rows)):
        return f"Postgres says that transaction {trial.xid} was {trial.became}, or rows of it are there"
    return _why_not_done(n, truth, last)


def _why_no_loss(trial: Trial, truth: Truth, last: Look) -> str | None:
    """Check that of the stopped Postgres transaction, known by its id, either nothing is there or one whole partition."""
    n, seen = trial.batch, trial.looks.get("left")
    if seen is None or trial.xid is None:
        return "no frame of a transaction was stopped, or the driver did not end"
    if (n in seen.plans, n in seen.commits) != (True, False):
        return f"offsets/{n} and commits/{n} there: {(n in seen.plans, n in seen.commits)}, not (True, False)"
    wanted = "committed" if trial.fault == "lost-ack" else "aborted"
    if trial.became != wanted:
        return f"Postgres says that transaction {trial.xid} was {trial.became}, not {wanted}"
    parts = truth.by_partition(last.plans[n - 1], last.plans[n])
    rows = {flight for flight, _ in seen.rows}
    of_it = {flight for flight, xid in seen.rows if xid == trial.xid}
    if trial.fault == "lost-ack" and of_it not in parts.values():
        return f"transaction {trial.xid} wrote {len(of_it)} rows, which are not a partition of batch {n}"
    if trial.fault == "lost-request" and (of_it or not any(part and not part & rows for part in parts.values())):
        return f"rows of every partition of batch {n} are there, or some of transaction {trial.xid}"
    return _why_not_done(n, truth, last)


def _why_no_produce_lost(trial: Trial, truth: Truth, last: Look, words: str) -> str | None:
    """Check the end of Kafka's log while the request is held and right after its answer, and what the client logged."""
    n = trial.batch
    held, released = trial.looks.get("stopped"), trial.looks.get("released")
    if held is None or released is None:
        return "no request was stopped and released again"
    if n not in held.plans or n in held.commits:
        return f"batch {n} was not open when its request was stopped"
    if held.records != released.records:
        return f"the log grew from {held.records} to {released.records} while the request was held"
    answered = trial.looks.get("answered")
    if trial.fault == "lost-ack":
        if answered is None or trial.codes != [0] or answered.records <= held.records:
            return "the log did not grow by the request whose answer was lost"
    elif answered is not None:
        return "the request was answered: it was not lost"
    if f"correlation id {trial.correlation} " not in words:
        return f"the client never noticed that its request {trial.correlation} got no answer"
    return _why_not_done(n, truth, last)


def _why_not_done(n: int, truth: Truth, last: Look) -> str | None:
    """Check that the batch was committed by the end of the run, so that the pipeline recovered."""
    return None if n in last.commits else f"batch {n} was never committed afterwards"


def _all(parts: Mapping[int, set[Flight]]) -> set[Flight]:
    return set().union(*parts.values())
