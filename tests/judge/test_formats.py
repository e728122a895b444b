"""Values in a format are decoded when a run ends, and judged by their exact types."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from onceproof.expectation.decode import decode_topics
from onceproof.formats import wire
from onceproof.formats.avro import Avro
from onceproof.formats.registry import AVRO, Schema
from onceproof.history.run_directory import RunDir
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.scenario.model import Scenario

from ..formats.registry_server import registry_server

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}
FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "string"},
    {"name": "amount", "type": MONEY},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "price", "type": MONEY}]}}},
    {"name": "taxes", "type": {"type": "map", "values": MONEY}},
    {"name": "note", "type": ["null", MONEY], "default": None},
]  # fmt: skip
ORDER = json.dumps({"type": "record", "name": "Order", "fields": FIELDS})
CITY = {"name": "city", "type": "string", "default": "unknown"}
NEWER = json.dumps({"type": "record", "name": "Order", "fields": [*FIELDS, CITY]})
AT = "2026-01-02T03:04:05.000006+00:00"


def order(name: str, amount: str = "1.5", **more: Any) -> dict[str, Any]:
    return {"id": name, "amount": amount, "at": AT, "lines": [{"price": "0.5"}], "taxes": {"x": "0.25"}, **more}


def avro(value: Any, schema: str = ORDER) -> bytes:
    return Avro(Schema(AVRO, schema)).encode(value)


def put(run: Any, value: bytes | None, *, key: str | None = None, visibility: str = "committed") -> None:
    run.record("out", None, visibility=visibility, key=key)
    row = run.tables["output"][-1]
    try:
        row["content"] = value and value.decode()
    except UnicodeDecodeError:
        row["raw"] = value


def decoded(run: Any, here: Path) -> Path:
    path: Path = run.save()
    directory = RunDir(path)
    directory.logs.mkdir(exist_ok=True)
    directory.update(**json.loads((path / "run.json").read_text()))
    decode_topics(Scenario.model_validate(run.scenario), here, directory)
    return path


@pytest.fixture
def run(stored_run: Any, tmp_path: Path) -> Any:
    """Avro in and out, by the schema of a file."""
    (tmp_path / "order.avsc").write_text(ORDER)
    spec = {"decode": "avro", "schema": "order.avsc"}
    stored_run.scenario["input"][0] |= spec
    stored_run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"], **spec}}
    stored_run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"out": 'SELECT * EXCLUDE (_value, _timestamp_ms) FROM "in"'},
    }
    return stored_run


def both(run: Any, *values: bytes, read: int | None = None) -> None:
    """Send and put each of them. ``read``: the number of records that the job has read, if it is another one."""
    for value in values:
        run.send("k", value)
        put(run, value)
    run.progress({0: read or len(values)})


def test_columns_have_the_types_of_the_schema(run: Any, tmp_path: Path) -> None:
    both(run, avro(order("a")), avro(order("b", "12345678901234567890123456.7891", note="2")))
    path = decoded(run, tmp_path)
    with open_case(path) as case:
        inputs = case.inputs.seen()
        types = inputs.types('SELECT * FROM "in"')
        rows = inputs.rows('SELECT amount FROM "in" ORDER BY id')
    assert types["amount"] == types["note"] == "DECIMAL(30,4)" and types["at"] == "TIMESTAMP WITH TIME ZONE"
    assert types["lines"] == "STRUCT(price DECIMAL(30,4))[]" and "DOUBLE" not in "".join(types.values()), types
    assert [row["amount"] for row in rows] == [Decimal("1.5"), Decimal("12345678901234567890123456.7891")]
    assert judge(path).outcome == "held"


def test_a_difference_in_the_last_digit_is_found(run: Any, tmp_path: Path) -> None:
    run.send("k", avro(order("a", "12345678901234567890123456.7891")))
    put(run, avro(order("a", "12345678901234567890123456.7892")))
    run.progress({0: 1})
    assert judge(decoded(run, tmp_path)).anomalies() == {"wrong-value": 1}


def test_a_lost_and_a_repeated_record_are_found(run: Any, tmp_path: Path) -> None:
    both(run, avro(order("a")), avro(order("b")), read=3)
    run.send("k", avro(order("c")))
    put(run, avro(order("b")))
    assert judge(decoded(run, tmp_path)).anomalies() == {"lost-write": 1, "duplicate": 1}


def test_an_output_that_cannot_be_decoded_names_the_record_and_the_cause(run: Any, tmp_path: Path) -> None:
    both(run, avro(order("a")))
    put(run, b"\x02")
    put(run, b"\x02", visibility="aborted")
    path = decoded(run, tmp_path)
    verdict = judge(path)
    assert verdict.outcome == "inconclusive"
    assert any("1 value cannot be decoded, the first at out/0@1: EOFError" in reason for reason in verdict.reasons)
    problem = json.loads((path / "run.json").read_text())["decoded"]["outputs"]["out"]["problems"]
    assert problem == [{"topic": "out", "partition": 0, "offset": 1, "cause": problem[0]["cause"]}]


def test_an_input_that_cannot_be_decoded_is_reported_and_has_no_fields(run: Any, tmp_path: Path) -> None:
    both(run, avro(order("a")), read=2)
    run.send("k", b"\x02")
    run.scenario["oracle"]["queries"]["out"] += " WHERE id IS NOT NULL"
    verdict = judge(decoded(run, tmp_path))
    assert verdict.outcome == "held"
    assert "1 value of input in cannot be decoded, the first at in/0@1: EOFError" in "\n".join(verdict.reasons)


def test_the_schema_changes_in_the_middle_of_a_run(run: Any, tmp_path: Path) -> None:
    """The writer's schema is found by the id of each value, the reader's is in a file."""
    (tmp_path / "newer.avsc").write_text(NEWER)
    with registry_server() as server:
        ids = [server.add("in-value", text) for text in (ORDER, NEWER)]
        run.scenario["stack"] = {"registry": {"url": server.url}}
        for spec in (run.scenario["input"][0], run.scenario["outputs"]["out"]):
            spec["schema"] = "newer.avsc"
        old = wire.framed(ids[0], avro(order("a")))
        new = wire.framed(ids[1], avro(order("b", city="Ulm"), NEWER))
        run.send("k", old)
        run.send("k", new)
        put(run, wire.framed(ids[1], avro(order("a", city="unknown"), NEWER)))
        put(run, new)
        put(run, wire.framed(9, b""), visibility="aborted")
        run.progress({0: 2})
        path = decoded(run, tmp_path)
    with open_case(path) as case:
        assert [row["city"] for row in case.inputs.seen().rows('SELECT city FROM "in" ORDER BY id')] == [
            "unknown",
            "Ulm",
        ]
    assert judge(path).outcome == "held"


def test_without_a_schema_of_its_own_each_value_is_read_as_it_was_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "newer.avsc").write_text(NEWER)
    run.scenario["stack"] = {"registry": {"files": {"1": "order.avsc", "2": "newer.avsc"}}}
    for spec in (run.scenario["input"][0], run.scenario["outputs"]["out"]):
        del spec["schema"]
    both(run, wire.framed(1, avro(order("a"))), wire.framed(2, avro(order("b", city="Ulm"), NEWER)))
    path = decoded(run, tmp_path)
    with open_case(path) as case:
        assert [row["city"] for row in case.inputs.seen().rows('SELECT city FROM "in" ORDER BY id')] == [None, "Ulm"]
        assert case.inputs.seen().types('SELECT amount FROM "in"') == {"amount": "DECIMAL(30,4)"}
    assert judge(path).outcome == "held"


@pytest.mark.parametrize("newer_first", [False, True])
def test_a_logical_type_that_only_one_schema_gives(run: Any, tmp_path: Path, newer_first: bool) -> None:
    def moment(kind: Any) -> str:
        return json.dumps(
            {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, {"name": "t", "type": kind}]}
        )

    schemas = [moment("long"), moment({"type": "long", "logicalType": "timestamp-millis"})]
    for number, schema in enumerate(schemas, start=1):
        (tmp_path / f"v{number}.avsc").write_text(schema)
    run.scenario["stack"] = {"registry": {"files": {"1": "v1.avsc", "2": "v2.avsc"}}}
    del run.scenario["input"][0]["schema"]
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT id, t, _partition, _offset FROM "in"'}}
    values = [
        wire.framed(1, avro({"id": 1, "t": 1_577_836_800_000}, schemas[0])),
        wire.framed(2, avro({"id": 2, "t": "2020-01-01T00:00:00Z"}, schemas[1])),
    ]
    for value in reversed(values) if newer_first else values:
        run.send("k", value)
    run.record("out", {"id": 1, "t": 1_577_836_800_000})
    run.record("out", {"id": 2, "t": "2020-01-01T00:00:00+00:00"})
    run.progress({0: 2})
    path = decoded(run, tmp_path)
    with open_case(path) as case:
        assert next(row["t"] for row in case.inputs.seen().rows('SELECT t FROM "in" ORDER BY id')) is not None
    assert judge(path).outcome == "held"


def test_a_registry_that_is_away_when_the_run_ends_makes_it_inconclusive(run: Any, tmp_path: Path) -> None:
    with registry_server() as server:
        run.scenario["stack"] = {"registry": {"url": server.url}}
    both(run, wire.framed(1, avro(order("a"))))
    verdict = judge(decoded(run, tmp_path))
    assert verdict.outcome == "inconclusive"
    assert any(f"registry {server.url} cannot be reached" in reason for reason in verdict.reasons), verdict.reasons


def test_judging_again_needs_neither_schema_nor_registry(run: Any, tmp_path: Path) -> None:
    both(run, avro(order("a")))
    path = decoded(run, tmp_path)
    (tmp_path / "order.avsc").unlink()
    assert judge(path).outcome == "held"


def test_protobuf_and_json_schema(stored_run: Any, tmp_path: Path) -> None:
    """In as Protobuf, out as JSON that a schema describes."""
    (tmp_path / "r.proto").write_text('syntax = "proto3"; message R { string id = 1; uint64 n = 2; }')
    (tmp_path / "r.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["id"]}')
    run = stored_run
    run.scenario["input"][0] |= {"decode": "protobuf", "schema": "{here}/r.proto"}
    out = {"topic": "out", "identity": ["id"], "decode": "json-schema", "schema": "r.json"}
    run.scenario["outputs"] = {"out": out}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT id, n, _partition, _offset, _key FROM "in"'}}
    run.send("k", b"\x0a\x01a\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    put(run, b'{"id": "a", "n": 18446744073709551615}')
    run.progress({0: 1})
    assert judge(decoded(run, tmp_path)).outcome == "held"
    run.tables["output"][-1]["content"] = '{"id": "a", "n": "18446744073709551615"}'
    verdict = judge(decoded(run, tmp_path))
    assert any("field n: '18446744073709551615' is not of type 'integer'" in reason for reason in verdict.reasons)


def event(before: Any, after: Any, op: str) -> bytes:
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 1}).encode()


def changes(run: Any) -> list[tuple[str, bytes | None]]:
    """A row that is changed, one that is deleted (with the tombstone that follows), and one that stays."""
    one, two, three = ({"id": name, "n": n} for name, n in (("a", 1), ("a", 2), ("b", 3)))
    run.scenario["input"][0]["decode"] = "debezium"
    return [
        ("a", event(None, one, "c")),
        ("b", event(None, three, "c")),
        ("a", event(one, two, "u")),
        ("b", event(three, None, "d")),
        ("b", None),
        ("c", event(None, {"id": "c", "n": 4}, "r")),
    ]


def test_change_events_in_and_out_leave_the_last_state_of_each_row(stored_run: Any, tmp_path: Path) -> None:
    run = stored_run
    for key, value in (sent := changes(run)):
        run.send(key, value)
        put(run, value, key=key)
    run.scenario["outputs"] = {"out": {"topic": "out", "kind": "upsert", "identity": ["id"], "decode": "debezium"}}
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {
            "out": """WITH last AS (
                SELECT * FROM "in" WHERE op IS NOT NULL QUALIFY row_number() OVER (PARTITION BY _key ORDER BY _offset DESC) = 1)
              SELECT after.id AS id, after.n AS n, _partition, _offset, _key FROM last WHERE op <> 'd'"""
        },
    }
    run.progress({0: len(sent)})
    verdict = judge(decoded(run, tmp_path))
    assert (verdict.outcome, verdict.counts["effects.out"]) == ("held", 2), verdict.reasons
    del run.tables["output"][3:5]  # the deletion
    assert judge(decoded(run, tmp_path)).anomalies() == {"unexplained": 1}


def test_a_deletion_without_a_record_key_is_not_judged(stored_run: Any, tmp_path: Path) -> None:
    run = stored_run
    for key, value in changes(run):
        run.send(key, value)
        put(run, value)
    run.scenario["outputs"] = {"out": {"topic": "out", "kind": "upsert", "identity": ["id"], "decode": "debezium"}}
    query = """SELECT 'a' AS id, 2 AS n FROM "in" WHERE op = 'u' UNION ALL SELECT 'c', 4 FROM "in" WHERE op = 'r' """
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.progress({0: 6})
    verdict = judge(decoded(run, tmp_path))
    assert verdict.outcome == "inconclusive"
    assert "2 deletions have no record key that says which row is deleted, the first at out/0@3" in verdict.reasons[0]


def test_change_events_as_a_changelog(stored_run: Any, tmp_path: Path) -> None:
    run = stored_run
    sent = [(key, value) for key, value in changes(run) if value is not None]
    for key, value in sent:
        run.send(key, value)
        put(run, value, key=key)
    run.scenario["claim"] = {"order": "per-key"}
    run.scenario["outputs"] = {"out": {"topic": "out", "kind": "changelog", "identity": ["id"], "decode": "debezium"}}
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {
            "out": """SELECT coalesce(after.id, before.id) AS id, coalesce(after.n, before.n) AS n, op AS __op,
                             _partition, _offset, _key FROM "in" """
        },
    }
    run.progress({0: len(sent)})
    verdict = judge(decoded(run, tmp_path))
    assert verdict.outcome == "held", verdict.reasons
    put(run, sent[0][1], key="a")  # an old state once more, after the new one
    assert judge(decoded(run, tmp_path)).outcome == "violated"
