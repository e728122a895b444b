"""Late records and open windows are judged only by the offset ranges and watermarks that Spark logged."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.windows import WindowSpec, problems
from onceproof.oracle.sql import SqlOracle, SqlSpec
from onceproof.scenario.model import Scenario

from .properties.world import histories

# Tumbling windows of 10 ms over the field `t` (in ms since 1970).
START, CLOSES = "t - t % 10", "make_timestamp(1000 * (t - t % 10 + 10))"
UPDATE = f'SELECT {START} AS start, count(*) AS n FROM "in" GROUP BY ALL'
APPEND = f'SELECT {START} AS start, count(*) AS n, {CLOSES} AS _closes FROM "in" GROUP BY ALL'


class Windowed:
    """A run that counts records in windows. Batch N has the watermark W(N)."""

    def __init__(self, run: Any, query: str, **output: Any) -> None:
        self.run = run
        run.scenario["outputs"] = {"out": {"table": "out", "identity": ["start"], **output}}
        run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}, "windows": {"in": {"closes": CLOSES}}}
        self.batches = 0
        self.end = 0

    def batch(self, watermark: int, *times: int, query: str = "q", committed: bool = True) -> None:
        start = self.end
        for at in times:
            self.end = self.run.send(None, {"t": at}) + 1
        self.run.batch(self.batches, {0: (start, self.end)}, by=(0, 0 if committed else None))
        self.run.tables["batches"][-1].update(watermark_ms=watermark, query=query)
        self.batches += 1
        self.run.tables["progress"].clear()
        self.run.progress({0: self.end})

    def wrote(self, **windows: int) -> None:
        """Write the output. ``w10=3``: the window from 10 counts 3 records."""
        self.run.insert("out", *({"start": int(name[1:]), "n": n} for name, n in windows.items()))

    def verdict(self) -> Any:
        verdict = judge(self.run.save())
        assert not any("Error" in why for why in verdict.not_evaluated.values()), verdict.not_evaluated
        return verdict


@pytest.fixture
def update(stored_run: Any) -> Windowed:
    return Windowed(stored_run, UPDATE, kind="upsert")


@pytest.fixture
def append(stored_run: Any) -> Windowed:
    return Windowed(stored_run, APPEND)


def test_a_record_below_the_previous_batch_s_watermark_is_dropped_and_reported(update: Windowed) -> None:
    update.batch(0, 11, 12, 25)
    update.batch(20, 31)
    update.batch(25, 13, 32)  # W(1) is 20: the window from 10 closed at 20
    update.wrote(w10=2, w20=1, w30=2)
    verdict = update.verdict()
    assert (verdict.outcome, verdict.counts["late.in"]) == ("held", 1)
    assert "may.in" not in verdict.counts


def test_a_late_record_that_was_counted_anyway_is_a_wrong_value(update: Windowed) -> None:
    update.batch(0, 11, 12, 25)
    update.batch(20, 31)
    update.batch(25, 13)
    update.wrote(w10=3, w20=1, w30=1)
    assert update.verdict().anomalies() == {"wrong-value": 1}


@pytest.mark.parametrize(("closes_at", "late_records"), [(19, 0), (20, 1), (21, 1)])
def test_a_window_that_closes_at_the_watermark_is_late(update: Windowed, closes_at: int, late_records: int) -> None:
    update.batch(0, 11)
    update.batch(closes_at, 40)
    update.batch(closes_at, 12)
    update.wrote(w10=2 - late_records, w40=1)
    verdict = update.verdict()
    assert (verdict.outcome, verdict.counts["late.in"]) == ("held", late_records)


@pytest.mark.parametrize("counted", [1, 2])
def test_a_record_between_two_watermarks_may_count_or_not(update: Windowed, counted: int) -> None:
    update.batch(0, 11, 25)
    update.batch(20, 12)  # W(0) is 0 and W(1) is 20
    update.wrote(w10=counted, w20=1)
    verdict = update.verdict()
    assert (verdict.outcome, verdict.counts["may.in"]) == ("held", 1)


def test_a_value_that_neither_expectation_explains_is_wrong(update: Windowed) -> None:
    update.batch(0, 11, 25)
    update.batch(20, 12)
    update.wrote(w10=3, w20=1)
    assert update.verdict().anomalies() == {"wrong-value": 1}


@pytest.mark.parametrize("window", ["w10", "w20"])
def test_a_lost_window_is_lost_whether_or_not_a_record_may_count(update: Windowed, window: str) -> None:
    update.batch(0, 11, 25)
    update.batch(20, 12)
    update.wrote(w10=2, w20=1)
    del update.run.tables["output"][["w10", "w20"].index(window)]
    assert update.verdict().anomalies() == {"lost-write": 1}


def test_a_window_that_only_a_borderline_record_opens_may_be_missing(update: Windowed) -> None:
    update.batch(0, 25)
    update.batch(20, 12)
    update.wrote(w20=1)
    assert update.verdict().outcome == "held"


def test_a_duplicate_next_to_a_borderline_record_is_a_duplicate(append: Windowed) -> None:
    append.batch(0, 11, 25)
    append.batch(20, 12)
    append.wrote(w10=2)
    append.wrote(w10=2)
    assert append.verdict().anomalies() == {"duplicate": 1}


def test_borderline_records_in_several_batches_are_inconclusive(update: Windowed) -> None:
    update.batch(0, 11, 25)
    update.batch(20, 12)
    update.batch(30, 26)
    update.wrote(w10=2, w20=1)  # the first record counted and the second did not: each window alone is explained
    assert update.verdict().outcome == "held"
    update.run.tables["output"].clear()
    update.wrote(w10=3, w20=1)
    verdict = update.verdict()
    assert verdict.outcome == "inconclusive"
    assert any("neither with nor without the records" in reason for reason in verdict.reasons)


def test_tolerance_applies_to_both_expectations(stored_run: Any) -> None:
    query = f'SELECT {START} AS start, avg(t)::DOUBLE AS n FROM "in" GROUP BY ALL'
    run = Windowed(stored_run, query, kind="upsert", tolerance={"n": {"absolute": 0.1}})
    run.batch(0, 11, 25)
    run.batch(20, 12)
    run.run.insert("out", {"start": 10, "n": 11.45}, {"start": 20, "n": 25.0})
    assert run.verdict().outcome == "held"


def test_windows_that_are_still_open_are_not_judged(append: Windowed) -> None:
    append.batch(0, 11, 12, 25)
    append.batch(20, 31)  # closes only the window from 10
    append.wrote(w10=2)
    verdict = append.verdict()
    assert (verdict.outcome, verdict.counts["open.out"]) == ("held", 2)


def test_a_row_of_a_window_that_no_batch_has_closed_makes_the_run_inconclusive(append: Windowed) -> None:
    append.batch(0, 11, 12, 25)
    append.batch(20, 31)
    append.wrote(w10=2, w20=1, w30=7)
    verdict = append.verdict()
    assert (verdict.outcome, verdict.anomalies(), verdict.counts["open.out"]) == ("inconclusive", {}, 2)
    assert (
        "output out holds 2 rows of windows that no batch has closed, so they were not judged; the first is"
        in (verdict.reasons[0])
    )
    assert '"20"' in verdict.reasons[0]


def test_a_batch_that_is_not_committed_may_have_written_the_windows_that_it_closes(append: Windowed) -> None:
    append.batch(0, 11, 25)
    append.batch(20)
    append.batch(30, committed=False)
    append.wrote(w10=1, w20=1)
    assert append.verdict().outcome == "held"


def test_a_closed_window_must_be_there(append: Windowed) -> None:
    append.batch(0, 11, 12, 25)
    append.batch(30, 31)
    append.wrote(w10=2)
    assert append.verdict().anomalies() == {"lost-write": 1}


def test_a_window_is_due_once_a_batch_with_its_watermark_is_committed(append: Windowed) -> None:
    append.batch(0, 11, 25)
    append.batch(20)
    append.batch(30, committed=False)
    append.wrote(w10=1)
    assert append.verdict().outcome == "held"


def test_a_window_without_a_record_is_unexplained(append: Windowed) -> None:
    append.batch(0, 11, 25)
    append.batch(20)
    append.wrote(w10=1, w70=1)
    assert append.verdict().anomalies() == {"unexplained": 1}


def test_the_oracle_can_ask_for_all_records_and_whether_they_were_late(update: Windowed) -> None:
    update.batch(0, 11, 25)
    update.batch(20, 12)
    update.batch(25, 13)
    with open_case(update.run.save()) as case:
        rows = case.inputs.seen().rows("SELECT t, _batch, _watermark_ms, _late FROM in_with_late ORDER BY _offset")
    assert [tuple(row.values()) for row in rows] == [
        (11, 0, 0, "no"),
        (25, 0, 0, "no"),
        (12, 1, 20, "may"),
        (13, 2, 25, "dropped"),
    ]


def test_a_record_that_no_batch_planned_must_count(update: Windowed) -> None:
    update.batch(0, 11)
    update.batch(20, 25)
    update.run.send(None, {"t": 12})
    update.run.document["drained"] = False
    update.wrote(w10=1, w20=1)
    verdict = update.verdict()
    assert verdict.counts["late.in"] == 0
    assert verdict.outcome != "held"


def test_with_two_queries_the_scenario_must_name_one(update: Windowed) -> None:
    update.batch(0, 11)
    update.run.add("batches", {**update.run.tables["batches"][-1], "query": "other", "watermark_ms": 99})
    update.wrote(w10=1)
    verdict = update.verdict()
    assert verdict.outcome == "inconclusive"
    assert any("oracle: windows: in: queries other and q read it" in reason for reason in verdict.reasons)
    update.run.scenario["oracle"]["windows"]["in"]["query"] = "q"
    assert update.verdict().outcome == "held"


@pytest.mark.parametrize("closes", ["no_such_field", "'yesterday'"])
def test_an_unusable_closes_expression_is_inconclusive_and_named(update: Windowed, closes: str) -> None:
    update.batch(0, 11)
    update.run.scenario["oracle"]["windows"]["in"]["closes"] = closes
    update.wrote(w10=1)
    verdict = update.verdict()
    assert verdict.outcome == "inconclusive"
    assert any(reason.startswith("oracle: windows: in: ") for reason in verdict.reasons)


def spark(batches: list[tuple[int, list[int]]], *, one_watermark: bool, append: bool) -> dict[int, int]:
    """The counts that Spark writes for batches of (W(N), times of records): windows of 10 ms, by Spark's rules alone."""
    kept: dict[int, int] = {}
    written: dict[int, int] = {}
    before = 0
    for watermark, times in batches:
        for t in times:
            if t - t % 10 + 10 > (watermark if one_watermark else before):
                kept[t - t % 10] = kept.get(t - t % 10, 0) + 1
                if not append:
                    written[t - t % 10] = kept[t - t % 10]
        closed = {start: n for start, n in kept.items() if start + 10 <= watermark}
        if append:
            written |= closed
        before = watermark
    return written


BATCHES = st.lists(st.tuples(st.integers(0, 15), st.lists(st.integers(1, 60), max_size=4)), min_size=1, max_size=6)


@pytest.mark.parametrize("one_watermark", [False, True])
@pytest.mark.parametrize("mode", [UPDATE, APPEND])
@histories(12)
@given(steps=BATCHES)
def test_spark_s_output_is_held_and_one_record_more_is_not(
    make_run: Any, tmp_path_factory: Any, mode: str, one_watermark: bool, steps: list[tuple[int, list[int]]]
) -> None:
    run = Windowed(make_run(tmp_path_factory.mktemp("late") / "run"), mode, kind="upsert")
    marks = list(accumulate(rise for rise, _ in steps))
    batches = [(mark, times) for mark, (_, times) in zip(marks, steps, strict=True)]
    for mark, times in batches:
        run.batch(mark, *times)
    written = spark(batches, one_watermark=one_watermark, append=mode is APPEND)
    run.run.insert("out", *({"start": start, "n": n} for start, n in written.items()))
    verdict = run.verdict()
    assert verdict.anomalies() == {}, (batches, written, verdict.reasons)
    assert not any("neither" in reason for reason in verdict.reasons), (batches, written)
    if written:
        run.run.commit("out", *(("update", {"start": s, "n": n}, {"start": s, "n": n + 9}) for s, n in written.items()))
        assert run.verdict().outcome != "held", (batches, written)


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"inn": {"closes": "t"}}, "there is no input topic 'inn'"),
        ({"in": {"closes": "t; DROP TABLE x"}}, "this is not SQL"),
    ],
)
def test_validate(windows: Any, message: str) -> None:
    scenario = Scenario.model_validate(
        {
            "name": "small",
            "input": [{"topic": "in", "dataset": "numbers"}],
            "pipeline": {"command": ["job"]},
            "outputs": {"out": {"topic": "out", "identity": ["p"]}},
            "oracle": {"kind": "sql", "queries": {}},
        }
    )
    spec = SqlSpec(kind="sql", queries={"out": "SELECT 1 AS p"}, windows=windows)
    (problem,) = SqlOracle.problems(spec, scenario)
    assert problem.loc[:2] == ("windows", next(iter(windows)))
    assert message in problem.message
    assert problems({"in": WindowSpec(closes="t", query=None)}, scenario) == []


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (2, 2, "held"),
        (1, 1, "held"),
        (2, 1, "inconclusive"),
        (1, 2, "inconclusive"),
        (None, 1, "violated"),
        (None, 2, "violated"),
        (2, None, "violated"),
        (3, 1, "violated"),
    ],
)
def test_records_of_one_batch_that_may_count_all_count_or_none(
    stored_run: Any, a: int | None, b: int | None, outcome: str
) -> None:
    """Two keys of one window, each with a record in batch 1 that may count."""
    query = f'SELECT g, {START} AS start, count(*) AS n FROM "in" GROUP BY ALL'
    late = Windowed(stored_run, query, kind="upsert", identity=["g", "start"])
    for number, (watermark, records) in enumerate(
        [(0, [("a", 11), ("b", 12), ("a", 25)]), (20, [("a", 13), ("b", 14)])]
    ):
        offsets = [stored_run.send(None, {"g": g, "t": at}) for g, at in records]
        stored_run.batch(number, {0: (offsets[0], offsets[-1] + 1)})
        stored_run.tables["batches"][-1]["watermark_ms"] = watermark
    stored_run.progress({0: 5})
    rows = [{"g": g, "start": 10, "n": n} for g, n in (("a", a), ("b", b)) if n is not None]
    stored_run.insert("out", *rows, {"g": "a", "start": 20, "n": 1})
    verdict = late.verdict()
    assert (verdict.outcome, verdict.counts["may.in"]) == (outcome, 2)
    if outcome == "inconclusive":
        (reason,) = verdict.reasons
        counted, dropped = ("a", "b") if a == 2 else ("b", "a")
        assert "1 identity can be explained only with the records that came between two watermarks" in reason
        assert reason.index(f'"g":"{counted}"') < reason.index(f'"g":"{dropped}"')
