"""Checkpoint damage: where it can be placed, and what it does to the files. The real scenarios show its effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.chaos.checkpoint_damage import CheckpointDamage, CheckpointDamageSpec, _damage
from onceproof.faults.contract import Occurrence, SpecProblem
from onceproof.pipeline.supervisor import Exit
from onceproof.scenario.points import Point

Problems = Callable[..., list[SpecProblem]]


def spec(what: str, point: str) -> dict[str, Any]:
    return {"fault": "checkpoint-damage", "target": "checkpoint", "what": what, "at": {"batch": 2, "point": point}}


@pytest.mark.parametrize("what", ["metadata", "commit", "truncated-commit", "folder"])
def test_after_the_commit_log_every_damage_is_possible(problems: Problems, what: str) -> None:
    assert problems(spec(what, "after-commit-log")) == []


@pytest.mark.parametrize("what", ["commit", "truncated-commit"])
def test_a_commit_entry_cannot_be_damaged_before_it_is_written(problems: Problems, what: str) -> None:
    (problem,) = problems(spec(what, "after-sink-commit"))
    assert problem.loc == ("at", "point") and problem.hint == "use after-commit-log"
    assert problems(spec("metadata", "after-sink-commit")) == []


def test_damage_in_the_middle_of_a_batch_is_refused(problems: Problems) -> None:
    assert problems(spec("folder", "after-offset-log"))[0].loc == ("at", "point")


@pytest.mark.parametrize("what", ["everything", None])
def test_an_unknown_damage_is_refused(what: str | None) -> None:
    with pytest.raises(ValidationError):
        CheckpointDamageSpec.model_validate({**spec("folder", "after-commit-log"), "what": what})


@pytest.mark.parametrize(
    ("what", "log", "shows"),
    [
        ("metadata", "org...: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE] Checkpoint location", True),
        ("truncated-commit", "java.lang.IllegalStateException: Incomplete log file in the offset commit log", True),
        ("metadata", "OperationalError: the sink is down", False),
        ("truncated-commit", "OperationalError: the sink is down", False),
        ("commit", "Incomplete log file", False),
        ("folder", "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", False),
    ],
)
def test_a_failed_driver_is_a_symptom_only_with_sparks_error_for_that_damage(
    what: str, log: str, shows: bool, tmp_path: Path, seen: Callable[..., Occurrence]
) -> None:
    damage = CheckpointDamage(CheckpointDamageSpec.model_validate(spec(what, "after-commit-log")))
    job = SimpleNamespace(failed_since=lambda _at: Exit(1, 1, 5.0), log_contains=lambda words: words in log)
    checkpoint = SimpleNamespace(batches=list, log_exists=lambda *_: False)
    context: Any = SimpleNamespace(job=job, checkpoint=checkpoint)
    assert bool(damage._symptom(context, seen(Point.AFTER_COMMIT_LOG), tmp_path)) is shows


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for file in ("metadata", ".metadata.crc", "commits/1", "commits/2", "commits/.2.crc", "offsets/2"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("v1")
    return tmp_path


def intact_files(checkpoint: Path) -> list[str]:
    return sorted(str(f.relative_to(checkpoint)) for f in checkpoint.rglob("*") if f.is_file() and f.stat().st_size)


def test_the_damaged_file_is_named_and_no_other_file_is_changed(checkpoint: Path) -> None:
    assert _damage(checkpoint, "commit", 2) == ["commits/2"]
    assert intact_files(checkpoint) == [".metadata.crc", "commits/1", "metadata", "offsets/2"]
    assert _damage(checkpoint, "truncated-commit", 1) == ["commits/1"]
    assert (checkpoint / "commits/1").exists() and "commits/1" not in intact_files(checkpoint)
    assert _damage(checkpoint, "metadata", 2) == ["metadata"]
    assert intact_files(checkpoint) == ["offsets/2"]
    assert _damage(checkpoint, "metadata", 2) == [], "it was already missing"
    assert _damage(checkpoint, "folder", 2) == [f"the checkpoint {checkpoint.name}"]
    assert list(checkpoint.iterdir()) == []
