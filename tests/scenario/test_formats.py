"""What `onceproof validate` says about formats, before anything starts: the value, its place and the fix, with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from onceproof.base.errors import ScenarioError
from onceproof.formats.registry import PROTOBUF
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load, load_file, load_to_judge, resolved, warnings

OLD = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "key", "type": "string"}]}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "seq", "type": "long", "default": 0}]}  # type: ignore[misc]
FILES = {
    "old.avsc": json.dumps(OLD),
    "new.avsc": json.dumps(NEW),
    "strict.avsc": json.dumps({**OLD, "fields": [{"name": "id", "type": "long"}, {"name": "more", "type": "int"}]}),
    "broken.avsc": '{"type": "recrod"}',
    "r.proto": 'syntax = "proto3"; message R { int64 id = 1; }',
    "broken.proto": "message {",
    "r.json": '{"type": "object", "required": ["id"]}',
    "strict.json": '{"type": "object", "required": ["city"]}',
    "r.txt": "",
}


def scenario(**more: Any) -> dict[str, Any]:
    """Avro in and out, by files. ``more``: parts to replace; ``input`` and ``out`` are merged."""
    spec = {
        "topic": "in",
        "dataset": "numbers",
        "rows": 100,
        "chunks": 4,
        "encode": "avro",
        "schema": "{here}/old.avsc",
    }
    out = {"topic": "out", "identity": ["id"], "decode": "avro", "schema": "{here}/old.avsc"}
    whole = {
        "stack": {"kafka": {"brokers": 1}},
        "input": [spec | more.pop("input", {})],
        "pipeline": {"command": ["{python}", "job"], "prepare": {"topics": {"out": {}}}},
        "outputs": {"out": out | more.pop("out", {})},
        "oracle": {"kind": "identity", "columns": {"out": {"id": "id"}}},
    }
    return whole | more


def written(folder: Path, made: dict[str, Any]) -> Path:
    for name, text in FILES.items():
        (folder / name).write_text(text)
    path = folder / "small.yaml"
    without_null = {k: [{n: v for n, v in made["input"][0].items() if v is not None}] if k == "input" else v for k, v in made.items()}  # fmt: skip
    without_null["outputs"] = {"out": {n: v for n, v in made["outputs"]["out"].items() if v is not None}}
    with path.open("w") as file:
        YAML().dump(without_null, file)
    return path


def test_a_scenario_with_formats_is_valid_and_round_trips(tmp_path: Path) -> None:
    registry = {"files": {1: "{here}/old.avsc", 2: "{here}/new.avsc"}}
    made = scenario(
        stack={"kafka": {}, "registry": registry},
        input={"schema": "{here}/new.avsc", "schemas": {1: "{here}/old.avsc", 51: "{here}/new.avsc"}},
        out={"schema": None, "framed": True},
    )
    path = written(tmp_path, made)
    loaded = load(path)
    assert loaded.input[0].decode == "avro" and loaded.input[0].schemas == {1: "{here}/old.avsc", 51: "{here}/new.avsc"}
    assert Scenario.model_validate(loaded.to_json()) == loaded
    whole = tmp_path / "whole" / "small.yaml"
    whole.parent.mkdir()
    whole.write_text(resolved(path))
    assert f"{tmp_path}/new.avsc" in whole.read_text() and "{here}" not in whole.read_text()


@pytest.mark.parametrize(
    "made",
    [
        scenario(input={"encode": "protobuf", "schema": "{here}/r.proto", "message": "R"}, out={"decode": "json", "schema": None}),
        scenario(input={"encode": "json-schema", "schema": "{here}/r.json"}, out={"decode": "protobuf", "schema": "{here}/r.proto"}),
        scenario(input={"encode": "debezium", "schema": None}, out={"decode": "debezium", "schema": None}),
        scenario(input={"decode": "my_package.wire:decode"}),
        scenario(stack={"kafka": {}, "registry": {"url": "http://127.0.0.1:1"}}, out={"schema": None}),
    ],
)  # fmt: skip
def test_other_formats_are_valid_and_no_server_is_asked(tmp_path: Path, made: dict[str, Any]) -> None:
    load(written(tmp_path, made))


@pytest.mark.parametrize(
    ("made", "why", "fix"),
    [
        (scenario(input={"schema": "{here}/gone.avsc"}), "gone.avsc' does not exist", ""),
        (scenario(out={"schema": "old.avsc"}), "schema file 'old.avsc' is a relative path", "write '{here}/old.avsc'"),
        (scenario(out={"schema": "{here}/r.txt"}), "r.txt' is none of .avsc, .proto, .json", "ending of its name"),
        (scenario(out={"schema": "{here}/broken.avsc"}), "broken.avsc' is not an Avro schema", "correct the schema"),
        (scenario(out={"decode": "protobuf", "schema": "{here}/broken.proto"}), "broken.proto' is not a .proto file", ""),
        (scenario(out={"schema": "{here}/r.proto"}), f"r.proto' is {PROTOBUF}, and the format is avro", ""),
        (scenario(out={"decode": "protobuf", "schema": "{here}/r.proto", "message": "Q"}), "has no message 'Q'", "it has R"),
        (scenario(out={"message": "R"}), "message is only for decode: protobuf", "remove message"),
        (scenario(out={"schema": None}), "decode: avro needs a schema", "add `schema: FILE`"),
        (scenario(out={"framed": True}), "the stack has no registry", "registry: {url"),
        (scenario(out={"decode": "json"}), "schema is only for values with a format", "remove schema"),
        (scenario(out={"decode": "arvo"}), "there is no decoder 'arvo'", "avro"),
        (scenario(input={"decode": "json"}), "values are encoded as avro, and decode is json", "remove decode"),
        (scenario(input={"encode": None, "schema": None, "schemas": {1: "{here}/old.avsc"}}), "the feed writes", "encode"),
        (scenario(input={"schema": None}), "encode: avro needs the schema of the first record", "schemas: {1: FILE}"),
        (scenario(input={"schema": "{here}/strict.avsc"}), "record 1 of in cannot be encoded: field more is missing", "schema"),
        (
            scenario(input={"encode": "json-schema", "schema": "{here}/strict.json"}),
            "record 1 of in cannot be encoded: field (the value): 'city' is a required property",
            "the data set's record",
        ),
        (
            scenario(input={"schema": "{here}/strict.avsc", "schemas": {1: "{here}/old.avsc"}}),
            "values of old.avsc cannot be read by strict.avsc: field 'more' of R is not written, and has no default",
            "give the new field a default",
        ),
        (
            scenario(stack={"kafka": {}, "registry": {"files": {1: "{here}/gone.avsc", 2: "{here}/old.avsc"}}}),
            "gone.avsc' does not exist",
            "",
        ),
        (scenario(stack={"kafka": {}, "registry": {"files": {1: "{here}/new.avsc"}}}), "old.avsc' has no id", "ID: FILE"),
        (scenario(stack={"kafka": {}, "registry": {}}), "needs one of url, url_env and files, and has none", "remove"),
        (
            scenario(stack={"kafka": {}, "registry": {"url": "http://me:secret@127.0.0.1:1"}}),
            "url holds a user or a password",
            "user_env",
        ),
        (
            scenario(stack={"kafka": {}, "registry": {"url_env": "NO_SUCH_REGISTRY"}}),
            "the environment variable 'NO_SUCH_REGISTRY' is not set",
            "export NO_SUCH_REGISTRY=",
        ),
        (scenario(input={"encode": "debezium", "schemas": {1: "{here}/old.avsc"}, "schema": None}), "without a schema", "remove"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_value_and_the_fix(tmp_path: Path, made: dict[str, Any], why: str, fix: str) -> None:
    with pytest.raises(ScenarioError) as found:
        load(written(tmp_path, made))
    assert why in str(found.value) and fix in str(found.value), found.value
    assert "secret" not in str(found.value)
    assert all(problem.place.line > 1 for problem in found.value.problems)
    assert found.value.exit_code == 2


def test_a_schema_that_no_record_is_written_with_is_a_warning(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        scenario(input={"schema": "{here}/new.avsc", "schemas": {1: "{here}/old.avsc", 101: "{here}/new.avsc"}}),
    )
    (found,) = [problem for problem in warnings(load_file(path)) if "record" in problem.message]
    assert "there is no record 101: the input has 100 records" in found.message


def test_the_messages_of_consumers_are_not_encoded(tmp_path: Path) -> None:
    path = written(tmp_path, scenario())
    spec = {"topic": "orders", "dataset": "messages", "partitions": 1, "encode": "avro", "schema": "{here}/old.avsc"}
    with path.open("w") as file:
        YAML().dump({"base": "ack-lost-duplicates", "input": [spec]}, file)
    with pytest.raises(ScenarioError, match="encode is for the input of a Spark job"):
        load(path)


def test_a_scenario_that_only_judges_needs_no_data_set(tmp_path: Path) -> None:
    made = scenario(input={"encode": None, "decode": "avro"})
    del made["input"][0]["dataset"], made["pipeline"]
    assert load_to_judge(written(tmp_path, made)).input[0].schema_ == "{here}/old.avsc"
