"""The key of a Kafka record is compared with its input's key, unless the scenario says that it differs on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import check, judge
from onceproof.stores.kafka.rows import headers_text

KEYS = ["a", "b", None, "a"]


def copied(run: Any, keys: list[str | None], *, oracle: str = "sql", columns: str = "", **output: Any) -> Verdict:
    """The verdict on a topic that is copied record by record; the copies have these keys."""
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "compare_key": None, **output}}
    if oracle == "sql":
        query = f'SELECT i, v{columns}, _partition, _offset, _key FROM "in"'
        run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    else:
        run.scenario["oracle"] = {"kind": "identity", "columns": {"out": {"i": "i"}}}
    for i, (own, key) in enumerate(zip(KEYS, keys, strict=True)):
        run.send(own, {"i": i, "v": 10 * i})
        run.record("out", {"i": i, "v": 10 * i}, key=key)
    run.progress({0: len(KEYS)})
    return check(run.save())


@pytest.mark.parametrize("oracle", ["sql", "identity"])
def test_records_with_their_input_s_keys_are_held(stored_run: Any, oracle: str) -> None:
    verdict = copied(stored_run, KEYS, oracle=oracle)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.HELD, {}), verdict.reasons


@pytest.mark.parametrize("oracle", ["sql", "identity"])
@pytest.mark.parametrize(
    ("keys", "wrong"),
    [([None, None, None, None], 3), (["a", None, None, "a"], 1), (["b", "b", None, "a"], 1), (["a", "b", "x", "a"], 1)],
)
def test_dropped_and_changed_keys_are_wrong_values(
    stored_run: Any, oracle: str, keys: list[str | None], wrong: int
) -> None:
    verdict = copied(stored_run, keys, oracle=oracle)
    assert (verdict.outcome, verdict.anomalies()) == (Outcome.VIOLATED, {"wrong-value": wrong})
    (finding,) = verdict.findings
    assert "in record key" in finding.summary
    assert "record key = " in finding.witnesses[0].argument


BYTES = [b"\xff", rb"\xFF", b"\xff\\", rb"C:\xabc", "\u00fc".encode()]


@pytest.mark.parametrize("to_key", ["", "encode('x') AS _to_key, "])
def test_keys_of_other_bytes_are_never_equal(stored_run: Any, to_key: str) -> None:
    r"""The key of the byte 0xFF is not the key of the text ``\xFF``, and the other way round."""
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "compare_key": True}}
    run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"out": f'SELECT i, {to_key}_partition, _offset, _key FROM "in"'},
    }
    pairs = [(one, other) for one in BYTES for other in BYTES]
    for i, (own, copy) in enumerate(pairs):
        run.send("k", {"i": i})
        run.tables["input"][-1]["key"] = own
        run.record("out", {"i": i}, key="k")
        run.tables["output"][-1]["key"] = b"x" if to_key and own == copy else copy
    run.progress({0: len(pairs)})
    verdict = check(run.save())
    assert verdict.anomalies() == {"wrong-value": len(pairs) - len(BYTES)}, verdict.reasons


def test_a_dropped_key_is_shown_and_has_a_slice(stored_run: Any) -> None:
    verdict = copied(stored_run, [None, "b", None, "a"])
    (finding,) = verdict.findings
    assert "expected: record key = a" in finding.witnesses[0].argument
    assert "But found: record key = null" in finding.witnesses[0].argument
    (folder,) = verdict.slices.values()
    assert judge(stored_run.path / folder).anomalies() == {"wrong-value": 1}


def test_keys_that_are_not_compared_are_listed(stored_run: Any) -> None:
    verdict = copied(stored_run, [None, None, None, None], compare_key=False)
    assert verdict.outcome is Outcome.HELD
    assert verdict.ignored == {"out": ["record key"]}


def test_an_output_with_its_own_keys_is_inconclusive_until_declared(stored_run: Any) -> None:
    verdict = copied(stored_run, ["k0", "k1", "k2", "k3"])
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no record of output 'out' has the key of an input record" in verdict.reasons[0]
    assert "compare_key: false" in verdict.reasons[0]


def test_its_own_keys_are_wrong_values_with_compare_key(stored_run: Any) -> None:
    verdict = copied(stored_run, ["k0", "k1", "k2", "k3"], compare_key=True)
    assert verdict.anomalies() == {"wrong-value": 4}


@pytest.mark.parametrize(("last", "anomalies"), [("k3", {}), ("k9", {"wrong-value": 1})])
def test_keys_are_compared_with_the_oracle_s_to_key(stored_run: Any, last: str, anomalies: dict[str, int]) -> None:
    verdict = copied(stored_run, ["k0", "k1", "k2", last], columns=", 'k' || i AS _to_key")
    assert verdict.anomalies() == anomalies


def test_keys_are_not_compared_if_the_input_has_none(make_run: Callable[[Path], Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "compare_key": None}}
    run.scenario["oracle"] = {"kind": "identity", "columns": {"out": {"i": "i"}}}
    for i in range(3):
        run.send(None, {"i": i})
        run.record("out", {"i": i}, key=f"k{i}")
    run.progress({0: 3})
    assert judge(run.save()).outcome is Outcome.HELD


def test_keys_are_not_compared_if_they_were_not_imported(stored_run: Any) -> None:
    stored_run.document["imported"] = True
    verdict = copied(stored_run, [None, None, None, None])
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert verdict.not_evaluated == {"record key@out": "its records were imported without keys"}


def test_a_second_copy_without_its_key_is_a_wrong_value(stored_run: Any) -> None:
    """The second copy has no key, so it equals neither the first copy nor the expected record."""
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "compare_key": None}}
    run.scenario["oracle"] = {"kind": "identity", "columns": {"out": {"i": "i"}}}
    run.send("a", {"i": 0})
    run.record("out", {"i": 0}, key="a")
    run.record("out", {"i": 0})
    run.progress({0: 1})
    assert judge(run.save()).outcome is Outcome.VIOLATED


def test_a_field_named_record_key_is_not_overlooked(stored_run: Any) -> None:
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "compare_key": True}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": 'SELECT i, _partition, _offset, _key FROM "in"'}}
    run.send("a", {"i": 0})
    run.record("out", {"i": 0, "record key": "b"}, key="a")
    run.progress({0: 1})
    verdict = judge(run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "does not give its columns record key" in verdict.reasons[0]


HEADERS = ['[["trace","1"]]', None, '[["trace","2"],["trace","3"]]', "[]"]


def with_headers(run: Any, headers: list[str | None], *, oracle: str = "identity") -> Verdict:
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "headers": "compare"}}
    query = 'SELECT i, _partition, _offset, _key, _headers FROM "in"'
    by_query = {"kind": "sql", "queries": {"out": query}}
    run.scenario["oracle"] = by_query if oracle == "sql" else {"kind": "identity", "columns": {"out": {"i": "i"}}}
    for i, (own, copy) in enumerate(zip(HEADERS, headers, strict=True)):
        run.send("a", {"i": i})
        run.tables["input"][-1]["headers"] = own
        run.record("out", {"i": i}, key="a")
        run.tables["output"][-1]["headers"] = copy
    run.progress({0: len(HEADERS)})
    return check(run.save())


@pytest.mark.parametrize("oracle", ["sql", "identity"])
def test_headers_are_compared_on_request(stored_run: Any, oracle: str) -> None:
    assert with_headers(stored_run, HEADERS, oracle=oracle).outcome is Outcome.HELD


@pytest.mark.parametrize("oracle", ["sql", "identity"])
def test_a_dropped_header_is_a_wrong_value(stored_run: Any, oracle: str) -> None:
    verdict = with_headers(stored_run, [None, *HEADERS[1:]], oracle=oracle)
    assert verdict.anomalies() == {"wrong-value": 1}
    assert "in record headers" in verdict.findings[0].summary
    (folder,) = verdict.slices.values()
    assert judge(stored_run.path / folder).anomalies() == {"wrong-value": 1}


@pytest.mark.parametrize("form", ["[['a', 'x']]", """'[["a", "x"]]'::JSON""", """'[["a","x"]]'"""])
def test_headers_from_an_oracle_are_compared(stored_run: Any, form: str) -> None:
    """As a list or as JSON, they equal the headers in the text of the views."""
    run = stored_run
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["i"], "headers": "compare"}}
    query = f'SELECT i, _partition, _offset, _key, {form} AS _headers FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.send("k", {"i": 1})
    run.record("out", {"i": 1}, key="k")
    run.tables["output"][-1]["headers"] = '[["a","x"]]'
    run.progress({0: 1})
    assert check(run.save()).anomalies() == {}
    run.tables["output"][-1]["headers"] = '[["a","y"]]'
    assert check(run.save()).anomalies() == {"wrong-value": 1}


def test_headers_of_a_history_without_them_are_inconclusive(stored_run: Any) -> None:
    with_headers(stored_run, HEADERS)
    for table in ("input", "output"):
        path = stored_run.path / "history" / f"{table}.parquet"
        pq.write_table(pq.read_table(path).drop_columns(["headers"]), path)
    verdict = judge(stored_run.path)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "this history was written without them" in verdict.reasons[0]


def test_a_history_written_before_headers_were_stored_is_judged(clean_run: Any) -> None:
    run = clean_run.save()
    for table in ("input", "output"):
        path = run / "history" / f"{table}.parquet"
        pq.write_table(pq.read_table(path).drop_columns(["headers"]), path)
    assert judge(run).outcome is Outcome.HELD


def test_headers_in_the_format_of_a_history() -> None:
    class Message:
        def __init__(self, found: Any) -> None:
            self._found = found

        def headers(self) -> Any:
            return self._found

    assert headers_text(Message(None)) is None  # type: ignore[arg-type]
    text = headers_text(Message([("a", b"1"), ("a", None), ("b", b"\xff\x00x"), ("c", "ü".encode())]))  # type: ignore[arg-type]
    assert text == '[["a","1"],["a",null],["b","\\\\xFF\\\\x00x"],["c","ü"]]'


def test_a_header_of_other_bytes_is_never_equal() -> None:
    def shown(value: bytes | str) -> str | None:
        return headers_text(type("Message", (), {"headers": lambda _: [("a", value)]})())

    assert shown(b"\xff") == r'[["a","\\xFF"]]'
    assert shown(rb"\xFF") == shown(r"\xFF") == r'[["a","\\x5CxFF"]]'
    assert shown(rb"C:\xabc") == r'[["a","C:\\xabc"]]'
