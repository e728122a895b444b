"""What the sinks of a run hold at a moment, asked past every proxy: to tell whether somebody has written meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # exported, not in __all__
from psycopg import sql

from onceproof.scenario.model import OutputSpec
from onceproof.sinks.kafka_clients import meet_brokers
from onceproof.stack.api import Kafka, Postgres, Stack
from onceproof.stack.kafka.clients import client_config

# Made here once: the class has no annotations.
_LATEST: Any = _OffsetSpec.latest()  # type: ignore[no-untyped-call]
_ASK_S = 10.0
"""The harness's own listeners are never faulted; an answer that takes longer means that the service is gone."""

_TABLES = """
    SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2"""

State = Mapping[str, str]
"""``table NAME`` or ``topic NAME`` -> what it holds, in words that differ if it was written meanwhile."""


def sink_state(stack: Stack) -> State:
    """All tables of the run's database, and all topics as a read_committed reader finds them."""
    state: dict[str, str] = {
        f"topic {topic}": f"stable up to {' '.join(f'{p}@{end}' for p, end in sorted(ends.items()))}"
        for topic, ends in stable_ends(stack.kafka).items()
    }
    if stack.postgres is not None:
        state |= _tables(stack.postgres)
    return state


def output_state(stack: Stack, outputs: Collection[OutputSpec]) -> State:
    """These outputs alone, with what is not committed in a topic: of a batch that was aborted it is all that can be seen."""
    topics = {spec.topic for spec in outputs if spec.topic is not None}
    tables = {table_name(spec.table) for spec in outputs if spec.table is not None}
    state: dict[str, str] = {}
    if topics:
        ends = _ends(stack.kafka, IsolationLevel.READ_UNCOMMITTED)
        state |= {
            f"topic {topic}": f"records up to {' '.join(f'{p}@{end}' for p, end in sorted(ends[topic].items()))}"
            for topic in topics & ends.keys()
        }
    if tables and stack.postgres is not None:
        state |= {name: held for name, held in _tables(stack.postgres).items() if name.removeprefix("table ") in tables}
    return state


def table_name(table: str) -> str:
    """Of ``schema."table"``, as `State` names it."""
    return table.rpartition(".")[2].strip('"')


def changes(before: State, after: State) -> list[str]:
    """What differs, a sentence each."""
    return [
        f"{name}: {before.get(name, 'not there')} -> {held}" for name, held in after.items() if before.get(name) != held
    ]


def undecided(kafka: Kafka) -> bool:
    """Whether records of a transaction that has not ended are in some topic; one that was just ended has its markers to come."""
    return bool(undecided_topics(kafka))


def undecided_topics(kafka: Kafka) -> set[str]:
    """Topics that hold records of a transaction that has not ended."""
    stable, ends = stable_ends(kafka), _ends(kafka, IsolationLevel.READ_UNCOMMITTED)
    return {topic for topic in stable.keys() | ends.keys() if stable.get(topic) != ends.get(topic)}


def stable_ends(kafka: Kafka) -> dict[str, dict[int, int]]:
    """Topic -> partition -> last stable offset, of all topics but the brokers' own."""
    return _ends(kafka, IsolationLevel.READ_COMMITTED)


def _ends(kafka: Kafka, isolation: IsolationLevel) -> dict[str, dict[int, int]]:
    admin = AdminClient(client_config(kafka.harness_bootstrap))
    topics = meet_brokers(admin, timeout_s=_ASK_S).topics
    partitions = [
        TopicPartition(name, p) for name, t in topics.items() if not name.startswith("__") for p in t.partitions
    ]
    futures = admin.list_offsets(dict.fromkeys(partitions, _LATEST), isolation_level=isolation, request_timeout=_ASK_S)
    ends: dict[str, dict[int, int]] = {}
    for partition, future in futures.items():
        ends.setdefault(partition.topic, {})[partition.partition] = int(future.result(_ASK_S).offset)
    return ends


def _tables(postgres: Postgres) -> dict[str, str]:
    held: dict[str, str] = {}
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(_ASK_S), autocommit=True) as connection:
        for schema, table in connection.execute(_TABLES).fetchall():
            # xmin: a row that was written again counts as well, though there are no more of them.
            query = sql.SQL("SELECT count(*), coalesce(max(xmin::text::bigint), 0) FROM {}").format(
                sql.Identifier(schema, table)
            )
            rows, newest = connection.execute(query).fetchone() or (0, 0)
            held[f"table {table}"] = f"{rows} rows (the newest of transaction {newest})"
    return held
