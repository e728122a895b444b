"""Checkpoint damage: the driver dies, and before the next one starts, part of the checkpoint is gone or cut short.

A cleaned-up bucket, a restore from yesterday, a disk that was full. What Spark makes of it depends on the file: a lost commit
entry is a batch to be replayed; a lost ``metadata`` is a new query id over the old batches (SPARK-55058); a lost folder is a
query that begins at batch 0 again; an entry cut short is a query that does not start any more, by itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from onceproof.base.waiting import wait_until
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults
from onceproof.faults.placement import RESTART_S, committed, instruments_of, placement, point_problems
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.points import Point

_KNOWN_S = 5.0
"""For the watcher to have read a log entry that was written before the sink ran: it takes milliseconds."""
_PLACES = (Point.AFTER_SINK_COMMIT, Point.AFTER_COMMIT_LOG)
What = Literal["metadata", "commit", "truncated-commit", "folder"]

_SAID: dict[What, str] = {
    "metadata": "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "truncated-commit": "Incomplete log file",
}
"""In which words Spark refuses a checkpoint that is damaged so (StreamingQueryCheckpointMetadata, CommitLog). Without an entry,
or without the folder, it starts as usual: a driver that fails then has failed of something else."""


class CheckpointDamageSpec(FaultSpec):
    fault: Literal["checkpoint-damage"]
    target: Literal["checkpoint"]
    what: What = Field(
        description="metadata: removed; commit: the entry of the batch removed; truncated-commit: that entry cut to "
        "nothing; folder: all of it removed"
    )


@faults.register("checkpoint-damage")
class CheckpointDamage:
    """SIGKILL of the driver, then the damage, then the supervisor's restart: never two of them at once."""

    Spec: ClassVar[type[FaultSpec]] = CheckpointDamageSpec
    about: ClassVar[str] = "part of the checkpoint is lost or cut short while the driver is down"

    def __init__(self, spec: CheckpointDamageSpec) -> None:
        self._spec = spec
        self._start = 0
        self._struck_at = 0.0
        self._id: str | None = None
        self._gone: list[str] = []

    @classmethod
    def problems(cls, spec: CheckpointDamageSpec, scenario: Scenario) -> list[SpecProblem]:
        problems = point_problems(spec, _PLACES)
        if not problems and "commit" in spec.what and spec.at.point is not Point.AFTER_COMMIT_LOG:
            message = f"at {spec.at.point.value} the commit entry of batch {spec.at.batch} is not written yet"
            problems.append(SpecProblem(("at", "point"), message, "use after-commit-log"))
        return problems

    @classmethod
    def placement(cls, spec: CheckpointDamageSpec, scenario: Scenario) -> Placement:
        n = spec.at.batch
        proof = {
            "metadata": "the file was removed, and the next driver runs under another query id",
            "commit": f"commits/{n} was removed, and the next driver committed batch {n} again",
            "truncated-commit": f"commits/{n} was cut to nothing, and the next driver failed, or committed past it",
            "folder": "nothing was left of it, and the next driver has planned and committed a batch 0",
        }[spec.what]
        return placement(spec.at.point, proof, scenario)

    def matches(self, seen: Occurrence) -> bool:
        return seen.point is self._spec.at.point and seen.instrument in instruments_of(seen.point)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        folder, n = context.checkpoint.folder(seen.query), seen.batch
        with context.job.frozen():
            # The watcher reads what it hears of: it must not be about to read what is removed here.
            wait_until(f"the plan of batch {n}", lambda: context.checkpoint.batch(seen.query, n), deadline_s=_KNOWN_S)
            self._id = _query_id(folder)
            self._gone = _damage(folder, self._spec.what, n)
            self._struck_at = context.timeline.now()
            self._start = context.job.kill_driver()  # frozen until now, so it has written nothing since

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        n, folder = seen.batch, context.checkpoint.folder(seen.query)
        if not self._gone:
            return Proof(False, (f"there was nothing of it to damage below {folder.name}",))
        how = "cut to nothing" if self._spec.what == "truncated-commit" else "removed"
        words = [f"while the driver was down at {seen.point} of batch {n}, {', '.join(self._gone)} was {how}"]
        wait_until(
            "the driver to be started again", lambda: context.job.restarted_since(self._start), deadline_s=RESTART_S
        )
        words.append(
            wait_until("the damage to show", lambda: self._symptom(context, seen, folder), deadline_s=RESTART_S)
        )
        return Proof(True, tuple(words))

    def heal(self, context: FaultContext) -> None:
        """What is lost is lost: the pipeline goes on from what is left."""

    def _symptom(self, context: FaultContext, seen: Occurrence, folder: Path) -> str | None:
        n = seen.batch
        now = context.checkpoint.batches()
        done = [
            b for b in now if b.query == seen.query and b.committed_at is not None and b.committed_at > self._struck_at
        ]
        failed, said = context.job.failed_since(self._struck_at), _SAID.get(self._spec.what)
        if failed is not None and not done and said is not None and context.job.said(said):
            return f"the next driver failed (exit code {failed.code}), and Spark said: {said}"
        match self._spec.what:
            case "metadata":
                new = _query_id(folder)
                return (
                    None
                    if new in (None, self._id)
                    else f"the next driver runs as query {new}, not {self._id} as before"
                )
            case "commit":
                return (
                    f"batch {n} was replayed: commits/{n} is there again" if committed(context, seen.query, n) else None
                )
            case "truncated-commit":
                return f"the next driver committed batch {done[-1].batch}" if done and done[-1].batch > n else None
            case "folder":
                return "the next driver began anew and committed batch 0" if any(b.batch == 0 for b in done) else None


def _damage(folder: Path, what: What, batch: int) -> list[str]:
    """Do it; what was hit, as paths below the checkpoint."""
    if what == "folder":
        for entry in list(folder.iterdir()):  # the folder itself may be the watched root
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return [f"the checkpoint {folder.name}"]
    path = folder / "metadata" if what == "metadata" else folder / "commits" / str(batch)
    if not path.exists():
        return []
    if what == "truncated-commit":
        path.write_bytes(b"")
    else:
        path.unlink()
    # Hadoop's checksum of it: beside a file of other bytes it would be a second damage.
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return [str(path.relative_to(folder))]


def _query_id(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):  # not there, or not written to its end
        return None
