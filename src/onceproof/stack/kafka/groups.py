"""Asks Kafka which members a consumer group has and what it has assigned to them, and deletes groups. Past every proxy.

It asks over a socket. librdkafka aborts the whole process if its request for a group times out before it has found the group's
coordinator, and it finds the coordinator afterwards (its issue 4605, an assertion on ``eonce->refcnt``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from confluent_kafka import KafkaError

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.kafka_schema import Cursor
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.requests import ask

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_FIND_COORDINATOR, _DESCRIBE, _DESCRIBE_CLASSIC, _DELETE = 10, 69, 15, 42
#: A broker answers within milliseconds; one that is stopped does not answer, and another one is asked.
_ANSWER_S = 2.0
#: Errors while a coordinator is elected or loads its part of the log, and from a broker that is no longer the coordinator.
_NOT_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}

_TURNS = count()

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    client_id: str
    instance_id: str | None
    """``group.instance.id``, of a static member (KIP-345)."""
    partitions: tuple[tuple[str, int], ...]
    """Topic and partition of all that it is assigned."""


class _NotYet(Exception):
    """No coordinator has answered this question; the next one may be answered."""


class _NoGroup(Exception):
    """The coordinator has no such group."""


def describe_group(kafka: EmbeddedKafka, name: str, *, within_s: float) -> list[Member]:
    """The group's members, as its coordinator reports them; none if there is no such group.

    Raises `EnvironmentProblem` if Kafka refuses, and if no coordinator answers within ``within_s`` seconds.
    """
    return _answered(name, lambda: _members(kafka, name), within_s)


def delete_group(kafka: EmbeddedKafka, name: str, *, within_s: float) -> None:
    """Delete a group without members. Raises what `describe_group` raises."""
    _answered(name, lambda: _delete(kafka, name), within_s)


def has_coordinator(kafka: EmbeddedKafka, name: str) -> bool:
    """Whether the group has a coordinator that answers now, with or without such a group."""
    try:
        _members(kafka, name)
    except (_NotYet, OSError):
        return False
    return True


def _answered(name: str, question: Callable[[], T], within_s: float) -> T:
    """The first answer. Questions that come too early are asked again."""
    why = ""

    def asked() -> tuple[T] | None:
        nonlocal why
        try:
            return (question(),)
        except (_NotYet, OSError) as late:
            why = str(late)
            return None

    try:
        (answer,) = wait_until(f"Kafka's answer about group {name}", asked, deadline_s=within_s)
    except WaitTimeout as given_up:
        raise EnvironmentProblem(
            f"Kafka did not answer a request about group {name} within {within_s:g} s; the last reason: {why}"
        ) from given_up
    return answer


def _members(kafka: EmbeddedKafka, name: str) -> list[Member]:
    address = kafka.harness_address(_coordinator(kafka, name))
    for of_protocol in (_of_group, _of_classic_group):
        with suppress(_NoGroup):
            return list(of_protocol(address, name))
    return []


def _coordinator(kafka: EmbeddedKafka, name: str) -> int:
    """The broker that coordinates the group, by the first one that answers."""
    failure: Exception = _NotYet("the run has no broker")
    # Another one first each time: one that is cut off from the others answers with what it knew.
    brokers, first = list(kafka.brokers), next(_TURNS)
    for turn in range(len(brokers)):
        broker = brokers[(first + turn) % len(brokers)]
        try:
            answer = _answer(
                kafka.harness_address(broker), _FIND_COORDINATOR, 2, _text(name) + b"\0", name, flexible=False
            )
            answer.number(_INT32)  # throttle time
            _check(answer.number(_INT16), name)
            answer.text(False)  # the error's text
            found = answer.number(_INT32)
        except (_NotYet, OSError) as failed:
            failure = failed
            continue
        if found in kafka.brokers:
            return found
        failure = _NotYet(f"the coordinator is broker {found}, which is not one of the run")
    raise failure


def _delete(kafka: EmbeddedKafka, name: str) -> None:
    """DeleteGroups 1."""
    address = kafka.harness_address(_coordinator(kafka, name))
    answer = _answer(address, _DELETE, 1, _INT32.pack(1) + _text(name), name, flexible=False)
    answer.number(_INT32)  # throttle time
    answer.number(_INT32)  # groups: one
    answer.text(False)  # its name
    with suppress(_NoGroup):  # it expired meanwhile
        _check(answer.number(_INT16), name)


def _of_group(address: str, name: str) -> Iterator[Member]:
    """The members of a group of the consumer protocol (KIP-848): ConsumerGroupDescribe 0."""
    encoded = name.encode()
    body = b"\2" + _varint(len(encoded) + 1) + encoded + b"\0" + b"\0"  # one name, no authorized operations, no tags
    answer = _answer(address, _DESCRIBE, 0, body, name, flexible=True)
    answer.number(_INT32)  # throttle time
    answer.length(_INT32, compact=True)  # groups: one
    _check(answer.number(_INT16), name)
    answer.text(True)  # the error's text
    answer.text(True)  # the group
    answer.text(True)  # its state
    answer.number(_INT32)  # its epoch
    answer.number(_INT32)  # the epoch of its assignment
    answer.text(True)  # the assignor
    for _ in range(answer.length(_INT32, compact=True)):
        answer.text(True)  # member id
        instance = answer.text(True)
        answer.text(True)  # rack
        answer.number(_INT32)  # epoch
        client = answer.text(True) or ""
        answer.text(True)  # host
        for _ in range(answer.length(_INT32, compact=True)):
            answer.text(True)  # a subscribed topic
        answer.text(True)  # the subscribed pattern
        assigned = tuple(_assigned_to(answer))
        tuple(_assigned_to(answer))  # what it will be assigned
        answer.skip_tags()
        yield Member(client, instance, assigned)


def _assigned_to(answer: Cursor) -> Iterator[tuple[str, int]]:
    for _ in range(answer.length(_INT32, compact=True)):
        answer.take(16)  # the topic's id
        topic = answer.text(True) or ""
        for _ in range(answer.length(_INT32, compact=True)):
            yield topic, answer.number(_INT32)
        answer.skip_tags()
    answer.skip_tags()


def _of_classic_group(address: str, name: str) -> Iterator[Member]:
    """The members of a group of the classic protocol: DescribeGroups 4."""
    body = _INT32.pack(1) + _text(name) + b"\0"
    answer = _answer(address, _DESCRIBE_CLASSIC, 4, body, name, flexible=False)
    answer.number(_INT32)  # throttle time
    answer.number(_INT32)  # groups: one
    _check(answer.number(_INT16), name)
    for _ in range(4):
        answer.text(False)  # the group, its state, protocol type and protocol
    for _ in range(answer.number(_INT32)):
        answer.text(False)  # member id
        instance, client = answer.text(False), answer.text(False) or ""
        answer.text(False)  # host
        answer.take(answer.number(_INT32))  # its subscription
        yield Member(client, instance, tuple(_of_assignment(answer.take(answer.number(_INT32)))))


def _of_assignment(data: bytes) -> Iterator[tuple[str, int]]:
    """The partitions in an assignment of the classic protocol (ConsumerProtocolAssignment); there is none while members join."""
    if not data:
        return
    assignment = Cursor(data)
    assignment.number(_INT16)  # version
    for _ in range(assignment.number(_INT32)):
        topic = assignment.text(False) or ""
        for _ in range(assignment.number(_INT32)):
            yield topic, assignment.number(_INT32)


def _answer(address: str, api: int, version: int, body: bytes, name: str, *, flexible: bool) -> Cursor:
    answer = ask(address, api, version, body, flexible=flexible, timeout_s=_ANSWER_S)
    if answer is None:
        raise _NotYet(f"the broker at {address} closed the connection when asked for group {name}")
    return answer


def _check(error: int, name: str) -> None:
    if error == KafkaError.GROUP_ID_NOT_FOUND:
        raise _NoGroup
    if error in _NOT_YET:
        raise _NotYet(KafkaError(error).name())
    if error != KafkaError.NO_ERROR:
        raise EnvironmentProblem(f"Kafka refuses a request about group {name}: {KafkaError(error).str()}")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _INT16.pack(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])
