"""Oracle ``batch``: the outputs are compared with a command's Parquet, one file or a folder of files."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.verdict import judge
from onceproof.oracle.batch import BatchOracle, BatchSpec
from onceproof.scenario.model import Scenario

COMMAND = ["{python}", "{here}/batch_of_test.py", "{input.in}", "--rows={expected.rows}", "--events={expected.events}"]

# As Spark writes it: a folder of part files, next to files that hold no rows.
RIGHT = """
    import json, pathlib, sys
    import pyarrow as pa, pyarrow.parquet as pq

    table = pq.read_table(sys.argv[1])
    rows = [{"p": r["partition"], "o": r["offset"], **json.loads(r["value"])} for r in table.to_pylist()]
    for argument in sys.argv[2:]:
        folder = pathlib.Path(argument.partition("=")[2])
        folder.mkdir()
        (folder / "_SUCCESS").touch()
        (folder / ".part-0.parquet.crc").write_bytes(b"crc")
        pq.write_table(pa.Table.from_pylist(rows[:5]), folder / "part-0.parquet")
        pq.write_table(pa.Table.from_pylist(rows[5:]), folder / "part-1.parquet")
"""


def batch(run: Any, folder: Path, code: str) -> Any:
    (folder / "batch_of_test.py").write_text(textwrap.dedent(code))
    run.scenario["oracle"] = {"kind": "batch", "command": COMMAND}
    run.scenario["claim"] = {}
    return run


def test_the_outputs_are_compared_with_the_batch(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    assert judge(ask(batch(clean_run, tmp_path, RIGHT))).outcome == "held"


def test_a_wrong_value_is_found(clean_run: Any, tmp_path: Path, ask: Any) -> None:
    last = clean_run.tables["output"][-1]
    last["content"] = last["content"].replace('"n": 112', '"n": 113')
    (finding,) = [f for f in judge(ask(batch(clean_run, tmp_path, RIGHT))).findings if f.anomaly == "wrong-value"]
    assert (finding.output, finding.total) == ("events", 1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "it ended with exit code 3"),
        ("import sys; sys.exit('no Spark here')", "no Spark here"),
        ("pass", "wrote nothing to {expected.rows}"),
        ("import sys\nfor a in sys.argv[2:]: open(a.partition('=')[2], 'w').write('text')", "not readable as Parquet"),
    ],
)
def test_a_batch_that_fails_is_inconclusive(clean_run: Any, tmp_path: Path, ask: Any, code: str, message: str) -> None:
    verdict = judge(ask(batch(clean_run, tmp_path, code)))
    assert verdict.outcome == "inconclusive"
    assert [reason for reason in verdict.reasons if message in reason and reason.startswith("oracle: command")]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["job", "{input.inn}", "{expected.out}"], "no input 'inn'"),
        (["job", "{input.in}"], "writes nothing for output 'out'"),
        (["job", "{input.in}", "{expected.out}", "{expected.oot}"], "no expected 'oot'"),
        (["job", "{kafka}", "{expected.out}"], "the services of the run are gone"),
    ],
)
def test_validate_names_the_wrong_word(command: list[str], message: str) -> None:
    scenario = Scenario.model_validate(
        {
            "name": "small",
            "input": [{"topic": "in", "dataset": "numbers"}],
            "pipeline": {"command": ["job"]},
            "outputs": {"out": {"topic": "out", "identity": ["p"]}},
            "oracle": {"kind": "batch", "command": ["job"]},
        }
    )
    (problem,) = BatchOracle.problems(BatchSpec(kind="batch", command=command), scenario)
    assert message in problem.message
