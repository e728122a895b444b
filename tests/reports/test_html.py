"""The HTML pages: what they show, that foreign text in them does nothing, and that they leave the run directory alone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import HistoryError, NotARun
from onceproof.history.schema import VERSION
from onceproof.judge import shown_rows
from onceproof.judge.findings import BatchReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.judge.verdict import check, write_verdict
from onceproof.reports.html import files, page
from onceproof.reports.html.run_page import of_run
from onceproof.reports.report import RunSet, ScenarioResult, reports

from ..judge.conftest import StoredRun, correct_run

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "</style></script></title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% include 'style.css' %}",
    "\u202egnp.exe\x00\x1b[31m\ud800",
    "]]><!-- -->&lt;b&gt;",
)


class Parsed(HTMLParser):
    """Collects what the tests ask about. Raises for nothing: a browser would not either."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def events(folder: Path, *more: dict[str, Any]) -> None:
    """A driver that is killed in batch 1, and started again."""
    fault = {"index": 0, "fault": "crash", "target": "driver", "query": "q", "batch": 1, "point": "after-sink-commit"}
    lines: list[dict[str, Any]] = [
        {"at": 0.0, "kind": "phase", "name": "run"},
        {"at": 0.1, "kind": "stack.ready", "service": "postgres"},
        {"at": 0.2, "kind": "fault.armed", **fault},
        {"at": 0.3, "kind": "job.started", "start": 0},
        {"at": 0.4, "kind": "feed.chunk", "topic": "in", "chunk": 1, "of": 1, "records": 12},
        {"at": 0.5, "kind": "batch.planned", "query": "q", "batch": 0},
        {"at": 0.9, "kind": "batch.committed", "query": "q", "batch": 0, "records": 6},
        {"at": 1.1, "kind": "fault.fired", **fault},
        {"at": 1.15, "kind": "job.exited", "start": 0, "code": -9, "killed": True},
        {"at": 1.2, "kind": "job.started", "start": 1},
        {"at": 1.4, "kind": "fault.healed", **fault},
        {"at": 1.5, "kind": "fault.hit", **fault},
        {"at": 1.6, "kind": "batch.committed", "query": "q", "batch": 1, "records": 6},
        *more,
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored run with one wrong value, one duplicate and a fault that hit, judged once."""
    stored = correct_run(StoredRun(tmp_path_factory.mktemp("judged") / "run"))
    stored.fault(batch=1)
    stored.document["wall_start"] = 1_000.0
    row = stored.tables["output"][0]
    row["content"] = row["content"].replace('"n":"0"', '"n":"999"')
    stored.record("events", json.loads(stored.tables["output"][-1]["content"]))
    run = stored.save()
    events(run)
    (run / "logs").mkdir()
    (run / "logs" / "driver-0.log").write_text("a log\n")
    check(run)
    return run


@pytest.fixture
def judged(once: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(once, tmp_path / "run")


def test_the_page_shows_the_verdict_the_fault_and_what_to_do(judged: Path) -> None:
    parsed = Parsed(of_run(judged))
    for part in (
        "small ✕ violated",
        "delivery effectively-once",
        "crash driver, batch 1 at after-sink-commit of q : ✓ hit",
        "✕ wrong-value : 1 row or record",
        "Fix for wrong-value",
        "onceproof explain wrong-value",
        f"onceproof check {judged}",
        "What was not judged Ignored columns of events record key",
        "batch 1 of q committed in the checkpoint with 6 records",
    ):
        assert part in parsed.text
    assert {"logs/driver-0.log"} <= {link["href"] for link in parsed.all("a")}


def test_expected_and_found_rows_are_side_by_side_with_the_difference_marked(judged: Path) -> None:
    text = of_run(judged)
    (rows,) = [one for one in shown_rows.read(judged) if one.output == "rows"]
    assert [row.content["n"] for row in rows.expected] == ["0"]
    assert [row.content["n"] for row in rows.found] == ["999"]
    assert rows.input is not None and rows.input.position == "in/0@0" and rows.input.key == "k0"
    assert re.search(r'<td class="differs"><mark>999<span class="hidden"> \(differs\)</span></mark></td>', text)
    assert "<mark>k0" not in text, "equal cells are not marked"
    duplicate = next(one for one in shown_rows.read(judged) if one.output == "events")
    assert [row.count for row in duplicate.found] == [2]
    assert '<td class="number differs"><mark>2<' in text


def test_every_link_inside_the_page_leads_somewhere_and_ids_are_unique(judged: Path) -> None:
    parsed = Parsed(of_run(judged))
    assert len(parsed.ids) == len(set(parsed.ids))
    inside = {str(link["href"])[1:] for link in parsed.all("a") if str(link["href"]).startswith("#")}
    assert inside <= set(parsed.ids)
    assert "fault-1" in inside and any(name.startswith("e") for name in inside)
    named = {attributes["aria-labelledby"] for _, attributes in parsed.tags if "aria-labelledby" in attributes}
    assert named <= set(parsed.ids)


def test_the_page_loads_nothing_and_runs_only_its_own_script(judged: Path) -> None:
    text = of_run(judged)
    parsed = Parsed(text)
    (policy,) = [meta["content"] for meta in parsed.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert page._hash(script) in policy and page._hash(style) in policy
    assert len(script.encode()) <= 12_000
    assert not [a for _, a in parsed.tags if any(name.startswith("on") or name == "style" for name in a)]
    assert not re.findall(r'(?:src|href)="(?!#|logs/|witnesses/)', text)
    assert "\x1b" not in text


@pytest.fixture
def hostile(judged: Path) -> Path:
    """Hostile text wherever a foreign run can have text."""
    text = "".join(HOSTILE)
    record = json.loads((judged / "run.json").read_text())
    record |= {
        "scenario_path": f"/tmp/{text}",
        "versions": {"kafka": HOSTILE[0], "java": HOSTILE[1]},
        "onceproof": HOSTILE[3],
    }
    (judged / "run.json").write_text(json.dumps(record).replace("\\ud800", ""))
    verdict = Verdict.from_json(judged / "verdict.json")
    finding = Finding(
        text,
        text,
        3,
        text,
        (Witness({text: text}, f"{text}\n{text}", text, 1, (text,)),),
        attribution={text: 3},
        witness_file=f"witnesses/{HOSTILE[1]}.jsonl",
    )
    elsewhere = replace(finding, witness_file="witnesses/../../../etc/passwd.jsonl", undecided=text)
    verdict = replace(
        verdict,
        scenario=text,
        reasons=(text, text),
        claim=StatedClaim({text: text}, {text: {text: text}}),
        findings=(finding, elsewhere),
        faults=tuple(replace(f, fault=text, target=text, point=text, query=text) for f in verdict.faults),
        batches=(BatchReport(text, 1, 0, 1, 5, (text,), Outcome.VIOLATED, {text: 1}),),
        not_evaluated={text: text},
        ignored={text: [text]},
        counts={text: 1},
        slices={f"{text}/{text}": text},
    )
    write_verdict(judged, verdict)
    rows = json.loads((judged / "witnesses" / "rows.json").read_text())
    rows[0] |= {"output": text, "identity": {text: text}, "input": {"position": text, "key": text, "value": text}}
    rows[0]["found"] = [{"content": {text: text}, "count": 1, "places": [text]}]
    (judged / "witnesses" / "rows.json").write_text(json.dumps(rows).replace("\\ud800", ""))
    kinds = ("warning", "job.started", "stack.ready", "fault.fired", "batch.planned", "sink.commit", "frame.stopped")
    names = ("message", "service", "fault", "target", "point", "query", "sink", "frame", "action", "why", "topic")
    events(judged, *({"at": 2.0, "kind": kind, **dict.fromkeys(names, text), "index": 7, "start": 1} for kind in kinds))
    (judged / "logs" / '"><b>.log').write_text("")
    return judged


def test_hostile_text_does_nothing(hostile: Path) -> None:
    plain = Parsed(of_run(hostile))
    known = {"script": 1, "style": 1, "img": 0, "b": 0, "iframe": 0}
    assert {tag: len(plain.all(tag)) for tag in known} == known
    assert "alert(1)" in plain.text, "the text is shown"
    assert "{{ 7 * 7 }}" in plain.text and "\\u202egnp" in plain.text
    for tag, attributes in plain.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "src"):
            value = str(attributes.get(name, "#"))
            assert value.startswith(("#", "logs/", "witnesses/")) and ".." not in value, value
    assert all(re.fullmatch(r"[a-z]+[a-z0-9-]*", one) for one in plain.ids)


def links(run: Path, outside: Path) -> Iterator[tuple[Path, Path]]:
    """(where a link is planted, what it leads to)."""
    yield run / "verdict.json", outside / "verdict.json"
    yield run / "witnesses" / "rows.json", outside / "rows.json"
    yield run / "logs" / "driver-1.log", outside / "secret.log"


def test_a_link_in_a_run_is_not_followed(judged: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for planted, target in links(judged, outside):
        target.write_text(json.dumps([{"output": "SECRET"}, "SECRET"]))
        planted.unlink(missing_ok=True)
        planted.symlink_to(target)
    text = of_run(judged)
    assert "SECRET" not in text and "driver-1.log" not in text
    assert "verdict.json" in Parsed(text).text and "no verdict" in Parsed(text).text


@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "history", "logs", "history/input.parquet"])
def test_a_run_whose_files_are_links_is_refused(judged: Path, tmp_path: Path, name: str) -> None:
    (judged / name).rename(tmp_path / "elsewhere")
    (judged / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HistoryError, match="symbolic link"):
        of_run(judged)


def test_a_link_to_the_witnesses_is_not_followed(judged: Path, tmp_path: Path) -> None:
    (judged / "witnesses").rename(tmp_path / "elsewhere")
    (judged / "witnesses").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in Parsed(of_run(judged)).text


def test_writing_replaces_a_link_and_does_not_follow_it(judged: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (judged / files.FILE).symlink_to(victim)
    written = files.write(judged)
    assert victim.read_text() == "mine"
    assert not written.is_symlink() and "small" in written.read_text()
    assert written.stat().st_mode & 0o077 == 0, "only its owner can read it"


def test_an_interrupted_run_says_so_and_shows_what_there_is(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    scenario = {"name": "stopped", "claim": {"delivery": "effectively-once"}, "chaos": [{}]}
    record = {"schema": VERSION, "scenario": scenario, "interrupted": True, "error": "interrupted by Ctrl-C"}
    (run / "run.json").write_text(json.dumps(record))
    events(run)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"at": 3.0, "kind": "batch.pl')
    text = Parsed(of_run(run)).text
    for part in (
        "stopped",
        "interrupted by Ctrl-C",
        "1 of its lines could not be read",
        "driver start 0 begins",
        "✓ hit",
    ):
        assert part in text
    assert "<svg" in of_run(run)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("run.json", "{", "run.json cannot be read"),
        ("verdict.json", "[]", "verdict.json: it cannot be read"),
        ("verdict.json", '{"verdict": "held", "faults": 3}', "verdict.json: it cannot be read"),
        ("witnesses/rows.json", '{"a": 1}', "witnesses/rows.json: it cannot be read"),
        ("history/batches.parquet", "PAR1", "damaged or cut off"),
        ("events.jsonl", '[]\n3\n{"at": "x", "kind": 1}\n{"at": 1e400, "kind": "a"}\n', "4 of its lines"),
    ],
)
def test_a_damaged_run_says_so_and_shows_the_rest(judged: Path, name: str, content: str, part: str) -> None:
    (judged / name).write_text(content)
    text = Parsed(of_run(judged)).text
    assert "Parts of this run are missing" in text and part in text
    assert "What to do next" in text and "About this run" in text


@pytest.mark.parametrize(
    ("schema", "who"), [(1, "an older version of onceproof (0.0.7)"), (999, "a newer version of onceproof (0.0.7)")]
)
@pytest.mark.parametrize("change", [{}, {"observed": False}, {"drained": "some other type"}])
def test_a_run_of_another_version_is_named_as_such_and_shown(
    judged: Path, schema: int, who: str, change: dict[str, object]
) -> None:
    record = json.loads((judged / "run.json").read_text())
    (judged / "run.json").write_text(json.dumps({**record, "schema": schema, "onceproof": "0.0.7", **change}))
    text = Parsed(of_run(judged)).text
    assert f"{who} wrote this run: run.json has schema {schema}, and this onceproof reads schema {VERSION}" in text
    for part in ("small ✕ violated", "crash driver, batch 1", "✕ wrong-value", "driver start 0 begins"):
        assert part in text
    with pytest.raises(HistoryError) as refused:
        check(judged)
    assert who in str(refused.value) and "judge it with the onceproof that wrote it" in str(refused.value)


def test_values_of_other_types_in_events_do_no_harm(judged: Path) -> None:
    odd: list[Any] = [None, [], {}, -1, 1e300, True, "x"]
    kinds = (
        "fault.fired",
        "job.started",
        "job.exited",
        "batch.planned",
        "batch.committed",
        "feed.chunk",
        "stack.ready",
    )
    names = ("index", "start", "code", "batch", "query", "records", "service", "target", "point", "killed")
    events(judged, *({"at": 5.0, "kind": kind, **dict.fromkeys(names, value)} for kind in kinds for value in odd))
    assert "What to do next" in of_run(judged)


def test_another_folder_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(NotARun):
        of_run(tmp_path)


def test_a_run_of_an_earlier_version_without_rows_says_how_to_get_them(judged: Path) -> None:
    (judged / "witnesses" / "rows.json").unlink()
    assert "judged by an earlier version" in Parsed(of_run(judged)).text


def test_a_large_run_has_a_small_page_that_states_what_it_leaves_out(judged: Path) -> None:
    """Of a million records: as many witnesses as a verdict holds, each with long texts, and very many batches and events."""
    verdict = Verdict.from_json(judged / "verdict.json")
    witnesses = tuple(
        Witness({"id": f"{n} {'x' * 5000}"}, "why " * 2000, f"in/0@{n}", 1, ("p",) * 50) for n in range(32)
    )
    found = tuple(Finding(f"a{n}", "rows", 1_000_000, "many", witnesses) for n in range(60))
    batches = tuple(BatchReport("q", n, 0, 1, 100, ("crash",), Outcome.VIOLATED, {"a": 1}) for n in range(20_000))
    write_verdict(judged, replace(verdict, findings=found, batches=batches))
    more = [{"at": 2.0 + n / 10, "kind": "batch.planned", "query": "q", "batch": n} for n in range(20_000)]
    fed = [{"at": 2.0 + n / 10, "kind": "feed.chunk", "topic": "in", "records": 50} for n in range(20_000)]
    (judged / "history" / "batches.parquet").unlink()
    events(judged, *more, *fed)
    text = of_run(judged)
    assert len(text.encode()) <= 1_000_000
    shown = Parsed(text).text
    for part in (
        "This page does not show everything",
        "at most 40 findings, 6 witnesses of each",
        "999,994 of 1,000,000 are not shown here",
        "20 more findings are not shown here. verdict.json has all",
        "more are in events.jsonl",
        "more batches are not drawn",
        "100 of 20,000 batches",
    ):
        assert part in shown


def test_the_report_is_registered_and_renders_one_run_or_an_index(
    judged: Path, held: ScenarioResult, everything: RunSet
) -> None:
    render = reports.get("html")().render
    one = render(RunSet((replace(held, run_dir=judged),)))
    assert one == of_run(judged)
    index = Parsed(render(everything)).text
    for part in ("4 runs", "naive", "✕ violated", "no Java"):
        assert part in index
    assert "good" in Parsed(render(RunSet((held,)))).text, "its directory is gone, and the verdict in memory is shown"
