"""Judging a run directory from an untrusted source touches no file outside of it, whatever it contains."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import HistoryError
from onceproof.explore.replay import file_name, start_services
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import check
from onceproof.reports.picture import files as picture_files
from onceproof.reports.picture.picture import stored_keys

SECRET = "what nobody else may read or write\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside of all runs, with one file in it."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_text(SECRET)
    return folder


def untouched(victim: Path) -> None:
    assert [entry.name for entry in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == SECRET


def violated(run: Any) -> Path:
    """A run with a finding, so that judging it writes a slice."""
    run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0}, key="k0")
    folder: Path = run.save()
    return folder


@pytest.mark.parametrize("name", ["verdict.json", "verdict.json.part", ".verdict.json", "slices"])
def test_check_replaces_links_that_it_would_write_to(clean_run: Any, victim: Path, name: str) -> None:
    run = violated(clean_run)
    (run / name).symlink_to(victim if name == "slices" else victim / "file")
    verdict = check(run)
    assert verdict.outcome is Outcome.VIOLATED
    untouched(victim)
    assert json.loads((run / "verdict.json").read_text())["verdict"] == "violated"
    assert not (run / "verdict.json").is_symlink()
    assert verdict.slices and not (run / "slices").is_symlink()
    assert all((run / place / "run.json").is_file() for place in verdict.slices.values())


def test_links_inside_earlier_slices_are_not_followed(clean_run: Any, victim: Path) -> None:
    run = violated(clean_run)
    (run / "slices").mkdir()
    (run / "slices" / "duplicate-events-unknown").symlink_to(victim)
    (run / "slices" / ".trial").symlink_to(victim)
    assert check(run).slices
    untouched(victim)


def replace_by_link(run: Path, name: str, elsewhere: Path) -> None:
    """Move a file of the run elsewhere and put a link in its place: the content is valid, but not the run's own."""
    (run / name).rename(elsewhere / "moved")
    (run / name).symlink_to(elsewhere / "moved")


@pytest.mark.parametrize(
    "name", ["run.json", "history/input.parquet", "history/output.parquet", "history", "history/faults.parquet"]
)
def test_a_link_to_a_file_of_the_run_is_refused(clean_run: Any, tmp_path: Path, name: str) -> None:
    run = clean_run.save()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    replace_by_link(run, name, elsewhere)
    with pytest.raises(HistoryError) as refused:
        check(run)
    assert f"{name} is a symbolic link to {elsewhere / 'moved'}" in str(refused.value)
    assert refused.value.exit_code == 4
    assert not (run / "verdict.json").exists()


@pytest.mark.parametrize("folder", ["tables", "expected", "decoded"])
def test_links_among_the_other_files_of_a_history_are_refused(clean_run: Any, victim: Path, folder: str) -> None:
    run = clean_run.save()
    (run / "history" / folder).mkdir(exist_ok=True)
    (run / "history" / folder / "x.parquet").symlink_to(victim / "file")
    with pytest.raises(HistoryError, match=r"x\.parquet is a symbolic link"):
        check(run)


def test_a_link_to_a_folder_of_the_history_is_refused(clean_run: Any, victim: Path) -> None:
    run = clean_run.save()
    (run / "history" / "tables").symlink_to(victim)
    with pytest.raises(HistoryError, match="history/tables is a symbolic link"):
        check(run)


@pytest.mark.parametrize("name", ["run.json", "history/input.parquet", "events.jsonl"])
def test_a_pipe_without_a_writer_does_not_block(clean_run: Any, name: str) -> None:
    run = clean_run.save()
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(HistoryError, match="is a pipe, but a run must have a file there"):
        check(run)


def test_a_linked_timeline_of_an_unobserved_run_is_not_read(clean_run: Any, victim: Path) -> None:
    clean_run.document["observed"] = False
    run = clean_run.save()
    (run / "events.jsonl").symlink_to(victim / "file")
    with pytest.raises(HistoryError, match=r"events\.jsonl is a symbolic link"):
        check(run)


def test_sql_cannot_read_through_a_link(clean_run: Any, victim: Path) -> None:
    """The scenario's SQL can read the history only, not the files next to it."""
    run = clean_run.path
    query = f"SELECT content AS p, 0 AS o FROM read_text('{run}/notes')"
    clean_run.scenario["oracle"]["queries"]["rows"] = query
    clean_run.save()
    (run / "notes").symlink_to(victim / "file")
    verdict = check(run)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert SECRET.strip() not in (run / "verdict.json").read_text()


def test_a_run_may_be_named_by_a_link(clean_run: Any, tmp_path: Path) -> None:
    run = clean_run.save()
    (tmp_path / "latest").symlink_to(run)
    assert check(tmp_path / "latest").outcome is Outcome.HELD
    assert (run / "verdict.json").is_file()


def test_pictures_replace_links(stored_run: Any, victim: Path) -> None:
    run = stored_run
    run.scenario["outputs"] = {"done": {"topic": "done", "identity": ["id"]}}
    run.scenario["pipeline"] = {"consumers": {"names": ["a"]}}
    run.scenario["input"] = [{"topic": "in", "dataset": "messages", "partitions": 1, "options": {"keys": ["k"]}}]
    folder = run.save()
    took = {"at": 1.0, "kind": "consumers.take", "tick": 1, "consumer": "a", "message": 1, "queue": "in"}
    (folder / "events.jsonl").write_text(json.dumps({**took, "redelivered": False}) + "\n")
    for name in ("picture.svg", "picture.txt"):
        (folder / name).symlink_to(victim / "file")
    picture_files.write(folder)
    untouched(victim)
    assert "<svg" in (folder / "picture.svg").read_text()


def test_a_picture_does_not_open_the_file_that_a_data_set_names(stored_run: Any, tmp_path: Path) -> None:
    run = stored_run
    run.scenario["outputs"] = {"done": {"topic": "done", "identity": ["id"]}}
    run.scenario["pipeline"] = {"consumers": {"names": ["a"]}}
    private = tmp_path / "private.jsonl"
    os.mkfifo(private)  # opening it would block forever
    options = {"file": str(private)}
    run.scenario["input"] = [{"topic": "in", "dataset": "file", "partitions": 1, "options": options}]
    run.send("mine", {"id": 1})
    folder = run.save()
    took = {"at": 1.0, "kind": "consumers.effect", "tick": 1, "consumer": "a", "message": 1, "queue": "in"}
    (folder / "events.jsonl").write_text(json.dumps({**took, "redelivered": False}) + "\n")
    assert "m1" in picture_files.write(folder)
    assert stored_keys(folder) == [b"mine"]


def test_logs_of_a_replay_are_written_into_the_run(clean_run: Any, victim: Path) -> None:
    run = clean_run.save()
    (run / "logs").symlink_to(victim)
    with pytest.raises(HistoryError, match="logs is a symbolic link"):
        RunRecord.read(run)  # as replay and shrink do first
    (run / "logs").unlink()
    (run / "logs").mkdir()
    (run / "logs" / "replay").symlink_to(victim)

    def start(_owner: Any, folder: Path, timeline: Any) -> Any:
        (folder / "logs" / "broker.log").write_text("up")
        timeline.emit("up")
        return object()

    start_services(start, None, run / "logs" / "replay")  # type: ignore[arg-type]
    untouched(victim)
    assert (run / "logs" / "replay" / "logs" / "broker.log").read_text() == "up"


@pytest.mark.parametrize("name", ["../../etc/x", "/etc/x", "a/b", "x" * 500, "..", "a\0b"])
def test_a_scenario_named_as_a_path_names_no_other_file(name: str) -> None:
    made = file_name(name)
    assert "/" not in made and "\0" not in made and len(made) <= 100


@pytest.mark.parametrize("name", ["../../up", "/abs", "..", "x" * 300])
def test_outputs_and_topics_named_as_paths(
    make_run: Callable[[Path], Any], tmp_path: Path, victim: Path, name: str
) -> None:
    run = make_run(tmp_path / "run")
    run.scenario["input"] = [{"topic": name, "dataset": "numbers", "decode": "mine:decode"}]
    run.scenario["outputs"] = {name: {"topic": name, "identity": ["i"]}}
    run.scenario["oracle"] = {"kind": "python", "function": "mine:expect"}
    run.document["expectation"] = {"kind": "python", "failed": None}
    run.document["decoded"] = {
        "failed": None,
        "outputs": {},
        "inputs": {name: {"decode": "mine:decode", "undecodable": 0}},
    }
    run.send("k", {"i": 1}, topic=name)
    run.record(name, {"i": 1}, key="k")
    before = sorted(tmp_path.iterdir())
    assert check(run.save()).outcome is not Outcome.HELD
    assert sorted(tmp_path.iterdir()) == sorted({*before, tmp_path / "run"})
    untouched(victim)
