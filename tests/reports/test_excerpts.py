"""What the page of a run shows of its logs: the entries around each event, masked, and nothing if their times are unknown."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onceproof.base.masking import hiding
from onceproof.reports.html import excerpts
from onceproof.reports.html.moments import Moment
from onceproof.reports.html.run_page import of_run

from .made_up_runs import events, made

_START = 1_700_000_000.0


def _spark(at: float) -> str:
    return datetime.fromtimestamp(_START + at).strftime("%y/%m/%d %H:%M:%S")


def _kafka(at: float) -> str:
    return datetime.fromtimestamp(_START + at, UTC).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]


def _postgres(at: float) -> str:
    return datetime.fromtimestamp(_START + at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC [12]"


def _toxiproxy(at: float) -> str:
    moment = datetime.fromtimestamp(_START + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"level": "info", "time": moment, "message": "m"})


def _stored(run: Path, *found: Moment) -> excerpts.Excerpts:
    excerpts.write(run, found, _START)
    return excerpts.read(run)


def _moment(at: float, log: str | None = "some.log", anchor: str = "e0") -> Moment:
    return Moment(anchor, at, "job.exited", "driver starts", "it exits", log)


def _run(tmp_path: Path, *lines: str, log: str = "some.log") -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / log).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize("stamp", [_spark, _kafka, _postgres, _toxiproxy])
def test_the_entries_around_an_event_are_found_by_the_times_of_each_log(
    tmp_path: Path, stamp: Callable[[float], str]
) -> None:
    run = _run(tmp_path, "a banner", *(f"{stamp(10 * n)} entry {n}" for n in range(15)))
    stored = _stored(run, _moment(102.5))
    (one,) = stored.items
    assert stored.of("e0") == 0 and one.log == "some.log"
    assert [line.split()[-1] for line in one.lines] == [f"{stamp(10 * n)} entry {n}".split()[-1] for n in range(8, 14)]
    assert (one.first, one.last) == (10, 15), "line 1 is the banner"
    assert one.lines[2] == f"{stamp(100)} entry 10", "the last one before the event"


def test_events_with_nothing_between_them_share_an_excerpt_and_a_stack_trace_is_cut(tmp_path: Path) -> None:
    trace = [f"\tat frame {n}" for n in range(40)]
    run = _run(tmp_path, f"{_spark(1)} before", f"{_spark(5)} ERROR broken", *trace, f"{_spark(9)} after")
    stored = _stored(run, _moment(6.0), _moment(7.0, anchor="e1"), _moment(20.0, anchor="e2"))
    assert stored.of("e0") == stored.of("e1") == 0 and stored.of("e2") == 0, "all entries are near to each of them"
    assert stored.items[0].lines == (
        f"{_spark(1)} before",
        f"{_spark(5)} ERROR broken",
        "\tat frame 0",
        "... 37 more lines ...",
        "\tat frame 38",
        "\tat frame 39",
        f"{_spark(9)} after",
    )
    assert (stored.items[0].first, stored.items[0].last) == (1, 43)


def test_there_is_no_excerpt_of_a_log_of_another_time_or_without_times(tmp_path: Path) -> None:
    run = _run(tmp_path, f"{_spark(-400_000)} long before", "99/99/99 99:99:99 not a time", "and no time")
    assert _stored(run, _moment(1.0), _moment(2.0, None, "e1"), _moment(3.0, "missing.log", "e2")).items == ()
    assert not (run / excerpts.FILE).exists()


def test_secrets_are_masked_in_excerpts_and_a_link_is_not_read(tmp_path: Path) -> None:
    run = _run(tmp_path, f"{_spark(1)} password=hunter2-{'x' * 400}")
    (run / "elsewhere").write_text(f"{_spark(1)} in no log of the run\n")
    (run / "logs" / "link.log").symlink_to(run / "elsewhere")
    with hiding(["hunter2"]):
        stored = _stored(run, _moment(1.0), _moment(1.0, "link.log", "e1"))
    (one,) = stored.items
    assert "hunter2" not in one.lines[0] and "password=***-x" in one.lines[0] and len(one.lines[0]) < 250
    assert stored.of("e1") is None


def test_a_secret_in_a_very_long_line_is_masked_and_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    long = f"{_spark(1)} {'x' * 9_970} hunter2-correct-horse and more"
    run = _run(tmp_path, long, f"{_spark(2)} second", f"{_spark(3)} {'y' * 1_500_000}", f"{_spark(4)} fourth")
    with hiding(["hunter2-correct-horse"]):
        (one,) = _stored(run, _moment(2.5)).items
    text = (run / excerpts.FILE).read_text()
    assert "hunter2" not in text and "correct" not in text and "horse" not in text
    assert (one.first, one.last) == (1, 4) and one.lines[-1] == f"{_spark(4)} fourth"


def test_a_secret_in_base64_over_several_lines_is_masked(tmp_path: Path) -> None:
    secret = "correct horse battery staple, and then a good deal more of it for a second line"
    encoded = base64.encodebytes(secret.encode()).decode().splitlines()
    run = _run(tmp_path, f"{_spark(1)} token:", *encoded, f"{_spark(2)} after")
    with hiding([secret]):
        _stored(run, _moment(1.5))
    text = (run / excerpts.FILE).read_text()
    assert len(encoded) > 1 and not any(line in text for line in encoded)


def test_the_end_of_a_log_that_is_too_long_to_be_read_has_no_excerpt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excerpts, "_MOST_LINES", 3)
    run = _run(tmp_path, *(f"{_spark(n)} entry {n}" for n in range(10)))
    stored = _stored(run, _moment(1.5), _moment(8.0, anchor="e1"))
    assert stored.of("e0") == 0 and stored.of("e1") is None


def test_a_progress_bar_hides_no_line_and_does_not_change_the_numbers(tmp_path: Path) -> None:
    bar = "[Stage 3:>    (0 + 2) / 2]\r                          \r"
    run = _run(tmp_path, f"{bar}{_spark(1)} first", "", "\r      \r", f"{bar}{bar}{_spark(2)} second")
    (one,) = _stored(run, _moment(1.5)).items
    assert one.lines == (f"{_spark(1)} first", f"{_spark(2)} second") and (one.first, one.last) == (1, 4)


@pytest.mark.parametrize("date", ["0001-01-01 00:00:00", "9999-12-31 23:59:59", "2013-01-01 05:00:00"])
def test_dates_in_the_text_of_a_log_are_not_taken_for_its_times(tmp_path: Path, date: str) -> None:
    lines = [f"Row(valid_until={date})", *(f"{_kafka(n)} entry {n}" for n in range(10)), f"Row(valid_until={date})"]
    run = _run(tmp_path, *lines[:6], f"Row(valid_until={date})", *lines[6:])
    (one,) = _stored(run, _moment(7.5)).items
    assert one.lines[2].endswith("entry 7") and one.lines[3].endswith("entry 8")


def test_the_page_links_each_event_to_its_excerpt(tmp_path: Path) -> None:
    run = made(tmp_path / "run", None)
    events(run, {"at": 1.0, "kind": "job.started", "start": 0}, {"at": 2.0, "kind": "point", "batch": 1, "point": "p"})
    text = of_run(run)
    assert 'href="logs/driver-0.log"' in text and 'href="#log-' not in text, "none is stored: the whole log"
    excerpt = {"log": "driver-0.log", "first": 7, "last": 8, "lines": ["<script>alert(1)</script>", "second"]}
    stored = {"items": [excerpt], "of_events": {"e0": 0, "e1": 0}}
    (run / excerpts.FILE).write_text(json.dumps(stored))
    text = of_run(run)
    assert text.count('<a href="#log-0">driver-0.log</a>') == 2 and 'id="log-0"' in text
    assert "&lt;script&gt;alert(1)" in text and "<script>alert(1)" not in text
    assert "driver-0.log, lines 7 to 8" in text


@pytest.mark.parametrize(
    "stored",
    ["{", "[]", '{"items": 3}', '{"items": [], "of_events": {"e0": 5}}', '{"items": [], "of_events": {"e0": -1}}'],
)
def test_a_foreign_file_of_excerpts_does_no_harm(tmp_path: Path, stored: str) -> None:
    run = made(tmp_path / "run", None)
    events(run, {"at": 1.0, "kind": "job.started", "start": 0})
    (run / excerpts.FILE).write_text(stored)
    text = of_run(run)
    assert 'href="#log-' not in text and 'href="logs/driver-0.log"' in text
    assert ("excerpts.json: it cannot be read" in text) == (not stored.endswith("}}"))


def test_an_excerpt_of_a_foreign_run_links_to_no_file_outside_of_its_logs(tmp_path: Path) -> None:
    run = made(tmp_path / "run", None)
    events(run, {"at": 1.0, "kind": "job.started", "start": 0})
    foreign = {"items": [{"log": "../../secret", "first": 1, "last": 1, "lines": ["x"]}], "of_events": {"e0": 0}}
    (run / excerpts.FILE).write_text(json.dumps(foreign))
    assert 'href="logs/..' not in of_run(run) and 'href="#log-0"' in of_run(run)
