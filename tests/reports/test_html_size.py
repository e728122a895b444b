"""The page of a run has at most 1 MB, whatever the run is, and says what it leaves out and where that is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceproof.base.timeline import Event
from onceproof.faults.evidence.item import Evidence
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import BatchReport, FaultReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.judge.shown_rows import InputRecord, ShownRow, ShownRows
from onceproof.reports.html import run_page
from onceproof.reports.html.limits import MOST_BYTES, SIZES, spread
from onceproof.reports.html.page import is_ours
from onceproof.reports.html.run_page import page
from onceproof.reports.html.source import Batch, SinkCommit, StoredRun
from onceproof.reports.html.timeline import timeline

from .test_html import Parsed

QUOTED = json.dumps({"a": '"<&>"' * 60})
#: What one character becomes on a page: up to six bytes as an escape.
COSTLY = ('"', "<", "&", "\u202e", "\x00", "\ud800", "\U0001d11e", "x")


def run_of(verdict: Verdict, **more: Any) -> StoredRun:
    record = RunRecord.model_validate({"scenario": {"name": "job"}, **more.pop("record", {})})
    return StoredRun(Path("/runs/one"), record, verdict, **more)


def findings(number: int, columns: int, value: str, witnesses: int = 32, rows: int = 4) -> dict[str, Any]:
    """As many findings, each with witnesses that have rows on both sides. Not yet a run: see `run_of`."""
    ids = [{"id": f"{n}"} for n in range(witnesses)]
    found = tuple(
        Finding(
            f"a{n}",
            f"t{n}",
            10**6,
            value,
            tuple(Witness(one, f"{value}\n{value}", value, 1, (value,) * 9) for one in ids),
            attribution={f"{value}{k}": k for k in range(30)},
        )
        for n in range(number)
    )
    wide = tuple(ShownRow({f"{n} {value}": value for n in range(columns)}, n) for n in range(rows))
    shown = tuple(
        ShownRows(one.output, id_, wide, wide, InputRecord("in/0@1", value, value)) for one in found for id_ in ids
    )
    return {"findings": found, "rows": shown}


def everything(number: int, text: str) -> StoredRun:
    """``number`` of all that a run can have, each with this text."""
    many = [f"{n} {text}" for n in range(number)]
    parts = findings(min(number, 60), min(number, 60), text, min(number, 32))
    faults = tuple(
        FaultReport(one, text, text, 1, text, True, True, True, tuple(map(Evidence, many[:50]))) for one in many
    )
    batches = tuple(
        BatchReport(text, n, 0, 1, 9, tuple(many[:50]), Outcome.VIOLATED, dict.fromkeys(many[:50], 1))
        for n in range(number)
    )
    quotes = '"' * 250
    names = ("message", "service", "fault", "target", "point", "query", "sink", "frame", "action", "why", "topic")
    kinds = ("warning", "job.started", "stack.ready", "fault.fired", "batch.planned", "sink.commit", "feed.chunk")
    events = [
        Event(1.0 + n, kind, {**dict.fromkeys(names, one), "index": n, "start": n, "batch": n, "records": 3})
        for n, one in enumerate(many)
        for kind in kinds
    ]
    verdict = Verdict(
        text,
        Outcome.VIOLATED,
        StatedClaim(dict.fromkeys(many, text), {one: {text: text} for one in many}),
        tuple(many),
        parts["findings"],
        faults,
        dict.fromkeys(many, text),
        dict.fromkeys(many, 1),
        batches,
        dict.fromkeys(many, many[:50]),
    )
    return run_of(
        verdict,
        record={"versions": dict.fromkeys(many, text), "machine": dict.fromkeys(many, text), "scenario_path": text},
        rows=parts["rows"],
        events=tuple(events),
        batches=tuple(Batch(one, n, 1.0 + n, 0, 2.0 + n, 1, 3) for n, one in enumerate(many)),
        commits=tuple(SinkCommit(one, 1.0 + n, 2) for n, one in enumerate(many)),
        logs=tuple(f"{n}{quotes}" for n in range(60)),
        notes=tuple(many),
    )


def size(text: str) -> int:
    return len(text.encode())


def test_values_full_of_quotes_are_measured_as_the_page_writes_them() -> None:
    parts = findings(20, 40, QUOTED, witnesses=12)
    made = page(
        run_of(Verdict("job", Outcome.VIOLATED, StatedClaim(), ("why",), parts["findings"]), rows=parts["rows"])
    )
    assert size(made) <= MOST_BYTES
    text = Parsed(made).text
    assert "This page does not show everything" in text and "witnesses/rows.json has them" in text
    assert text.count("breaks the claim") == 20, "each finding is still there"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"reasons": tuple(f"{n} {'<' * 2000}" for n in range(1000))}, "more reasons are not shown here. verdict.json"),
        ({"counts": {f"{n} {'<' * 200}": n for n in range(20_000)}}, "more counts are not shown here. verdict.json"),
        ({"ignored": {f"t{n}": ["c" * 99] * 99 for n in range(2000)}}, "more outputs with ignored columns are not"),
        ({"not_evaluated": {f"c{n}": "&" * 2000 for n in range(1000)}}, "more checkers without evaluation are not"),
        (
            {"batches": tuple(BatchReport("q", n, 0, 1, 5, ("'" * 500,) * 99, Outcome.HELD) for n in range(500))},
            "of 500 batches are shown. verdict.json has all.",
        ),
        (
            {"faults": (FaultReport("crash", "driver", "q", 1, "p", True, True, True, (Evidence("e"),) * 90),) * 999},
            "more faults are not shown here. verdict.json",
        ),
    ],
)
def test_each_list_of_a_verdict_is_cut_and_says_where_the_rest_is(more: dict[str, Any], what: str) -> None:
    made = page(run_of(Verdict("job", Outcome.VIOLATED, **{"claim": StatedClaim(), "reasons": ("why",), **more})))
    assert size(made) <= MOST_BYTES
    assert what in Parsed(made).text


def test_what_is_not_drawn_and_the_rest_of_a_witness_are_counted() -> None:
    witness = Witness({"id": 1}, "\n".join(["why"] * 15), "in/0@1", 1, tuple(f"t xid {n}" for n in range(9)))
    found = Finding("duplicate", "t", 1, "1 extra row", (witness,))
    events = [Event(1.0 + n, "feed.chunk", {"topic": "in", "chunk": n, "of": 250, "records": 1}) for n in range(250)]
    events += [Event(1.0, "stack.ready", {"service": f"s{n}"}) for n in range(30)]
    made = page(
        run_of(
            Verdict("job", Outcome.VIOLATED, StatedClaim(), ("why",), (found,)),
            events=tuple(events),
            batches=tuple(Batch("q", n, 1.0 + n, 0, 2.0 + n, 0, 3) for n in range(301)),
            commits=tuple(SinkCommit("t", 1.0 + n, 2) for n in range(210)),
            notes=tuple(f"note {n}" for n in range(101)),
        )
    )
    text = Parsed(made).text
    assert "1 more batch is not drawn." in text and "60 more marks are not drawn." in text
    assert "more lanes are not drawn." in text and "more driver start" not in text
    assert "(5 more lines)" in text and "t xid 5, and 3 more" in text and "1 more note is not shown here" in text


@pytest.mark.parametrize(
    ("number", "most", "expected"),
    [(3, 5, (0, 1, 2)), (11, 3, (0, 5, 10)), (1000, 2, (0, 999)), (4, 1, (0,)), (4, 0, ())],
)
def test_what_is_drawn_of_a_long_list_is_from_all_of_it(number: int, most: int, expected: tuple[int, ...]) -> None:
    assert spread(range(number), most) == expected


def test_the_last_batches_and_commits_of_a_long_run_are_drawn() -> None:
    """The first 200 commits alone would look as if the job had stopped."""
    batches = tuple(Batch("q", n, 1.0 + n, 0, 2.0 + n, int(n == 500), 3) for n in range(1000))
    commits = tuple(SinkCommit("t", 1.0 + n, 2) for n in range(900))
    drawn = timeline(
        run_of(Verdict("job", Outcome.HELD, StatedClaim(), ()), batches=batches, commits=commits), (), SIZES[0]
    )
    assert drawn is not None
    bars, ticks = (next(lane for lane in drawn.lanes if lane.name == name) for name in ("batches q", "commits t"))
    assert [len(bars.bars), len(ticks.ticks)] == [300, 200] and drawn.hidden[:1] == ((700, "batch"),)
    assert {bars.bars[0].start, bars.bars[-1].start} == {1.0, 1000.0} and ticks.ticks[-1].at == 900.0
    assert any(bar.label.startswith("500 ") for bar in bars.bars), "replayed batches are always drawn"


def test_a_long_text_says_how_much_of_it_is_missing() -> None:
    made = page(run_of(Verdict("job", Outcome.INCONCLUSIVE, StatedClaim(), ("x" * 5000,))))
    assert "(1,000 more characters)" in made and "This page does not show everything" not in made


@pytest.mark.parametrize("character", COSTLY)
def test_the_smallest_page_has_room_for_any_run(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "SIZES", SIZES[-1:])
    made = page(everything(100, character * 500))
    assert size(made) <= MOST_BYTES * 0.9
    assert is_ours(made), "its policy is whole, or it would have no style"


def links_lead_somewhere(made: str) -> bool:
    parsed = Parsed(made)
    inside = {str(link["href"])[1:] for link in parsed.all("a") if str(link["href"]).startswith("#")}
    return inside <= set(parsed.ids) and len(parsed.ids) == len(set(parsed.ids))


#: A large page takes a second of CPU time: the gate makes six, the other profiles as many as they set.
_RUNS = 6 if settings.get_current_profile_name() == "gate" else settings.default.max_examples


@settings(max_examples=_RUNS)
@given(
    st.integers(0, 45),
    st.lists(st.sampled_from(COSTLY), min_size=1, max_size=4).map("".join),
    st.integers(0, 300),
    st.sampled_from([everything, None]),
)
def test_no_run_has_a_larger_page(
    number: int, text: str, length: int, make: Callable[[int, str], StoredRun] | None
) -> None:
    if make is None:
        parts = findings(number, number, text * length)
        run = run_of(Verdict("job", Outcome.VIOLATED, StatedClaim(), ("why",), parts["findings"]), rows=parts["rows"])
    else:
        run = make(number, text * length)
    made = page(run)
    assert size(made) <= MOST_BYTES
    assert links_lead_somewhere(made)
