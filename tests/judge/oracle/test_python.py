"""Oracle ``python``: a function's rows are compared with the outputs and stored, and the function is never called again."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceproof.base.errors import HistoryError
from onceproof.base.user_code import load_function
from onceproof.expectation.call import tables_of
from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.precomputed import expected_file
from onceproof.oracle.python import PythonOracle, PythonSpec

RIGHT = """
    import json

    def expected(tables):
        rows = []
        for r in tables["in"].to_pylist():
            rows.append({"p": r["partition"], "o": r["offset"], **json.loads(r["value"]), "_topic": r["topic"],
                         "_partition": r["partition"], "_offset": r["offset"], "_key": r["key"].decode()})
        return {"rows": rows, "events": rows}
"""


def function(run: Any, folder: Path, code: str, name: str = "{here}/oracle_of_test.py:expected") -> Any:
    (folder / "oracle_of_test.py").write_text(textwrap.dedent(code))
    run.scenario["oracle"] = {"kind": "python", "function": name}
    return run


@pytest.mark.parametrize("name", ["{here}/oracle_of_test.py:expected", "oracle_of_test:expected"])
def test_the_outputs_are_compared_with_the_function_s_rows(clean_run: Any, tmp_path: Path, ask: Any, name: str) -> None:
    path = ask(function(clean_run, tmp_path, RIGHT, name))
    assert judge(path).outcome == "held"


def test_a_loss_is_found_by_its_cause(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    lost = clean_run.tables["output"].pop()
    path = ask(function(clean_run, tmp_path, RIGHT))
    (finding,) = [f for f in judge(path).findings if f.anomaly == "lost-write"]
    assert finding.output == lost["output"] == "events"
    assert finding.total == 1


def test_judging_again_runs_no_code(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    path = ask(function(clean_run, tmp_path, RIGHT))
    (tmp_path / "oracle_of_test.py").write_text("raise SystemExit('this must not be run again')")
    assert judge(path).outcome == "held"


def test_uncommitted_records_are_not_in_the_input(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": 7}, visibility="aborted")
    marker = {"producer_id": 1, "producer_epoch": 0, "txn_end_offset": clean_run.skip("in", 0), "txn_end_ms": 2_000}
    clean_run.tables["input"][-1].update(marker)
    path = ask(function(clean_run, tmp_path, RIGHT))
    assert judge(path).outcome == "held"


def test_the_source_columns_of_the_output_give_the_cause(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    code = """
        import json

        def expected(tables):
            rows = [{"p": r["partition"], "o": r["offset"], **json.loads(r["value"])} for r in tables["in"].to_pylist()]
            return {"rows": rows, "events": rows}
    """
    clean_run.scenario["outputs"]["events"]["source"] = {"partition": "p", "offset": "o"}
    path = ask(function(clean_run, tmp_path, code))
    with open_case(path) as case:
        assert not case.expectations["rows"].has_cause
        assert case.expectations["events"].has_cause
        causes = case.rows("""SELECT topic, "partition", "offset", "key" FROM judge.expected
                              WHERE output = 'events' ORDER BY ALL LIMIT 2""")
    assert causes == [
        {"topic": "in", "partition": 0, "offset": 0, "key": "k0"},
        {"topic": "in", "partition": 0, "offset": 1, "key": "k1"},
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def expected(tables):\n    return 1 / 0", "ZeroDivisionError: division by zero"),
        ("import no_such_package_anywhere", "No module named 'no_such_package_anywhere'"),
        ("def expected(tables):\n    raise ValueError('hush-hush')", "ValueError: ***"),
    ],
)
def test_a_function_that_fails_is_inconclusive_with_its_error(
    clean_run: Any, tmp_path: Path, ask: Any, code: str, message: str
) -> None:
    verdict = judge(ask(function(clean_run, tmp_path, code)))
    assert verdict.outcome == "inconclusive"
    (reason,) = [reason for reason in verdict.reasons if message in reason]
    assert reason.startswith("oracle: function: {here}/oracle_of_test.py:expected failed")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"p": 0, "o": random.random()}', 'only the first call has {"o":'),
        ('{"p": 0, "o": time.time_ns()}', 'only the first call has {"o":'),
        ('{"p": 0, f"c{os.getpid()}": 1}', "with columns c"),
    ],
)
def test_a_function_whose_second_answer_differs_is_inconclusive(
    clean_run: Any, tmp_path: Path, ask: Any, row: str, message: str
) -> None:
    code = "import os, random, time\ndef expected(tables):\n    return {'rows': [], 'events': [ROW]}".replace(
        "ROW", row
    )
    verdict = judge(ask(function(clean_run, tmp_path, code)))
    assert verdict.outcome == "inconclusive"
    (reason,) = [reason for reason in verdict.reasons if "is not a function of its input" in reason]
    assert "returned other rows for output 'events'" in reason
    assert message in reason


def test_an_ignored_column_may_differ_between_calls(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    code = RIGHT.replace("import json", "import json, os").replace('"_topic"', '"loaded": os.getpid(), "_topic"')
    for output in clean_run.scenario["outputs"].values():
        output["ignore"] = ["loaded"]
    assert judge(ask(function(clean_run, tmp_path, code))).outcome == "held"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "returned a list"),
        ({"rows": []}, "returned nothing for output 'events'"),
        ({"rows": [], "events": [], "event": []}, "did you mean 'events'"),
        ({"rows": [3], "events": []}, "a row of output 'rows' is a int"),
        ({"rows": "text", "events": []}, "the rows of output 'rows' are a str"),
    ],
)
def test_an_answer_of_the_wrong_type_is_refused(answer: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        tables_of(answer, {"rows": ["p"], "events": ["p"]})


@pytest.mark.parametrize(
    ("code", "message"),
    [("def other(): pass", "has no attribute 'expected'"), ("expected = 3", "is a int, not a function")],
)
def test_a_file_without_the_function_is_refused(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "no_function_of_test.py").write_text(code)
    with pytest.raises((AttributeError, TypeError), match=message):
        load_function(f"{tmp_path}/no_function_of_test.py:expected")


def test_an_answer_without_an_identity_column_is_inconclusive(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    verdict = judge(ask(function(clean_run, tmp_path, RIGHT.replace('"p": r', '"q": r'))))
    assert verdict.outcome == "inconclusive"
    assert any("has no column 'p', which is part of its identity" in reason for reason in verdict.reasons)


def test_a_function_that_does_not_end_is_inconclusive(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    clean_run.scenario["limits"] = {"deadline_s": 0.5}
    verdict = judge(ask(function(clean_run, tmp_path, "import signal\n\ndef expected(tables):\n    signal.pause()")))
    assert any("did not end within 0.5 s (limits.deadline_s)" in reason for reason in verdict.reasons)


def test_a_run_that_ended_before_its_oracle_was_asked_is_inconclusive(clean_run: Any, tmp_path: Path) -> None:
    verdict = judge(function(clean_run, tmp_path, RIGHT).save())
    assert verdict.outcome == "inconclusive"
    assert any("before its oracle was asked" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("damage", ["gone", "cut", "pages"])
def test_damaged_expectations_are_never_held(clean_run: Any, tmp_path: Path, ask: Any, damage: str) -> None:
    path = ask(function(clean_run, tmp_path, RIGHT))
    file = expected_file(path, "events")
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    else:
        file.write_bytes(whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :])
    if damage == "gone":
        assert judge(path).outcome == "inconclusive"
    else:
        with pytest.raises(HistoryError, match=r"events\.parquet is damaged"):
            judge(path)


def test_rows_may_come_in_many_forms() -> None:
    import pandas as pd
    import pyarrow as pa

    outputs = {name: ["a"] for name in ("dicts", "arrow", "frame", "none")}
    given = {
        "dicts": ({"a": n, **({"b": None} if n else {"c": "x"})} for n in range(2)),
        "arrow": pa.table({"a": [1]}),
        "frame": pd.DataFrame({"a": [1, 2]}, index=[7, 9]),
        "none": [],
    }
    tables = tables_of(given, outputs)
    assert tables["dicts"].to_pylist() == [{"a": 0, "c": "x", "b": None}, {"a": 1, "c": None, "b": None}]
    assert tables["dicts"].schema.field("b").type == pa.string()  # Parquet cannot store a column of nulls only
    assert tables["frame"].to_pylist() == [{"a": 1}, {"a": 2}]
    assert tables["none"].column_names == ["a"]


@pytest.mark.parametrize("name", ["expected", "module:", "my file:f", "a.b:c-d", ""])
def test_validate_refuses_a_name_that_is_not_a_function_s(name: str) -> None:
    spec = PythonSpec(kind="python", function=name)
    (problem,) = PythonOracle.problems(spec, None)  # type: ignore[arg-type]
    assert problem.loc == ("function",)
    assert "module:function" in problem.message


def test_run_json_records_the_expectation(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    path = ask(function(clean_run, tmp_path, RIGHT))
    assert json.loads((path / "run.json").read_text())["expectation"] == {"kind": "python", "failed": None}


@pytest.mark.parametrize("when", ["at its first call", "at its second call"])
def test_a_function_that_exits_gives_no_answer(clean_run: Any, tmp_path: Path, ask: Any, when: str) -> None:
    code = f"""
        import os
        import pathlib

        def expected(tables):
            mark = pathlib.Path({str(tmp_path)!r}, "called")
            if mark.exists() or {when == "at its first call"}:
                os._exit(0)
            mark.touch()
            return {{"rows": [], "events": []}}
    """
    verdict = judge(ask(function(clean_run, tmp_path, code)))
    assert verdict.outcome == "inconclusive"
    assert "ended its process with exit code 0 before it returned its rows" in verdict.reasons[0], verdict.reasons


@pytest.mark.parametrize("names", [["n", "v", "v"], ["n", "v", "V"]])
def test_a_table_with_a_column_twice_is_refused(names: list[str]) -> None:
    """DuckDB would rename the second one, and the output would seem to lack it."""
    with pytest.raises(
        ValueError, match=f"'out' have several columns of one name, in upper or lower case: v, {names[2]}"
    ):
        tables_of({"out": pa.table([[1], [2], [3]], names=names)}, {"out": ["n"]})
