"""The list of runs: what it shows, its filters, and runs in progress."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import write_verdict
from onceproof.qualify.cells import Cell, CellState
from onceproof.qualify.directory import Directory, QualificationProgress
from onceproof.scenario.points import Point
from onceproof.serve import index
from onceproof.serve.index import SILENT_S, Index, link_to
from onceproof.serve.live import Tail

from .conftest import HELD, INCONCLUSIVE, RICH, VIOLATED
from .made_up_runs import Client, client, events, made, runs_dir

__all__ = ["client", "runs_dir"]  # fixtures

CELL = Cell(
    "crash",
    "crash",
    Point.AFTER_SINK_COMMIT,
    {"target": "driver"},
    state=CellState.EXERCISED,
    verdict=Outcome.VIOLATED,
    anomalies={"duplicate": 3},
)
QUALIFIED = QualificationProgress("job", "/jobs/job.yaml", "0" * 64, 7, cells=(CELL,), spent_s=61.0, ended="done")


def qualification(runs_dir: Path, progress: QualificationProgress) -> Directory:
    directory = Directory.create(runs_dir, progress.scenario)
    directory.save(progress)
    return directory


def running(run: Path) -> Path:
    events(
        run,
        {"at": 0.5, "kind": "phase", "name": "run"},
        {"at": 3.0, "kind": "batch.committed", "query": "q", "batch": 4, "records": 10},
        {"at": 3.1, "kind": "fault.fired", "index": 0},
    )
    return run


def test_each_run_and_qualification_has_a_row_the_newest_first(client: Client, runs_dir: Path) -> None:
    made(runs_dir / "good-1", HELD, wall_start=1.7e9)
    made(runs_dir / "rich-1", RICH, wall_start=1.7e9 + 60)
    directory = qualification(runs_dir, QUALIFIED).path
    assert client.listed() == [directory.name, "rich-1", "good-1"], "the link latest and other files have no row"
    text = client.get("/").plain
    for part in (
        "1 held, 2 violated",
        "good ✓ held every claim held and every fault hit none 1 of 1 2023-11-",
        "rich ✕ violated 6000 duplicates duplicate 6,000, torn-batch 1 1 of 1",
        "job (qualification) ✕ violated 1 of 1 cells are decided duplicate",
        "61.5 good-1",
    ):
        assert part in text, part
    links = re.findall(r'<a href="(/runs/[^"]+)"', client.get("/").text)
    assert links[1:] == ["/runs/rich-1/report.html", "/runs/good-1/report.html"]
    assert all(client.get(link).status == 200 for link in links)


def test_an_empty_folder_says_so(client: Client) -> None:
    assert "There is no run yet." in client.get("/").plain and client.listed() == []
    assert client.state()["live"] == {}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("?verdict=violated", ["naive-1"]),
        ("?verdict=held&scenario=good", ["good-2", "good-1"]),
        ("?scenario=vague", ["vague-1"]),
        ("?text=GOOD-2", ["good-2"]),
        ("?text=6000+duplicates", ["naive-1"]),
        ("?text=good+did+not", []),
        ("?verdict=nonsense", []),
        ("?verdict=&scenario=&text=", ["vague-1", "naive-1", "good-2", "good-1"]),
        ("?verdict=no+verdict", []),
        ("?other=x&text=%ff", []),
    ],
)
def test_filters(client: Client, runs_dir: Path, query: str, names: list[str]) -> None:
    for number, (name, verdict) in enumerate(
        (("good-1", HELD), ("good-2", HELD), ("naive-1", VIOLATED), ("vague-1", INCONCLUSIVE))
    ):
        made(runs_dir / name, verdict, wall_start=1.7e9 + number)
    assert client.listed(query) == names
    assert f"{len(names)} of 4, the newest first" in client.get(f"/{query}").plain


def test_the_filter_is_a_form_that_keeps_its_values_and_needs_no_script(client: Client, runs_dir: Path) -> None:
    made(runs_dir / "good-1", HELD)
    text = client.get("/?verdict=held&scenario=good&text=%22%3E%3Cb%3E").text
    assert '<form class="tools" method="get" action="/"' in text
    assert "<option selected>held</option>" in text and '<option value="good" selected>good</option>' in text
    assert 'value="&#34;&gt;&lt;b&gt;"' in text and '<a href="/">Show all</a>' in text


def test_a_run_in_progress_is_followed(client: Client, runs_dir: Path) -> None:
    run = running(made(runs_dir / "now-1", None, wall_start=time.time() - 41))
    first = client.state()
    (now,) = first["live"].values()
    assert list(first["live"]) == ["/runs/now-1/report.html"]
    assert (now["phase"], now["batch"], now["faults"]) == ("run", "4", "1 active of 1") and 41 <= now["seconds"] < 60
    assert "… in progress phase run, batch 4, faults: 1 active of 1, 41 s" in client.get("/").plain
    assert client.listed("?verdict=in+progress") == ["now-1"]
    events(
        run,
        {"at": 4.0, "kind": "batch.committed", "query": "q", "batch": 5},
        {"at": 4.0, "kind": "fault.hit", "index": 0},
        {"at": 4.1, "kind": "phase", "name": "drain"},
    )
    second = client.state()
    (now,) = second["live"].values()
    assert (now["phase"], now["batch"], now["faults"]) == ("drain", "5", "1 hit of 1")
    assert second["listing"] == first["listing"], "the list is not loaded again for that"
    write_verdict(run, replace(HELD, scenario="now-1"))
    last = client.state()
    assert last["live"] == {} and last["listing"] != first["listing"]
    assert "now-1 ✓ held" in client.get("/").plain


def test_the_page_of_a_run_in_progress_shows_what_there_is(client: Client, runs_dir: Path) -> None:
    run = running(made(runs_dir / "now-1", None))
    text = client.get("/runs/now-1/report.html").plain
    assert "the run was never judged" in text and "batch 4 of q committed" in text
    assert not (run / "report.html").exists(), "the server changes nothing"


def test_a_clock_that_cannot_be_right_is_not_used(client: Client, runs_dir: Path) -> None:
    running(made(runs_dir / "now-1", None, wall_start=1.0))
    (now,) = client.state()["live"].values()
    assert now["seconds"] == 3


def test_half_a_line_is_read_when_it_is_whole(client: Client, runs_dir: Path) -> None:
    run = running(made(runs_dir / "now-1", None))
    line = json.dumps({"at": 9.0, "kind": "batch.committed", "query": "q", "batch": 77}) + "\n"
    for part, batch in ((line[:30], "4"), (line[30:], "77")):
        with (run / "events.jsonl").open("a") as file:
            file.write(part)
        (now,) = client.state()["live"].values()
        assert now["batch"] == batch


def test_a_run_that_was_killed_is_in_progress_no_longer(client: Client, runs_dir: Path) -> None:
    run = running(made(runs_dir / "killed-1", None))
    long_ago = time.time() - SILENT_S - 60
    for path in (run / "run.json", run / "events.jsonl"):
        os.utime(path, (long_ago, long_ago))
    assert client.state()["live"] == {}
    assert "killed-1 ? no verdict it was never judged" in client.get("/").plain


@pytest.mark.parametrize("more", [{"interrupted": True}, {"error": "no Java"}, {"imported": True}])
def test_a_run_that_recorded_its_end_is_not_in_progress(
    client: Client, runs_dir: Path, more: dict[str, object]
) -> None:
    running(made(runs_dir / "ended-1", None, **more))
    assert client.state()["live"] == {} and client.listed("?verdict=no+verdict") == ["ended-1"]


def test_a_qualification_in_progress_shows_its_newest_run(client: Client, runs_dir: Path) -> None:
    directory = qualification(runs_dir, replace(QUALIFIED, ended=None))
    made(directory.runs / "a", HELD)
    assert "phase fetch" in client.get("/").plain
    running(made(directory.runs / "b", None))
    (now,) = client.state()["live"].values()
    assert (now["phase"], now["batch"], now["faults"]) == ("run", "4", "1 active")
    directory.save(QUALIFIED)
    assert client.state()["live"] == {}


def test_the_runs_of_a_qualification_are_reached_by_its_page(client: Client, runs_dir: Path) -> None:
    directory = qualification(runs_dir, replace(QUALIFIED, cells=(replace(CELL, runs=("runs/a",)),)))
    (made(directory.runs / "a", HELD) / "report.html").write_text("")
    link = link_to(directory.path.name, "report.html")
    assert 'href="runs/a/report.html"' in client.get(link).text
    assert "good ✓ held" in client.get(link.replace("report.html", "runs/a/report.html")).plain
    assert client.get(link.replace("report.html", "runs/a/logs/driver-0.log")).text == "log of 'a'\n"


@pytest.mark.parametrize(
    ("file", "content", "part"),
    [
        ("run.json", "{", "good ✓ held every claim held and every fault hit; run.json cannot be read"),
        ("run.json", '{"scenario": {"name": 3}}', "run.json: scenario.name is 3, but must be a string"),
        ("run.json", None, "run.json: there is none"),
        ("verdict.json", "[]", "good ? no verdict verdict.json cannot be read: this is not a verdict"),
        ("verdict.json", '{"verdict": "fine"}', "good ? no verdict verdict.json cannot be read"),
        ("run.json", "[" * 100_000, "run.json cannot be read"),
        ("run.json", '{"scenario": {"name": "old"}, "wall_start": 8e12}', "1 of 1 unknown"),
        ("qualification.json", "{", "good-1 (qualification) ? no verdict qualification.json cannot be read"),
        ("qualification.json", "[" * 100_000, "good-1 (qualification) ? no verdict qualification.json cannot be read"),
    ],
)
def test_a_damaged_run_has_a_row_with_what_is_known(
    client: Client, runs_dir: Path, file: str, content: str | None, part: str
) -> None:
    run = made(runs_dir / "good-1", HELD, scenario={"name": "good"})
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    reply = client.get("/")
    assert reply.status == 200 and part in reply.plain, reply.plain
    assert client.get("/runs/good-1/report.html").status in (200, 403)
    assert client.listed() == ["good-1"]


def test_a_folder_on_which_the_index_itself_fails_does_not_hide_the_others(
    client: Client, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(runs_dir / "bad-1", HELD)
    made(runs_dir / "good-1", HELD)
    real = index.brief
    monkeypatch.setattr(index, "brief", lambda folder: real(folder) if folder.name == "good-1" else 1 // 0)
    reply = client.get("/")
    assert reply.status == 200 and "cannot be read: ZeroDivisionError" in reply.plain
    assert sorted(client.listed()) == ["bad-1", "good-1"]


def test_values_of_other_types_in_events_change_nothing(runs_dir: Path) -> None:
    run = made(runs_dir / "odd-1", None)
    odd: list[object] = [None, [], {}, "x", -1, 1e300, True]
    kinds = ("phase", "batch.committed", "fault.fired", "fault.hit")
    events(run, *({"at": one, "kind": kind, "name": one, "batch": one, "index": one} for kind in kinds for one in odd))
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'[]\n3\n"phase"\n{"at": 1, "kind": "phase"}\n\xff\xfe"phase"\n' + b'"phase"' * 50_000 + b"\n")
    events(run, {"at": 2.0, "kind": "phase", "name": "judge\x1b[31m"})
    tail = Tail(runs_dir, ("odd-1",))
    tail.look()
    assert tail.phase == "judge\\x1b[31m" and tail.at == 2.0


def test_links_among_the_files_are_not_followed(client: Client, runs_dir: Path, tmp_path: Path) -> None:
    outside = made(tmp_path / "outside", replace(HELD, scenario="SECRET"), scenario={"name": "SECRET"})
    events(outside, {"at": 1.0, "kind": "phase", "name": "SECRET"})
    run = runs_dir / "planted-1"
    run.mkdir()
    for name in ("run.json", "verdict.json", "events.jsonl", "qualification.json"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(outside / name)
    (runs_dir / "linked-1").symlink_to(outside)
    assert client.listed() == ["planted-1"]
    assert "SECRET" not in client.get("/").text.replace(str(outside), "")
    assert client.state()["live"] == {} and "SECRET" not in json.dumps(client.state())


def test_a_run_is_read_again_only_if_it_has_changed(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(runs_dir / "good-1", HELD)
    index = Index(runs_dir)
    index.rows()
    with monkeypatch.context() as patched:
        patched.setattr("onceproof.serve.index.brief", None)
        assert [row.result for row in index.rows()] == ["held"]
    write_verdict(run, replace(VIOLATED, seconds=1.0))
    assert [row.result for row in index.rows()] == ["violated"]


def test_hundreds_of_runs_are_listed_at_once(client: Client, runs_dir: Path) -> None:
    for number in range(400):
        made(runs_dir / f"run-{number:03}", (HELD, RICH, INCONCLUSIVE)[number % 3], wall_start=1.7e9 + number)
    began = time.monotonic()
    names = client.listed()
    took = time.monotonic() - began
    assert len(names) == 400 and names[0] == "run-399"
    assert took < 5, "less than a second on an idle machine"
