"""Checkpoint damage: the driver dies, and before the next one starts, part of the checkpoint is removed or truncated.

It happens when a bucket is cleaned up, yesterday's backup is restored or a disk is full. The effect depends on the file.
Without the commit entry Spark replays the batch; without ``metadata`` it continues the old batches under a new query id
(SPARK-55058); without the folder the query begins at batch 0 again; with a truncated entry it no longer starts by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.frames import wait_for_restart
from onceproof.faults.job import Job, Try, at_checkpoint
from onceproof.faults.placement import RESTART_S, AtItsPoint, committed, placement_at, point_problems
from onceproof.instruments.checkpoint_watcher import query_id_in
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

_KNOWN_S = 5.0
"""Limit for the watcher to read a log entry that was written before the sink ran, which takes milliseconds."""
_POINTS = (Point.AFTER_SINK_COMMIT, Point.AFTER_COMMIT_LOG)
What = Literal["metadata", "commit", "truncated-commit", "folder"]

_SPARK_ERRORS: dict[What, str] = {
    "metadata": "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "truncated-commit": "Incomplete log file",
}
"""Spark's error for a checkpoint with this damage (StreamingQueryCheckpointMetadata, CommitLog). Without an entry, or without
the folder, it starts as usual: a driver that then fails does so for another reason."""


class CheckpointDamageSpec(FaultSpec):
    fault: Literal["checkpoint-damage"]
    target: Literal["checkpoint"]
    what: What = Field(
        description="metadata: that file is removed; commit: the batch's entry in commits/ is removed; truncated-commit: that "
        "entry is truncated to 0 bytes; folder: the whole checkpoint is removed"
    )


@faults.register("checkpoint-damage")
class CheckpointDamage(AtItsPoint[CheckpointDamageSpec]):
    """SIGKILL of the driver, then the damage, then the supervisor starts the next driver: one step after the other."""

    Spec: ClassVar[type[FaultSpec]] = CheckpointDamageSpec
    about: ClassVar[str] = "part of the checkpoint is removed or truncated while the driver is down"

    def __init__(self, spec: CheckpointDamageSpec) -> None:
        self._spec = spec
        self._start = 0
        self._struck_at = 0.0
        self._id: str | None = None
        self._damaged: list[str] = []

    @classmethod
    def problems(cls, spec: CheckpointDamageSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, _POINTS)
        if not problems and "commit" in spec.what and spec.at.point is not Point.AFTER_COMMIT_LOG:
            message = f"at {spec.at.point.value} Spark has not written the commit entry of batch {spec.at.batch} yet"
            problems.append(SpecProblem(("at", "point"), message, "use after-commit-log"))
        if scenario.stack.object_store is not None:
            message = "only a checkpoint in a local folder can be damaged, and this one is in the stack's object store"
            problems.append(SpecProblem(("target",), message, "remove object_store from the stack"))
        return problems

    @classmethod
    def placement(cls, spec: CheckpointDamageSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = {
            "metadata": f"the file was removed, and the next driver failed with {_SPARK_ERRORS['metadata']}, or runs under "
            "another query id",
            "commit": f"commits/{n} was removed, and the next driver committed batch {n} again",
            "truncated-commit": f"commits/{n} was truncated, and the next driver failed, or committed a later batch",
            "folder": "the whole checkpoint was removed, and the next driver planned and committed a batch 0",
        }[spec.what]
        return placement_at(spec.at.point, proof, scenario)

    @classmethod
    def more_tries(cls, job: Job) -> Iterator[Try]:
        """Each damage from which Spark continues by itself; without its metadata, or after a truncated entry, it does not."""
        for what in ("commit", "folder"):
            for one in at_checkpoint(job, (Point.AFTER_COMMIT_LOG,), {"target": "checkpoint", "what": what}):
                yield replace(one, words=", ".join(filter(None, [what, one.words])), alone=what == "folder")

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        folder, n = context.checkpoint.folder(seen.query), seen.batch
        with context.job.frozen():
            # The watcher reads each new log entry: wait until it has read those that are removed here.
            wait_until(f"the plan of batch {n}", lambda: context.checkpoint.batch(seen.query, n), deadline_s=_KNOWN_S)
            self._id = query_id_in(folder)
            self._damaged = _damage(folder, self._spec.what, n)
            self._struck_at = context.timeline.now()
            self._start = context.job.kill_driver()  # frozen until now, so it has written nothing since

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, folder = seen.batch, context.checkpoint.folder(seen.query)
        if not self._damaged:
            missing = "metadata" if self._spec.what == "metadata" else f"commits/{n}"
            return missed(f"nothing was damaged: checkpoint {folder.name} had no {missing}")
        how = "truncated to 0 bytes" if self._spec.what == "truncated-commit" else "removed"
        evidence = [f"while the driver was down at {seen.point} of batch {n}, {', '.join(self._damaged)} was {how}"]
        wait_for_restart(context, self._start)
        evidence.append(
            wait_until("a symptom of the damage", lambda: self._symptom(context, seen, folder), deadline_s=RESTART_S)
        )
        return proven(*evidence)

    def _symptom(self, context: FaultContext, seen: Occurrence, folder: Path) -> str | None:
        n = seen.batch
        done = [
            b
            for b in context.checkpoint.batches()
            if b.query == seen.query and b.committed_at is not None and b.committed_at > self._struck_at
        ]
        failed, error = context.job.failed_since(self._struck_at), _SPARK_ERRORS.get(self._spec.what)
        if failed is not None and not done and error is not None and context.job.log_contains(error):
            return f"the next driver failed (exit code {failed.code}) with Spark's error {error!r}"
        match self._spec.what:
            case "metadata":
                new = query_id_in(folder)
                if new not in (None, self._id):
                    return f"the next driver runs under query id {new}, no longer {self._id}"
            case "commit":
                if committed(context, seen.query, n):
                    return f"batch {n} was replayed: commits/{n} exists again"
            case "truncated-commit":
                if done and done[-1].batch > n:
                    return f"the next driver committed batch {done[-1].batch}"
            case "folder":
                if any(b.batch == 0 for b in done):
                    return "the next driver started over and committed batch 0"
        return None


def _damage(folder: Path, what: What, batch: int) -> list[str]:
    """Damage the checkpoint. Returns what was damaged, as paths below the checkpoint; empty if the file was missing."""
    if what == "folder":
        empty(folder)
        return [f"the checkpoint {folder.name}"]
    path = folder / "metadata" if what == "metadata" else folder / "commits" / str(batch)
    if not path.exists():
        return []
    if what == "truncated-commit":
        path.write_bytes(b"")
    else:
        path.unlink()
    # Remove Hadoop's checksum too: a checksum that does not match would be a second damage.
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return [str(path.relative_to(folder))]


def empty(folder: Path) -> None:
    """Remove everything in the checkpoint, but not the folder itself: it may be the watched root."""
    for entry in list(folder.iterdir()):
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
