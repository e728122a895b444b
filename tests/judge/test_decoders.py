"""Decoders: built-in ones run when a run is judged, functions once when it ends."""

from __future__ import annotations

import datetime
import json
import textwrap
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from onceproof.expectation.decode import as_document, decode_topics
from onceproof.history.run_directory import RunDir
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.oracle.contract import decoders
from onceproof.scenario.model import Scenario

# A custom wire format: two bytes per field.
WIRE = """
    def decode(value):
        if len(value) != 4:
            raise ValueError(f"{len(value)} bytes, not 4")
        return {"k": value[:2].decode(), "n": int.from_bytes(value[2:], "big")}
"""
DECODE = "{here}/wire_of_test.py:decode"


def wire(key: str, n: int) -> bytes:
    return key.encode() + n.to_bytes(2, "big")


@pytest.fixture
def coded(stored_run: Any, tmp_path: Path) -> Any:
    """Three records in the wire format, in and out: 0xFFFF is not UTF-8 text, 0x0041 is."""
    (tmp_path / "wire_of_test.py").write_text(textwrap.dedent(WIRE))
    run = stored_run
    run.scenario["input"][0]["decode"] = DECODE
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["k"], "decode": DECODE}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT k, n, _partition, _offset, _key FROM "in"'}}
    for key, n in (("aa", 0xFFFF), ("bb", 0x0041), ("cc", 7)):
        run.send(key, wire(key, n))
        put(run, wire(key, n))
    run.progress({0: 3})
    return run


def put(run: Any, value: bytes | None, visibility: str = "committed") -> None:
    run.record("out", None, visibility=visibility)
    try:
        run.tables["output"][-1]["content"] = value and value.decode()
    except UnicodeDecodeError:
        run.tables["output"][-1]["raw"] = value


def decoded(run: Any, here: Path) -> Path:
    path: Path = run.save()
    directory = RunDir(path)
    directory.logs.mkdir(exist_ok=True)
    directory.update(**json.loads((path / "run.json").read_text()))
    decode_topics(Scenario.model_validate(run.scenario), here, directory)
    return path


def test_a_function_decodes_inputs_and_outputs(coded: Any, tmp_path: Path) -> None:
    path = decoded(coded, tmp_path)
    assert judge(path).outcome == "held"
    with open_case(path) as case:
        assert case.inputs.seen().rows('SELECT k, n, _offset FROM "in" ORDER BY k')[0] == {
            "k": "aa",
            "n": 0xFFFF,
            "_offset": 0,
        }
        kept = case.rows('SELECT raw, content FROM history.output ORDER BY "offset"')
    assert kept[1] == {"raw": wire("bb", 0x41), "content": '{"k":"bb","n":65}'}


def test_a_wrong_value_is_found_after_decoding(coded: Any, tmp_path: Path) -> None:
    coded.tables["output"][-1]["content"] = wire("cc", 8).decode()
    assert judge(decoded(coded, tmp_path)).anomalies() == {"wrong-value": 1}


def test_judging_again_runs_no_code(coded: Any, tmp_path: Path) -> None:
    path = decoded(coded, tmp_path)
    (tmp_path / "wire_of_test.py").unlink()
    assert judge(path).outcome == "held"


def test_a_value_that_cannot_be_decoded_is_reported_with_its_position(coded: Any, tmp_path: Path) -> None:
    put(coded, b"three")
    verdict = judge(decoded(coded, tmp_path))
    assert verdict.outcome == "inconclusive"
    assert any("first at 0@3: ValueError: 5 bytes, not 4" in reason for reason in verdict.reasons)


def test_uncommitted_records_need_not_be_decodable(coded: Any, tmp_path: Path) -> None:
    put(coded, b"three", "aborted")
    assert judge(decoded(coded, tmp_path)).outcome == "held"


def test_a_tombstone_is_not_decoded(coded: Any, tmp_path: Path) -> None:
    coded.scenario["outputs"]["out"]["kind"] = "upsert"
    put(coded, None)
    assert judge(decoded(coded, tmp_path)).outcome == "held"


@pytest.mark.parametrize(
    ("code", "message"),
    [("import no_such_package_anywhere", "No module named"), ("def other(): pass", "has no attribute 'decode'")],
)
def test_a_function_that_cannot_be_loaded_is_inconclusive(coded: Any, tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "wire_of_test.py").write_text(code)
    verdict = judge(decoded(coded, tmp_path))
    assert verdict.outcome == "inconclusive"
    assert any(reason.startswith("input: in: decode: ") and message in reason for reason in verdict.reasons)


def test_a_history_that_was_not_decoded_is_not_judged(coded: Any) -> None:
    """Even if the values happen to be JSON: the scenario says that they must be decoded."""
    coded.tables["output"].clear()
    coded.scenario["input"][0]["decode"] = "bytes"
    coded.scenario["oracle"]["queries"]["out"] = (
        "SELECT left(decode(value), 2) AS k, _partition, _offset FROM \"in\" WHERE _key <> 'aa'"
    )
    for key in ("bb", "cc"):
        coded.record("out", {"k": key})
    verdict = judge(coded.save())
    assert verdict.outcome == "inconclusive"
    assert any("outputs: out: decode: its values were never decoded" in reason for reason in verdict.reasons)


def test_built_in_decoders_of_an_input(stored_run: Any) -> None:
    stored_run.send("k", b"text")
    stored_run.send("k", b"\xff\xfe")
    stored_run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["value"]}}
    stored_run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT value FROM "in"'}}
    for decode, found in (("string", ["text", None]), ("bytes", [b"text", b"\xff\xfe"])):
        stored_run.scenario["input"][0]["decode"] = decode
        with open_case(stored_run.save()) as case:
            assert [row["value"] for row in case.inputs.seen().rows('SELECT value FROM "in" ORDER BY _offset')] == found


@pytest.mark.parametrize(("decode", "expected"), [("string", "'a' || k"), ("bytes", "encode('a' || k)")])
def test_built_in_decoders_of_an_output(stored_run: Any, decode: str, expected: str) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["value"], "decode": decode}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": f'SELECT {expected} AS value FROM "in"'}}
    run.progress({0: 2})
    for key in ("x", "y"):
        run.send(key, {"k": key})
        run.record("out", "a" + key)
    assert judge(run.save()).outcome == "held"
    run.tables["output"][-1]["content"] = "az"
    assert judge(run.save()).anomalies() == {"lost-write": 1, "unexplained": 1}


def test_a_function_s_result_is_stored_in_the_compared_form() -> None:
    given = {
        "float": [float("nan"), float("inf"), -float("inf"), 1.5],
        "decimal": Decimal("1.10"),
        "time": datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC),
        "bytes": b"\x00\xff",
        "id": UUID(int=1),
        "null": None,
    }
    assert json.loads(as_document(given)) == {
        "float": ["NaN", "Infinity", "-Infinity", 1.5],
        "decimal": "1.10",
        "time": "2013-01-01T05:15:00+00:00",
        "bytes": "AP8=",
        "id": "00000000-0000-0000-0000-000000000001",
        "null": None,
    }
    for wrong in ([], "text", {"a": object()}):
        with pytest.raises(TypeError):
            as_document(wrong)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        ("json", None),
        ("my_package.wire:decode", None),
        ("{here}/wire.py:decode", None),
        ("strng", "there is no decoder 'strng'"),
        ("my package:decode", "neither a module nor a .py file"),
        ("module:", "does not name a function"),
    ],
)
def test_validate_checks_the_name_of_a_decoder(decode: str, message: str | None) -> None:
    problem = decoders.problem(decode)
    assert (problem is None) == (message is None)
    if message is not None:
        assert problem is not None
        assert message in problem[0]
