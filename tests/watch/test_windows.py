"""The windows of a watch, without services: random interleavings of input and output against a brute-force answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from onceproof.history.schema import TABLES
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load_to_judge
from onceproof.watch.judging import Settlement, Windows
from onceproof.watch.summary import Tally, verdict_on

SCENARIO = """
input: [{topic: orders}]
outputs:
  out: {topic: copies, identity: [id]}
oracle:
  kind: sql
  queries:
    out: SELECT id, v, _partition, _offset, _key FROM orders WHERE v IS NOT NULL
"""


def scenario(folder: Path, text: str = SCENARIO) -> Scenario:
    path = folder / "watched.yaml"
    path.write_text(text)
    return load_to_judge(path)


def batch(table: str, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=TABLES[table])


def order(number: int, offset: int, value: str | None = None) -> dict[str, Any]:
    text = value if value is not None else json.dumps({"id": number, "v": number * 2})
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "key": b"k",
        "value": text.encode(),
        "visibility": "committed",
    }


def copy(number: int, offset: int, v: int | None = None, content: str | None = None) -> dict[str, Any]:
    text = content if content is not None else json.dumps({"id": number, "v": number * 2 if v is None else v})
    row = {"output": "out", "op": "insert", "partition": 0, "offset": offset, "key": b"k", "content": text}
    return {**row, "visibility": "committed"}


@dataclass
class Run:
    """Feeds windows like a session does: what was written before a window is closed has been read by then."""

    windows: Windows
    tally: Tally = field(default_factory=Tally)
    settled: list[Settlement] = field(default_factory=list)
    inputs: int = 0
    outputs: int = 0

    def input(self, *numbers: int) -> None:
        rows = [order(number, self.inputs + at) for at, number in enumerate(numbers)]
        self.inputs += len(rows)
        self.windows.add_input(batch("input", rows), 0.0)

    def output(self, *numbers: int, v: int | None = None) -> None:
        rows = [copy(number, self.outputs + at, v) for at, number in enumerate(numbers)]
        self.outputs += len(rows)
        self.windows.add_output(batch("output", rows))

    def close(self) -> None:
        self.windows.close({("out", 0): self.outputs}, 0.0)

    def settle(self) -> Settlement:
        done = self.windows.settle(float(len(self.settled)))
        self.settled.append(done)
        self.tally.add(done)
        return done

    def anomalies(self) -> dict[str, int]:
        return {anomaly: finding.total for (anomaly, _), finding in self.tally.findings.items()}


def begin(folder: Path, text: str = SCENARIO, remember_s: float = 600.0) -> Run:
    windows = Windows(scenario(folder, text), folder, remember_s)
    windows.begin({})
    return Run(windows)


@dataclass(frozen=True)
class Fate:
    """What becomes of one input record: when its rows are written, counted in input records after it."""

    after: tuple[int, ...]
    wrong: bool = False


fates = st.one_of(
    st.just(Fate((0,))),
    st.just(Fate((2,))),
    st.just(Fate(())),
    st.tuples(st.integers(0, 12), st.integers(0, 12)).map(Fate),
    st.integers(0, 12).map(lambda after: Fate((after,))),
    st.just(Fate((0,), wrong=True)),
)


@given(
    st.lists(fates, min_size=1, max_size=24), st.sets(st.integers(0, 36), max_size=4), st.integers(0, 6), st.booleans()
)
def test_every_row_is_named_as_a_brute_force_search_names_it(
    tmp_path_factory: Any, of_each: list[Fate], closings: set[int], grace: int, stranger: bool
) -> None:
    run = begin(tmp_path_factory.mktemp("windows"))
    due: list[int] = []
    closed_with: list[int] = []
    settled_at: dict[int, int] = {}  # input record -> step after which its window was settled
    steps = 37
    for step in range(steps):
        if step < len(of_each):
            run.input(step)
        for number, fate in enumerate(of_each):
            for _ in range(sum(number + after == step for after in fate.after)):
                run.output(number, v=-1 if fate.wrong else None)
        if stranger and step == 5:
            run.output(1_000)
        if step in closings or step == steps - 1:
            run.close()
            due.append(step + grace)
            closed_with.append(min(step + 1, len(of_each)))
        while due and (step >= due[0] or step == steps - 1):
            due.pop(0)
            run.settle()
            for number in range(closed_with[len(run.settled) - 1]):
                settled_at.setdefault(number, step)

    lost = sum(not fate.after for fate in of_each)
    wrong = sum(fate.wrong for fate in of_each)
    extra = sum(max(0, len(fate.after) - 1) for fate in of_each)
    late = sum(1 for number, fate in enumerate(of_each) if fate.after and number + min(fate.after) > settled_at[number])
    expected = {"lost-write": lost, "wrong-value": wrong, "duplicate": extra, "unexplained": int(stranger)}
    assert run.anomalies() == {anomaly: count for anomaly, count in expected.items() if count}
    assert run.tally.late == late
    assert run.tally.records == run.tally.expected == len(of_each)
    assert not run.tally.doubts and not run.windows.held
    verdict = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert verdict.outcome == ("violated" if lost or wrong or extra or stranger else "held")


def test_a_lost_row_is_named_with_its_input_and_taken_back_when_it_arrives(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(*range(5))
    run.output(0, 1, 3, 4)
    run.close()
    (found,) = run.settle().findings
    assert (found.anomaly, found.total, found.witnesses[0].cause) == ("lost-write", 1, "orders/0@2")
    assert "imported" not in found.witnesses[0].argument
    run.output(2)
    run.close()
    (late,) = run.settle().late
    assert (late.identity, late.position, late.window) == ({"id": "2"}, "copies/0@4", 0)
    assert run.anomalies() == {} and run.tally.late == 1


def test_a_row_that_comes_late_with_another_value_is_wrong_and_not_lost(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(0, 1)
    run.output(0)
    run.close()
    run.settle()
    run.output(1, v=-7)
    run.close()
    run.settle()
    assert run.anomalies() == {"wrong-value": 1} and run.tally.late == 0


def test_whether_keys_are_compared_is_decided_by_rows_that_the_input_explains(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(0)
    run.close()
    assert [f.anomaly for f in run.settle().findings] == ["lost-write"]  # no record of the output yet
    run.input(1)
    run.output(0, 1)
    run.close()
    assert len(run.settle().late) == 1
    run.input(2)
    run.windows.add_output(batch("output", [{**copy(2, 2), "key": b"another"}]))
    run.outputs += 1
    run.close()
    assert [f.anomaly for f in run.settle().findings] == ["wrong-value"]
    assert not run.tally.doubts


def test_a_row_that_is_forgotten_and_comes_again_is_still_found(tmp_path: Path) -> None:
    run = begin(tmp_path, remember_s=0.5)
    run.input(0)
    run.output(0)
    run.close()
    run.settle()
    run.input(1)
    run.output(1)
    run.close()
    run.settle()  # a second later: the first window is forgotten
    run.output(0)
    run.close()
    (found,) = run.settle().findings
    assert found.anomaly == "unexplained" and "settled more than 0.5 s ago" in found.summary
    assert len(list((tmp_path / "settled").iterdir())) <= 4


def test_records_before_the_start_explain_rows_and_are_not_judged(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.windows.begin({}, lead_in=True)
    run.input(0, 1, 2)
    run.windows.close({}, 0.0)
    run.windows.begin(run.windows.open.start)
    run.output(1)  # those of 0 and 2 may have been written before
    assert not run.settle().findings
    run.output(2)
    run.input(3)
    run.output(3)
    run.close()
    assert not run.settle().findings
    assert run.tally.records == 1 and run.tally.windows == 1


def test_a_field_that_is_missing_in_a_window_is_known_from_earlier_ones(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(0)
    run.output(0)
    run.close()
    run.settle()
    run.windows.add_input(batch("input", [order(1, 1, '{"id": 1}')]), 0.0)  # no v: no row is due
    run.inputs += 1
    run.close()
    done = run.settle()
    assert not done.doubts and not done.findings and done.expected == 0


def test_a_value_that_is_no_json_object_is_a_doubt_and_the_rest_is_judged(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(0, 1)
    run.output(0)
    run.windows.add_output(batch("output", [copy(0, 1, content="not json")]))
    run.outputs += 1
    run.close()
    done = run.settle()
    assert [finding.anomaly for finding in done.findings] == ["lost-write"]
    assert done.doubts == ["1 record of output out cannot be read as a JSON object, the first at copies/0@1"]
    assert run.windows.held == [] or sum(rows.num_rows for rows in run.windows.held) == 0


def test_a_window_that_cannot_be_judged_makes_the_verdict_inconclusive(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.windows.add_input(batch("input", [order(0, 0, '{"other": 1}')]), 0.0)
    run.inputs = 1
    run.output(7)
    run.close()
    done = run.settle()
    assert done.unjudged and "window 0 (orders/0@0 to 0) cannot be judged" in done.doubts[0]
    assert verdict_on(run.windows.scenario, run.tally, run.windows, 1.0).outcome == "inconclusive"


def test_a_claim_that_allows_duplicates_is_undecided_by_them(tmp_path: Path) -> None:
    run = begin(tmp_path, SCENARIO + "claim: {delivery: at-least-once}\n")
    run.input(0)
    run.output(0, 0)
    run.close()
    run.settle()
    run.output(0)
    run.close()
    run.settle()
    assert verdict_on(run.windows.scenario, run.tally, run.windows, 1.0).outcome == "inconclusive"


def test_a_large_window_is_closed_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("onceproof.watch.judging.MOST_RECORDS", 10)
    run = begin(tmp_path)
    for first in range(0, 25, 5):
        run.input(*range(first, first + 5))
    assert [window.records for window in run.windows.closed] == [10, 10]
    run.output(*range(25))
    run.close()
    counts = Counter(len(run.settle().findings) for _ in range(3))
    assert counts == {0: 3} and run.tally.records == 25


def test_rows_that_come_before_any_input_wait_for_a_window_that_can_be_judged(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.output(901, 902)
    run.close()
    assert not run.settle().findings
    run.input(1)
    run.output(1)
    run.close()
    run.settle()
    assert run.anomalies() == {"unexplained": 2}


def test_a_job_that_loses_the_keys_of_its_input_is_violated(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(1)
    run.windows.add_output(batch("output", [{**copy(1, 0), "key": None}]))
    run.outputs += 1
    run.close()
    run.settle()
    assert run.anomalies() == {"wrong-value": 1}


def test_records_without_keys_are_right_if_their_input_has_none(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.windows.add_input(batch("input", [{**order(1, 0), "key": None}]), 0.0)
    run.windows.add_output(batch("output", [{**copy(1, 0), "key": None}]))
    run.outputs += 1
    run.close()
    run.settle()
    assert verdict_on(run.windows.scenario, run.tally, run.windows, 1.0).outcome == "held"


def test_the_verdict_names_the_row_that_is_still_missing(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.input(1, 2, 3)
    run.output(2)
    run.close()
    run.settle()
    run.output(1)  # late
    run.close()
    run.settle()
    verdict = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert verdict.reasons[0] == "lost-write in output out: 1 record; the first: {'id': '3'}"
    (lost,) = verdict.findings
    assert [witness.identity for witness in lost.witnesses] == [{"id": "3"}]


def test_a_late_row_leaves_no_doubt_under_at_most_once(tmp_path: Path) -> None:
    run = begin(tmp_path, SCENARIO + "claim: {delivery: at-most-once}\n")
    run.input(1, 2)
    run.output(1)
    run.close()
    run.settle()
    before = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert before.outcome == "inconclusive" and "a watch records no faults" in before.reasons[0]
    run.output(2)
    run.close()
    run.settle()
    assert verdict_on(run.windows.scenario, run.tally, run.windows, 1.0).outcome == "held"


def test_records_that_could_not_be_judged_are_reported_with_the_cause(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.tally.open, run.tally.problem = 1, "Kafka at h:1 does not answer"
    verdict = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert verdict.reasons == (
        "1 input record had been read, and could not be judged in time: Kafka at h:1 does not answer",
    )


def test_a_watch_in_which_an_output_must_hold_nothing_is_not_held(tmp_path: Path) -> None:
    text = SCENARIO.replace("outputs:", "outputs:\n  rare: {topic: rare, identity: [id]}")
    text += "    rare: SELECT id, v, _partition, _offset, _key FROM orders WHERE v > 100\n"
    run = begin(tmp_path, text)
    run.input(1, 2)
    run.output(1, 2)
    run.close()
    run.settle()
    verdict = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert verdict.outcome == "inconclusive" and verdict.counts["expected"] == 2
    assert verdict.reasons == ("the oracle expects nothing in output rare of the input that was judged",)
    run.input(60)
    run.output(60)
    row = {**copy(60, 0), "output": "rare"}
    run.windows.add_output(batch("output", [row]))
    run.windows.close({("out", 0): run.outputs, ("rare", 0): 1}, 0.0)
    run.settle()
    verdict = verdict_on(run.windows.scenario, run.tally, run.windows, 1.0)
    assert (verdict.outcome, verdict.counts["expected"]) == ("held", 4), verdict.reasons
