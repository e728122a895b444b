"""An oracle is a function of its inputs: it needs no open case, keeps no state, and its views do not affect each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import NotEvaluated
from onceproof.history.reader import open_history
from onceproof.judge.verdict import judge
from onceproof.oracle import oracles
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import COMMITTED, InputRecords, Inputs, Range, View
from onceproof.scenario.model import Scenario

QUERY = 'SELECT n, _partition, _offset FROM "in" ORDER BY n'
CLOSES = "make_timestamp(1000 * n)"

Open = Callable[..., InputRecords]


@pytest.fixture
def records(stored_run: Any, tmp_path: Path) -> Iterator[Open]:
    """The input of the run, without the judge."""
    opened = []

    def records_of(**oracle: Any) -> InputRecords:
        stored_run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["n"]}}
        scenario = Scenario.model_validate({**stored_run.scenario, "oracle": oracle})
        history = open_history(stored_run.save())
        found = InputRecords(history, scenario, tmp_path / "inputs")
        opened.append(found)
        found.observe()
        found.decode()
        return found

    yield records_of
    for each in opened:
        each.close()


def ask(inputs: Inputs, **oracle: Any) -> Expectation:
    kind = oracles.get(oracle["kind"])
    return kind(kind.Spec.model_validate(oracle)).expect(inputs)


def held(inputs: Inputs, answer: Expectation) -> list[int]:
    return [row["n"] for row in inputs.rows(answer.outputs["events"].query)]


def test_the_answer_follows_from_the_inputs_alone(stored_run: Any, records: Open) -> None:
    for n in (1, 2):
        stored_run.send("k", {"n": n})
    oracle = {"kind": "sql", "queries": {"events": QUERY}}
    inputs = records(**oracle).seen()
    answer = ask(inputs, **oracle)
    assert answer == ask(inputs, **oracle)
    assert held(inputs, answer) == [1, 2]
    assert inputs.types(answer.outputs["events"].query) == {"n": "BIGINT", "_partition": "INTEGER", "_offset": "BIGINT"}


def test_a_view_stays_the_same_after_other_views_are_queried(stored_run: Any, records: Open) -> None:
    for n, visibility in ((1, "committed"), (2, "aborted"), (3, "open"), (4, "committed")):
        stored_run.send("k", {"n": n}, visibility=visibility)
    oracle = {"kind": "sql", "queries": {"events": QUERY}}
    opened = records(**oracle)
    second = (Range("in", 0, 1, 2),)
    shown = {
        COMMITTED: [1, 4],
        View(uncommitted=True): [1, 2, 3, 4],
        View(uncommitted=True, only=second): [2],
        View(uncommitted=True, without=second): [1, 3, 4],
        View(only=second): [],
        View(only=()): [],
        View(only=(*second, Range("in", 0, 3, 9))): [4],
    }
    for _ in range(2):
        assert {view: held(opened.seen(view), ask(opened.seen(view), **oracle)) for view in shown} == shown


def test_late_records_that_may_count_are_in_a_view_of_their_own(stored_run: Any, records: Open) -> None:
    for n in (10, 20, 30):
        stored_run.send("k", {"n": n})
    stored_run.batch(0, {0: (0, 3)}, by=(0, 0))
    stored_run.tables["batches"][-1].update(watermark_ms=20)
    oracle = {"kind": "sql", "queries": {"events": QUERY}, "windows": {"in": {"closes": CLOSES}}}
    opened = records(**oracle)
    assert opened.late == {"late.in": 0, "may.in": 2}
    late, without = opened.seen(View(late=True)), opened.seen()
    assert (held(late, ask(late, **oracle)), held(without, ask(without, **oracle))) == ([10, 20, 30], [30])


def test_a_stored_answer_is_for_committed_input_only(stored_run: Any, records: Open) -> None:
    oracle = {"kind": "python", "function": "some_module:function"}
    with pytest.raises(NotEvaluated, match="about the committed input"):
        ask(records(**oracle).seen(View(uncommitted=True)), **oracle)


def test_the_judge_asks_any_oracle_with_its_inputs_only(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that is registered through an entry point needs only the contract."""
    asked = []

    class Counted(oracles.get("sql")):  # type: ignore[misc]
        def expect(self, inputs: Inputs) -> Expectation:
            asked.append(inputs.view)
            answer: Expectation = super().expect(inputs)
            return answer

    monkeypatch.setitem(oracles._items, ("sql",), Counted)
    assert judge(clean_run.save()).outcome == "held"
    assert asked == [COMMITTED, COMMITTED]  # the second time, the rows are in another order


@pytest.mark.parametrize("topic", ["in", "input"])
def test_no_name_shows_an_oracle_records_that_are_not_committed(stored_run: Any, topic: str) -> None:
    run = stored_run
    run.scenario["input"] = [{"topic": topic, "dataset": "numbers"}]
    run.scenario["outputs"] = {"out": {"topic": "out", "identity": ["id"]}}
    query = "SELECT (decode(value)->>'id')::INT AS id FROM history.input"
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    for n, visibility in enumerate(("committed", "aborted")):
        run.send("k", {"id": n}, topic=topic, visibility=visibility)
    run.record("out", {"id": 0})
    assert judge(run.save()).outcome == "held"
    run.record("out", {"id": 1})
    assert judge(run.save()).anomalies() == {"unexplained": 1}
    run.scenario["oracle"]["queries"]["out"] = query.replace("history.", "observed.")
    assert any("observed.input, which is not the input" in reason for reason in judge(run.save()).reasons)
