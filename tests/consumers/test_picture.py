"""The picture of a run of consumers: what it shows of the trace, and that no text of a scenario can break it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from onceproof.base.errors import HistoryError
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.reports.picture import svg as picture_svg
from onceproof.reports.picture import text as picture_text
from onceproof.reports.picture.picture import Picture, of_run, of_trace
from onceproof.reports.picture.words import in_words
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

QUEUE = "orders"


def trace_of(*steps: str) -> list[TraceEvent]:
    """``"publish 3"``, ``"c2 take 3"``, ``"c1 again 3"``, ``"c2 crash"``: one event per tick."""
    made = []
    for tick, text in enumerate(steps):
        *who, what, number = text.split() if text[-1].isdigit() else [*text.split(), "0"]
        kind: Kind = "take" if what == "again" else what  # type: ignore[assignment]
        queue = "" if kind in ("crash", "start", "end") else QUEUE
        made.append(TraceEvent(kind, tick, 0.0, who[0] if who else "", int(number), queue, what == "again"))
    return made


REORDERED = trace_of(
    "publish 1", "publish 2", "c2 take 1", "c1 take 2", "c2 crash", "c2 return 1", "c1 effect 2", "c1 acknowledge 2",
    "c1 again 1", "c1 effect 1", "c1 acknowledge 1", "c2 start",
)  # fmt: skip


def picture(
    trace: list[TraceEvent], *, keys: list[str] | None = None, title: str = "t", consumers: str = "c1 c2", **mode: Any
) -> Picture:
    return of_trace(title, trace, consumers.split(), "out", keys or ["a"] * 60, **mode)


def late(drawn: Picture) -> set[int]:
    return {result.message for result in drawn.results if result.late}


def test_an_effect_after_that_of_a_later_message_is_late() -> None:
    drawn = picture(REORDERED)
    assert [(r.message, r.late, r.repeated) for r in drawn.results] == [(2, False, False), (1, True, False)]
    assert late(drawn) == {1}


def test_holds_and_absences_of_consumers_are_drawn() -> None:
    drawn = picture(REORDERED)
    c1, c2 = (next(i for i, lane in enumerate(drawn.lanes) if lane.name == name) for name in ("c1", "c2"))
    assert [(h.lane, h.message, h.crashed) for h in drawn.holds] == [(c2, 1, True), (c1, 2, False), (c1, 1, False)]
    ((lane, first, last),) = drawn.absences
    assert lane == c2 and drawn.rows[first].kind == "crash" and drawn.rows[last].kind == "start"


def test_an_effect_is_late_only_if_the_claim_promises_that_order() -> None:
    """Otherwise the picture would call out of order what the verdict allows."""
    assert late(picture(REORDERED, order="per-key")) == {1}
    assert not late(picture(REORDERED, keys=["a", "b"], order="per-key"))
    assert not late(picture(REORDERED, order="none"))


def test_an_uncommitted_effect_does_not_count_even_if_there_is_no_commit_at_all() -> None:
    drawn = picture(trace_of("publish 1", "c2 take 1", "c2 effect 1", "c2 crash"), with_effect=True)
    assert not drawn.results and "nothing came out" in picture_text.render(drawn)


def test_a_consumer_that_ended_by_itself_is_drawn_as_dead() -> None:
    drawn = picture(trace_of("publish 1", "c2 take 1", "c2 end"))
    assert [row.kind for row in drawn.rows] == ["publish", "take", "crash"] and drawn.holds[0].crashed


def test_a_run_without_input_is_refused_with_a_reason(tmp_path: Path) -> None:
    scenario = {"name": "x", "pipeline": {"consumers": {"names": ["c1"]}}}
    (tmp_path / "run.json").write_text(json.dumps({"scenario": scenario}))
    with pytest.raises(HistoryError, match="cannot be drawn: it has no 'input'"):
        of_run(tmp_path)


def test_each_table_of_a_group_has_its_own_lane(tmp_path: Path) -> None:
    document = load(find("fan-out")).model_dump(mode="json", by_alias=True)
    for name, output in document["outputs"].items():
        output |= {"topic": None, "table": f"{name}_rows"}
    (tmp_path / "run.json").write_text(json.dumps({"scenario": document}))
    (tmp_path / "events.jsonl").write_text("")
    drawn = of_run(tmp_path)
    assert drawn is not None
    assert [lane.name for lane in drawn.lanes if lane.kind == "output"] == [
        "billed_rows",
        "shipped_rows",
        "audited_rows",
    ]


def test_order_is_judged_per_queue() -> None:
    trace = trace_of("publish 1", "publish 2", "c1 take 2", "c1 effect 2", "c2 take 1", "c2 effect 1")
    apart = [TraceEvent(m.kind, m.tick, 0.0, m.consumer, m.message, f"q{m.message}", m.redelivered) for m in trace]
    drawn = picture(apart)
    assert not late(drawn)
    assert {queue: [r.message for r in results] for queue, results in drawn.by_queue().items()} == {
        "q1": [1],
        "q2": [2],
    }
    assert "what came out of q1: m1\nwhat came out of q2: m2" in picture_text.render(drawn)


def test_an_effect_of_an_uncommitted_transaction_does_not_count() -> None:
    trace = trace_of(
        "publish 1", "c2 take 1", "c2 effect 1", "c2 crash", "c2 return 1", "c1 again 1", "c1 effect 1",
        "c1 acknowledge 1", "c1 commit 1",
    )  # fmt: skip
    assert [(r.message, r.repeated) for r in picture(trace).results] == [(1, False)]


def test_a_second_effect_of_a_message_is_repeated_and_not_late() -> None:
    trace = trace_of("publish 1", "c2 take 1", "c2 effect 1", "c2 crash", "c2 return 1", "c1 again 1", "c1 effect 1")
    assert [(r.message, r.late, r.repeated) for r in picture(trace).results] == [(1, False, False), (1, False, True)]


def test_the_text_has_one_line_per_event() -> None:
    lines = picture_text.render(picture(REORDERED)).splitlines()
    expected = [
        "m1 --",
        "m2 --",
        "m1 --",
        "m2 --",
        "X crash",
        "m1 back",
        "m2 --",
        "ack",
        "m1 again",
        "m1 --",
        "ack",
        "back again",
    ]
    assert len(lines) == len(expected) + 3
    assert all(word in line for word, line in zip(expected, lines[1:], strict=False))
    assert lines[-1] == "what came out: m2, m1 (out of order)"


NASTY = 'x<script>alert("1")</script>&amp;\x00\x1b[31m\ud800\U0001f600' + "long" * 40


def test_no_text_of_a_scenario_breaks_the_svg() -> None:
    drawn = picture(REORDERED, keys=[NASTY, NASTY], title=NASTY, consumers="c1 c2")
    text = picture_svg.render(drawn)
    root = ET.fromstring(text.encode())
    assert "<script" not in text and not [e for e in root.iter() if e.tag.endswith("script")]
    assert "prefers-color-scheme: dark" in text
    shown = [e for e in root.iter() if e.tag.endswith("text")]
    assert max(len(e.text or "") for e in shown) <= 80
    whole = [child.text or "" for e in shown for child in e]
    assert any("long" * 40 in tooltip for tooltip in whole)


def test_the_svg_loads_nothing() -> None:
    text = picture_svg.render(picture(REORDERED))
    assert not any(word in text for word in ("href", "url(", "@import", "src="))


@pytest.mark.parametrize("messages", [0, 1, 50])
def test_the_picture_grows_with_the_messages(messages: int) -> None:
    steps = [
        w
        for n in range(1, messages + 1)
        for w in (f"publish {n}", f"c1 take {n}", f"c1 effect {n}", f"c1 acknowledge {n}")
    ]
    drawn = picture(trace_of(*steps))
    root = ET.fromstring(picture_svg.render(drawn))
    height = float(root.attrib["height"])
    assert all(float(e.attrib["y"]) < height for e in root.iter() if "y" in e.attrib)
    assert len(drawn.results) == messages
    text = picture_text.render(drawn)
    assert max(map(len, text.splitlines()), default=0) <= 80
    assert ("nothing came out" in text) is (messages == 0)


RETRIED = [
    *trace_of("publish 1", "publish 2", "c1 take 1", "c1 refuse 1"),
    TraceEvent("retry", 4, 0.0, "c1", 1, "later"),
    *trace_of("c1 acknowledge 1", "c1 take 2", "c1 effect 2", "c1 acknowledge 2"),
    *(TraceEvent(kind, 9, 0.0, "c2", 1, "later") for kind in ("take", "effect", "acknowledge")),
]


def test_a_message_from_a_retry_topic_is_late_in_the_order_of_its_original_queue() -> None:
    drawn = picture(RETRIED, queues_are="partition")
    assert [(lane.name, lane.caption) for lane in drawn.lanes if lane.kind == "queue"] == [
        (QUEUE, "partition"),
        ("later", "retry topic"),
    ]
    assert [(r.message, r.queue, r.late) for r in drawn.results] == [(2, QUEUE, False), (1, QUEUE, True)]
    assert [row.kind for row in drawn.rows if row.message == 1] == [
        "publish", "take", "refuse", "retry", "acknowledge", "again", "effect", "acknowledge",
    ]  # fmt: skip
    text = picture_text.render(drawn)
    assert "refused ~>" in text and "m1 later" in text and "m2, m1 (out of order)" in text
    assert "m1 refused" in picture_svg.render(drawn)


def test_each_group_has_its_own_lanes_and_results() -> None:
    trace = trace_of("publish 1", "publish 2", "a take 1", "b take 2", "a effect 1", "b effect 2", "b take 1", "b effect 1", "a take 2", "a effect 2")  # fmt: skip
    drawn = picture(trace, consumers="a b", output_of={"a": "of_a", "b": "of_b"})
    assert [lane.name for lane in drawn.lanes] == ["producer", QUEUE, "a", "of_a", "b", "of_b"]
    assert "again" not in {row.kind for row in drawn.rows}, "each group has its own copy"
    assert {named: [(r.message, r.late) for r in results] for named, results in drawn.by_queue().items()} == {
        f"{QUEUE} in of_a": [(1, False), (2, False)],
        f"{QUEUE} in of_b": [(2, False), (1, True)],
    }
    late = [drawn.lanes[row.target].name for row in drawn.rows if drawn.is_late(row)]
    assert late == ["of_b"], "message 1 is late in one output only"
    assert f"what came out of {QUEUE} in of_b: m2, m1 (out of order)" in picture_text.render(drawn)


def test_an_effect_is_drawn_at_the_output_that_its_consumer_names() -> None:
    """Two lines of one message in one output are not the message again; the same message after a crash is."""
    steps = trace_of("publish 1", "c1 take 1", "c1 effect 1", "c1 effect 1", "c1 effect 1", "c1 crash", "c1 start", "c1 take 1", "c1 effect 1")  # fmt: skip
    named = [replace(event, output="lines") if number in (3, 4, 8) else event for number, event in enumerate(steps)]
    drawn = picture(named, consumers="c1")
    assert [lane.name for lane in drawn.lanes] == ["producer", QUEUE, "c1", "out", "lines"]
    assert [drawn.lanes[row.target].name for row in drawn.rows if row.kind == "effect"] == ["out", *["lines"] * 3]
    assert {name: [r.repeated for r in of_one] for name, of_one in drawn.by_queue().items()} == {
        f"{QUEUE} in out": [False],
        f"{QUEUE} in lines": [False, True],
    }


def test_a_lost_acknowledgement_is_drawn_and_ends_the_hold() -> None:
    drawn = picture(trace_of("publish 1", "c1 take 1", "c1 effect 1", "c1 lost 1", "c1 return 1", "c1 again 1"))
    first, second = drawn.holds
    assert (drawn.rows[first.last].kind, drawn.rows[second.first].kind) == ("lost", "again")
    assert "ack lost" in picture_text.render(drawn) and "ack lost" in picture_svg.render(drawn)


def test_stops_deletions_and_dead_letters_are_drawn() -> None:
    trace = trace_of("publish 1", "c1 take 1", "c1 stop 1", "publish 2", "c1 delete 2", "c1 resume 1", "c1 refuse 1")
    trace += [TraceEvent("dead-letter", 8, 0.0, "c1", 1, "letters"), *trace_of("c1 acknowledge 1")]
    drawn = picture(trace, consumers="c1")
    assert [lane.name for lane in drawn.lanes] == ["producer", QUEUE, "letters", "c1", "out"]
    (hold,) = drawn.holds
    assert (hold.first, hold.last) == (1, len(drawn.rows) - 1), "a stopped consumer keeps its message"
    text = picture_text.render(drawn)
    assert all(label in text for label in ("X stopped", "X m2 deleted", "resumed", "refused", "m1 aside")), text
    drawing = picture_svg.render(drawn)
    assert all(label in drawing for label in ("stopped", "m2 deleted", "resumed", "m1 aside"))
    assert in_words(drawn, 4) == "orders deletes m2, which no consumer has read"
    skipped = picture(trace_of("publish 1", "publish 2", "c1 skip 1", "c1 take 2"))
    assert "X m1 skipped" in picture_text.render(skipped) and "m1 skipped" in picture_svg.render(skipped)
    assert in_words(skipped, 2) == "m1 of orders is skipped: its consumer's position is past it"
    assert in_words(drawn, 7) == "c1 puts m1, which its output refuses, into letters"
