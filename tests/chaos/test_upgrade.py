"""Upgrade: how the old version is started, and what proves that the new one went on. Real scenarios show its effect."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError, WaitTimeout
from onceproof.chaos.upgrade import Upgrade, UpgradeSpec
from onceproof.faults.contract import Occurrence, Proof, SpecProblem, first_pipeline
from onceproof.pipeline.program import Program
from onceproof.pipeline.supervisor import Exit
from onceproof.scenario.model import DRIVER, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load

Problems = Callable[..., list[SpecProblem]]
Make = Callable[..., Scenario]
JOB = {"command": ["python", "job.py", "--of=arr", "--fast"], "env": {"A": "1", "B": "2"}}


def spec(old: dict[str, Any], point: str = "after-commit-log", **settings: Any) -> dict[str, Any]:
    return {"fault": "upgrade", "target": "driver", "old": old, **settings, "at": {"batch": 2, "point": point}}


@pytest.mark.parametrize(
    ("old", "command"),
    [
        ({"args": {"of": "dep"}}, ["python", "job.py", "--of=dep", "--fast"]),
        ({"args": {"of": None, "slow": True}}, ["python", "job.py", "--fast", "--slow"]),
        ({"args": {"fast": None, "of": 3}}, ["python", "job.py", "--of=3"]),
        ({"command": ["python", "old.py"]}, ["python", "old.py"]),
        ({"command": ["python", "old.py"], "args": {"of": "dep"}}, ["python", "old.py", "--of=dep"]),
    ],
)
def test_the_old_version_differs_in_what_is_named(scenario: Make, old: dict[str, Any], command: list[str]) -> None:
    found = Upgrade.first_pipeline(UpgradeSpec.model_validate(spec(old)), scenario(**JOB))
    assert found.command == command and found.env == JOB["env"]


def test_variables_are_replaced_added_and_removed(scenario: Make) -> None:
    old = {"env": {"A": None, "B": "3", "C": "4"}}
    found = Upgrade.first_pipeline(UpgradeSpec.model_validate(spec(old)), scenario(**JOB))
    assert found.env == {"B": "3", "C": "4"} and found.command == JOB["command"]


def test_a_scenario_has_a_first_pipeline_only_if_it_is_upgraded(scenario: Make) -> None:
    plain = scenario(**JOB)
    upgraded = plain.model_copy(update={"chaos": [UpgradeSpec.model_validate(spec({"args": {"of": "dep"}}))]})
    assert first_pipeline(plain) is None
    assert (first_pipeline(upgraded) or plain.pipeline).command[2] == "--of=dep"


@pytest.mark.parametrize("point", ["after-offset-log", "after-sink-commit", "after-commit-log"])
def test_it_strikes_between_two_writes_of_the_log(problems: Problems, point: str) -> None:
    assert problems(spec({"args": {"of": "dep"}}, point)) == []


@pytest.mark.parametrize(
    ("values", "stack", "loc"),
    [
        (spec({"args": {"of": "dep"}}, "in-tasks"), {}, ("at", "point")),
        (spec({}), {}, ("old",)),
        (spec({"command": ["true"]}), {}, ("old",)),
        (spec({"args": {"of": "dep"}}, checkpoint="removed"), {"object_store": {}}, ("checkpoint",)),
        (spec({"args": {"of": "dep"}}, "after-offset-log", checkpoint="removed"), {}, ("at", "point")),
        (
            spec({"command": ["true"]}),
            {"command": [*DRIVER, "job:build"], "callable": "job:build"},
            ("old", "command"),
        ),
    ],
)
def test_what_cannot_be_upgraded_is_refused(
    problems: Problems, values: dict[str, Any], stack: dict[str, Any], loc: tuple[str, ...]
) -> None:
    assert [one.loc for one in problems(values, **stack)] == [loc]


def test_a_job_is_upgraded_once(scenario: Make) -> None:
    one = UpgradeSpec.model_validate(spec({"args": {"of": "dep"}}))
    several = scenario(**JOB).model_copy(update={"chaos": [one, one]})
    assert [problem.loc for problem in Upgrade.problems(one, several)] == [("fault",)]


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("{args: {topic: '{topic.flight}'}}", "no topic 'flight'"),
        ("{args: {kafka: '{kafak}'}}", "unknown template {kafak}"),
        ("{command: ['{python}', '{here}/jobs/olde.py']}", "job file '{here}/jobs/olde.py' does not exist"),
    ],
)
def test_a_mistake_in_the_old_version_is_reported_at_the_fault(tmp_path: Path, old: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    at = "{batch: 2, point: after-commit-log}"
    file.write_text(
        f"base: naive-append\nchaos:\n  - {{fault: upgrade, target: driver, old: {old}, at: {at}}}\n", encoding="utf-8"
    )
    with pytest.raises(ScenarioError) as refused:
        load(file)
    (problem,) = refused.value.problems
    assert words in problem.message and problem.place.line == 3


OLD = Program(["python", "job.py", "--of=dep"], {"A": "1"})
NEW = Program(["python", "job.py", "--of=arr"], {"A": "1"})


class World:
    """A job whose old version is killed at batch 2; ``after`` happens when the next one has started."""

    def __init__(self, folder: Path, new: Program, after: Callable[[World], None]) -> None:
        self.folder, self._new, self._after = folder, new, after
        self.program, self.upgraded, self.log = OLD, False, ""
        self.batches = [self.batch(2, by=0)]
        self.failure: Exit | None = None
        self.set_id("one")
        (folder / "commits").mkdir()
        (folder / "commits" / "2").touch()

    def batch(self, number: int, *, by: int) -> SimpleNamespace:
        return SimpleNamespace(query="q", batch=number, committed_by=by)

    def set_id(self, id_: str) -> None:
        (self.folder / "metadata").write_text(json.dumps({"id": id_}))

    def kill_driver(self) -> int:
        if self.upgraded:
            self.program = self._new
        self._after(self)
        return 0

    def upgrade(self) -> None:
        self.upgraded = True

    def proof(self, point: Point = Point.AFTER_COMMIT_LOG, **settings: Any) -> Proof:
        job = SimpleNamespace(
            frozen=nullcontext,
            executes=lambda: self.program,
            upgrade=self.upgrade,
            kill_driver=self.kill_driver,
            restarted_since=lambda _start: True,
            failed_since=lambda _at: self.failure,
            log_end=lambda _lines: self.log,
        )
        checkpoint = SimpleNamespace(
            folder=lambda _query: self.folder,
            batch=lambda _query, number: next((b for b in self.batches if b.batch == number), None),
            batches=lambda: self.batches,
            log_exists=lambda _query, log, number: (self.folder / log / str(number)).exists(),
        )
        context: Any = SimpleNamespace(job=job, checkpoint=checkpoint, timeline=SimpleNamespace(now=lambda: 1.0))
        fault = Upgrade(UpgradeSpec.model_validate(spec({"args": {"of": "dep"}}, point, **settings)))
        seen = Occurrence("q", 2, point, "checkpoint")
        fault.strike(context, seen)
        return fault.prove(context, seen)


def continues(world: World) -> None:
    world.batches.append(world.batch(3, by=1))


def begins_anew(world: World) -> None:
    assert not (world.folder / "commits").exists(), "the checkpoint was removed"
    world.set_id("two")
    world.batches = [world.batch(0, by=1)]


def is_refused(world: World) -> None:
    world.failure = Exit(1, 1, 2.0)
    world.log = "pyspark.errors...: [STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema ..."


def test_the_new_version_continued_on_the_old_checkpoint(tmp_path: Path) -> None:
    proof = World(tmp_path, NEW, continues).proof()
    text = "; ".join(map(str, proof.evidence))
    assert proof.hit and "started with '--of=arr', no '--of=dep'" in text
    assert "committed batch 3 in the same checkpoint" in text


def test_the_new_version_replayed_a_batch_that_the_watcher_had_not_read_yet(tmp_path: Path) -> None:
    """At after-offset-log the fault strikes inside the watcher's call, before it has read the entry."""
    world = World(tmp_path, NEW, lambda it: it.batches.append(it.batch(2, by=1)))
    world.batches = []
    (tmp_path / "commits" / "2").unlink()
    proof = world.proof(Point.AFTER_OFFSET_LOG)
    assert proof.hit and "replayed the old version's batch 2" in str(proof.evidence[-1])


def test_the_new_version_began_without_a_checkpoint(tmp_path: Path) -> None:
    proof = World(tmp_path, NEW, begins_anew).proof(checkpoint="removed")
    assert proof.hit and "batch 0 of a new checkpoint" in str(proof.evidence[-1])


def test_a_refused_checkpoint_is_a_hit_with_sparks_error(tmp_path: Path) -> None:
    proof = World(tmp_path, NEW, is_refused).proof()
    assert proof.hit and "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE" in str(proof.evidence[-1])


def test_a_driver_that_was_started_as_before_is_a_miss(tmp_path: Path) -> None:
    proof = World(tmp_path, OLD, continues).proof()
    assert not proof.hit and "started like the one before" in str(proof.evidence[-1])


def test_changed_variables_are_named_without_their_values(tmp_path: Path) -> None:
    proof = World(tmp_path, Program(OLD.command, {"A": "s3cret"}), continues).proof()
    text = "; ".join(map(str, proof.evidence))
    assert proof.hit and "another value of A" in text and "s3cret" not in text


@pytest.mark.parametrize(
    ("log", "checkpoint"),
    [
        ("[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function: KeyError", "kept"),
        ("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema ...", "removed"),
    ],
)
def test_another_error_of_the_new_version_is_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, checkpoint: str
) -> None:
    """The first error comes from the job itself. In the second case Spark has no old checkpoint that it could refuse."""
    monkeypatch.setattr("onceproof.chaos.upgrade.RESTART_S", 0.2)

    def fails(world: World) -> None:
        world.failure, world.log = Exit(1, 1, 2.0), f"pyspark.errors...: {log}"

    with pytest.raises(WaitTimeout, match="the new version to go on"):
        World(tmp_path, NEW, fails).proof(checkpoint=checkpoint)
