"""Which point a batch reaches with which write of its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from onceproof.scenario.points import Point

#: (log, moment of its write) -> the point that the batch reaches with it
LOG_POINTS = {
    ("offsets", "create"): Point.BEFORE_OFFSET_LOG,
    ("offsets", "renamed"): Point.AFTER_OFFSET_LOG,
    ("commits", "create"): Point.AFTER_SINK_COMMIT,
    ("commits", "renamed"): Point.AFTER_COMMIT_LOG,
}
POINTS = {
    **LOG_POINTS,
    ("_spark_metadata", "create"): Point.BEFORE_SINK_COMMIT,  # Spark's file sink: files are written, but not yet listed
    ("state", "renamed"): Point.STATE_PARTLY_COMMITTED,
}
PLACES = {point: place for place, point in POINTS.items()}


def uncommitted(checkpoint: Path) -> int | None:
    """The batch that is planned and not committed, if there is one: the next driver start replays it."""
    planned = [int(entry.name) for entry in (checkpoint / "offsets").glob("*") if entry.name.isdigit()]
    if not planned or (checkpoint / "commits" / str(max(planned))).exists():
        return None
    return max(planned)


def lines_for(batch: int, point: Point) -> list[str]:
    """The lines that make a driver wait at that point. Batch N writes version N+1 of the state."""
    log, moment = PLACES[point]
    if log == "state":
        return [f"park state {batch + 1} rename", f"park state {batch + 1} renamed"]
    return [f"park {log} {batch} {moment}"]


def place_of(file: Path) -> tuple[Path, str, int]:
    """The checkpoint (or output), log and batch of a file in ``offsets/``, ``commits/`` or ``_spark_metadata/``, or anywhere
    below ``state/``."""
    number = file.name.removesuffix(".compact")
    if file.parent.name != "state" and number.isdigit():
        return file.parent.parent, file.parent.name, int(number)
    state = next(above for above in file.parents if above.name == "state")
    version = re.match(r"\d+", file.name)
    assert version is not None, "Harness.java reports a state file only if its name begins with a version"
    return state.parent, "state", int(version[0]) - 1
