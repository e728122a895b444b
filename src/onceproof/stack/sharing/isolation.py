"""Removes from a stack what an execution left on it, and proves that nothing is left that could reach the next one.

Everything is removed whether anything is known of it or not, and everything is checked afterwards by asking the services. A stack
that fails a check is not used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.cluster import EmbeddedKafka
from onceproof.stack.kafka.groups import delete_group
from onceproof.stack.kafka.transactions import end_all, open_transactions
from onceproof.stack.toxiproxy.framed import FramedProxy

_GONE_S = 10.0
"""For connections, executors and topics of an execution whose processes are gone: all follow within a second."""
_ASK_S = 10.0


@dataclass(frozen=True)
class Removed:
    """What an execution had left behind."""

    topics: int
    groups: int
    """Consumer groups."""
    transactions: int
    """Kafka transactions that were open, and were aborted."""
    sessions: int
    """Sessions of Postgres that were open, and were ended."""
    objects: int
    """Objects of the object store."""


class NotIsolated(EnvironmentProblem):
    """Something of the last execution could reach the next one. The message says what."""


def isolate(stack: EmbeddedStack) -> Removed:
    """Remove what the last execution left, and check that nothing is left. Its processes must be gone.

    Raises `NotIsolated`; the stack must then not be used again.
    """
    try:
        return _isolate(stack)
    except NotIsolated:
        raise
    except Exception as failure:  # whatever it is: the run is finished, and must not be lost for it
        why = next(iter(str(failure).splitlines()), type(failure).__name__)  # some errors have no text
        raise NotIsolated(f"it could not be cleaned: {why}") from failure


def _isolate(stack: EmbeddedStack) -> Removed:
    used_up = stack.disturbed()
    if used_up:
        raise NotIsolated("; ".join(used_up))
    for proxy in stack.proxies():
        proxy.heal()
    if stack.frames is not None:
        stack.frames.check()  # what the proxy refused or could not do stays in it
        stack.frames.forget()
    _wait_for(stack, "executors", _executors)
    _wait_for(stack, "connections", connections)
    # First: the marker of a later abort would end up in a new topic of the same name.
    transactions = end_all(stack.kafka)
    groups, topics = _remove_from(stack.kafka)
    sessions = stack.postgres.renew() if stack.postgres is not None else 0
    objects = stack.object_store.clear() if stack.object_store is not None else 0
    stack.check_health()
    if left := list(leftovers(stack)):
        raise NotIsolated("; ".join(left))
    return Removed(topics, groups, len(transactions), sessions, objects)


def leftovers(stack: EmbeddedStack) -> Iterator[str]:
    """What is left of an execution, as the services report it: a phrase for each thing. Nothing if the stack is clean."""
    admin = stack.kafka.admin()
    yield from (f"topic {name} is still there" for name in _topics(stack.kafka, admin))
    yield from (f"consumer group {name} is still there" for name in _groups(admin))
    yield from (f"transaction {t.transactional_id} is {t.state}" for t in open_transactions(stack.kafka))
    yield from _lagging(admin)
    yield from connections(stack)
    yield from _executors(stack)
    yield from (f"proxy {name} {state}" for name, state in stack.toxiproxy.changed())
    if stack.frames is not None:
        yield from stack.frames.leftovers()
    if stack.postgres is not None:
        yield from stack.postgres.leftovers()
    if stack.object_store is not None and (objects := stack.object_store.objects()):
        yield f"the object store holds {len(objects)} objects, the first is {objects[0]}"


def connections(stack: EmbeddedStack) -> list[str]:
    """Connections of clients through the proxies, as phrases."""
    behind = {proxy.upstream.rpartition(":")[2]: proxy for proxy in stack.client_proxies()}
    found = []
    for one in psutil.Process(stack.toxiproxy.service.pid).net_connections("tcp"):
        if one.raddr and str(one.raddr.port) in behind and one.status == psutil.CONN_ESTABLISHED:
            found.append(f"a connection through proxy {behind[str(one.raddr.port)].name} is open")
    for proxy in behind.values():
        if isinstance(proxy, FramedProxy) and proxy.frames.links:
            found.append(f"{len(proxy.frames.links)} connections are open in the protocol proxy {proxy.name}")
    return found


def _executors(stack: EmbeddedStack) -> list[str]:
    return [f"executor process {pid} is running" for pid in stack.spark.pids()] if stack.spark is not None else []


def _wait_for(stack: EmbeddedStack, what: str, ask: Callable[[EmbeddedStack], Sequence[str]]) -> None:
    """Wait until the answer is empty. Raises `NotIsolated` with what is left."""
    try:
        wait_until(f"the {what} of the last execution to end", lambda: not ask(stack), deadline_s=_GONE_S)
    except WaitTimeout:
        raise NotIsolated("; ".join(ask(stack)) or f"the {what} ended late") from None


def _remove_from(kafka: EmbeddedKafka) -> tuple[int, int]:
    """Delete all consumer groups and topics, and return how many there were."""
    admin = kafka.admin()
    groups, topics = _groups(admin), _topics(kafka, admin)
    for name in groups:
        delete_group(kafka, name, within_s=_ASK_S)
    if topics:
        for gone in admin.delete_topics(topics, operation_timeout=_ASK_S, request_timeout=2 * _ASK_S).values():
            gone.result()
        wait_until("the topics to be deleted", lambda: not _topics(kafka, kafka.admin()), deadline_s=_GONE_S)
    return len(groups), len(topics)


def _topics(kafka: EmbeddedKafka, admin: AdminClient) -> list[str]:
    return sorted(name for name in admin.list_topics(timeout=_ASK_S).topics if kafka.is_own(name))


def _groups(admin: AdminClient) -> list[str]:
    """All consumer groups. Raises `NotIsolated` if a broker cannot list its own: its coordinator is still loading, for example."""
    names: list[str] = []
    errors: list[str] = []

    def ask() -> bool:
        answer = admin.list_consumer_groups(request_timeout=_ASK_S).result()
        names[:] = (group.group_id for group in answer.valid or ())
        errors[:] = map(str, answer.errors or ())
        return not errors

    try:
        wait_until("all consumer groups to be listed", ask, deadline_s=_GONE_S)
    except WaitTimeout:
        raise NotIsolated(f"its consumer groups cannot be listed: {errors[0]}") from None
    return sorted(names)


def _lagging(admin: AdminClient) -> Iterator[str]:
    """Partitions of Kafka's own topics that have no leader, or not all replicas in sync."""
    for name, topic in admin.list_topics(timeout=_ASK_S).topics.items():
        for number, partition in topic.partitions.items():
            if partition.leader < 0 or set(partition.isrs) != set(partition.replicas):
                yield f"partition {name}-{number} has replicas {partition.replicas}, in sync {partition.isrs}"
