"""Checks the names in a scenario that a service or the system must accept: topics, queues, tables, environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc, shown

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)
TOPIC_RULE = "a topic's name has letters, digits, '.', '_' and '-', at most 249 of them"
#: Shorter than AMQP's 255 bytes: a run adds its number before the name, and a partition and the mark of a copy after it.
_QUEUE_BYTES = 200
QUEUE_RULE = (
    f"a queue's name has at most {_QUEUE_BYTES} bytes of printable characters other than '/' and ',', "
    "and does not begin with 'amq.'"
)
#: Postgres cuts off longer names.
_TABLE_BYTES = 63


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def is_queue(name: str) -> bool:
    """Whether every AMQP broker can create the queue, and a consumer can take from it and publish to it.

    Qpid reads ``a/b`` as queue ``b`` of exchange ``a``; a consumer gets its queues as a comma-separated list; names that begin
    with ``amq.`` are reserved for the broker.
    """
    usable = name.isprintable() and not any(c in name for c in "/,") and not name.startswith("amq.")
    return usable and name.strip() == name != "" and len(name.encode()) <= _QUEUE_BYTES


def table_problem(name: str) -> str | None:
    """Why Postgres cannot have a table of that name (``schema.table`` or ``table``); None if it can."""
    parts = name.split(".")
    if not all(part.strip() for part in parts):
        return "a table's name is empty"
    if len(parts) > 2:
        return "want TABLE or SCHEMA.TABLE"
    if any(len(part.encode()) > _TABLE_BYTES for part in parts):
        return f"Postgres would cut the name off after {_TABLE_BYTES} bytes"
    return None


def complaints(scenario: Scenario) -> Iterator[Complaint]:
    yield from _topics(scenario)
    yield from _tables(scenario)
    yield from _variables(scenario)


def _named_topics(scenario: Scenario) -> Iterator[tuple[Loc, str, bool]]:
    """Each topic (or queue) that the scenario names: path in the document, name, and whether the name is a key there."""
    for index, spec in enumerate(scenario.input):
        yield ("input", index, "topic"), spec.topic, False
    for topic in scenario.pipeline.prepare.topics:
        yield ("pipeline", "prepare", "topics", topic), topic, True
    for name, output in scenario.outputs.items():
        if output.topic is not None:
            yield ("outputs", name, "topic"), output.topic, False
    for loc, topic in scenario.pipeline.own_topics.items():
        yield ("pipeline", *loc), topic, False


def _topics(scenario: Scenario) -> Iterator[Complaint]:
    amqp = scenario.pipeline.on_queues
    is_name, rule = (is_queue, QUEUE_RULE) if amqp else (is_topic, TOPIC_RULE)
    seen: dict[str, str] = {}
    for loc, name, at_key in _named_topics(scenario):
        if not is_name(name):
            kind = "queue" if amqp else "topic"
            yield Complaint(loc, f"{shown(name)} cannot be the name of a {kind}", rule, at_key=at_key)
        other = seen.setdefault(name.replace(".", "_"), name)
        if other != name and not amqp:
            message = f"topics {other!r} and {name!r} collide: Kafka's metrics do not distinguish '.' from '_'"
            yield Complaint(loc, message, "rename one of them", at_key=at_key)
    for index, source in enumerate(scenario.input):
        if amqp and source.config:
            message = f"{source.topic!r} is a queue of an AMQP broker, and config has settings of a topic of Kafka"
            yield Complaint(("input", index, "config"), message, "remove it")


def _tables(scenario: Scenario) -> Iterator[Complaint]:
    for name, output in scenario.outputs.items():
        tables: list[tuple[Loc, str | None]] = [
            (("outputs", name, "table"), output.table),
            (("outputs", name, "progress", "table"), output.progress.table if output.progress is not None else None),
        ]
        for loc, table in tables:
            if table is not None and (why := table_problem(table)):
                yield Complaint(loc, f"table: {shown(table)}: {why}")


def _variables(scenario: Scenario) -> Iterator[Complaint]:
    variables: Mapping[str, str] = scenario.pipeline.env
    for name in variables:
        if not name or "=" in name:
            message = f"{name!r} is not a valid name of an environment variable"
            hint = f"write {name.partition('=')[0]}: VALUE" if name else "write NAME: VALUE"
            yield Complaint(("pipeline", "env", name), message, hint, at_key=True)
