"""Names in a scenario that some service must be able to have: topics, queues, tables, variables. Checked before a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc, shown

_TOPIC = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)
TOPIC_RULE = "a topic's name has letters, digits, '.', '_' and '-', at most 249 of them"
#: Shorter than AMQP's 255 bytes: a run puts its number in front, and a partition and a copy's mark behind.
_QUEUE_BYTES = 200
QUEUE_RULE = (
    f"a queue's name has printable characters other than '/' and ',', at most {_QUEUE_BYTES} bytes of them, "
    "and does not begin with 'amq.'"
)
#: What Postgres keeps of a name; it cuts off the rest.
_TABLE_BYTES = 63


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def is_queue(name: str) -> bool:
    """Whether each AMQP broker can create it, and a consumer can be told it and publish to it. Qpid reads ``a/b`` as queue
    ``b`` of exchange ``a``, a consumer has a comma-separated list, and names with ``amq.`` are the broker's own."""
    usable = name.isprintable() and not any(c in name for c in "/,") and not name.startswith("amq.")
    return usable and name.strip() == name != "" and len(name.encode()) <= _QUEUE_BYTES


def table_problem(name: str) -> str | None:
    """Why Postgres can have no table of that name (``schema.table`` or ``table``)."""
    parts = name.split(".")
    if not all(part.strip() for part in parts):
        return "a table's name is empty"
    if len(parts) > 2:
        return "want TABLE or SCHEMA.TABLE"
    if any(len(part.encode()) > _TABLE_BYTES for part in parts):
        return f"Postgres keeps {_TABLE_BYTES} bytes of a name and cuts off the rest"
    return None


def complaints(scenario: Scenario) -> Iterator[Complaint]:
    yield from _topics(scenario)
    yield from _tables(scenario)
    yield from _variables(scenario)


def _named(scenario: Scenario) -> Iterator[tuple[Loc, str, bool]]:
    """Where each topic (of consumers: queue) is named, and whether the place is a key."""
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
    for loc, name, at_key in _named(scenario):
        if not is_name(name):
            kind = "queue" if amqp else "topic"
            yield Complaint(loc, f"{shown(name)} cannot be the name of a {kind}", rule, at_key=at_key)
        other = seen.setdefault(name.replace(".", "_"), name)
        if other != name and not amqp:
            message = f"topics {other!r} and {name!r} cannot both be: to Kafka's metrics '.' and '_' are the same"
            yield Complaint(loc, message, "rename one of them", at_key=at_key)


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
            message = f"{name!r} is not the name of a variable"
            hint = f"write {name.partition('=')[0]}: VALUE" if name else "write NAME: VALUE"
            yield Complaint(("pipeline", "env", name), message, hint, at_key=True)
