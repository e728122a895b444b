"""The checkpoint with which a schedule begins, and what it holds when the schedule has ended."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onceproof.base.errors import HistoryError
from onceproof.instruments.checkpoint_watcher import parse_commit_log, parse_offset_log
from onceproof.scenario.points import Point


def begin_from(template: Path, checkpoint: Path) -> None:
    """Make ``checkpoint`` the state after a crash in batch 0, whose plan ``template`` holds: it has no input.

    It is another query: two queries with one id in one session would stop each other.
    """
    checkpoint.mkdir(parents=True)
    for name in ("offsets", "sources"):
        shutil.copytree(template / name, checkpoint / name)
    for path in (checkpoint / "offsets").iterdir():
        if path.name not in ("0", ".0.crc"):
            path.unlink()
    document = json.loads((template / "metadata").read_text(encoding="utf-8"))
    # Without the checksum file, Hadoop does not check the content.
    (checkpoint / "metadata").write_text(json.dumps({**document, "id": str(uuid.uuid4())}), encoding="utf-8")


def is_template(checkpoint: Path) -> str | None:
    """Why schedules cannot begin from this checkpoint of a query that has run on empty topics; None if they can."""
    if not (checkpoint / "offsets" / "0").is_file():
        return "the query planned no batch while its topics were empty"
    ends = parse_offset_log((checkpoint / "offsets" / "0").read_text(encoding="utf-8")).ends
    if not ends:
        return "the query reads no topic"
    if any(end for partitions in ends.values() for end in partitions.values()):
        return "the query's first batch has input: it must read its topics from their beginning"
    return None


def batch_rows(
    checkpoint: Path, query: str, events: Sequence[Sequence[Any]], wall_start: float
) -> Iterator[dict[str, Any]]:
    """The rows of table ``batches``. ``events``: wall clock, point, batch, start. Raises `HistoryError`."""
    planned = _last(events, Point.AFTER_OFFSET_LOG, Point.BEFORE_OFFSET_LOG)
    committed = _last(events, Point.AFTER_COMMIT_LOG, Point.AFTER_COMMIT_LOG)
    before: Mapping[str, Mapping[int, int]] = {}
    for batch in numbers(checkpoint / "offsets"):
        log = parse_offset_log((checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8"))
        plan, commit = planned.get(batch), committed.get(batch)
        if (plan is None and batch) or (commit is None) != (not (checkpoint / "commits" / str(batch)).exists()):
            raise HistoryError(f"batch {batch} of {query} was written past the session's checkpoint file system")
        for topic, partitions in log.ends.items():
            for partition, end in partitions.items():
                yield {
                    "query": query,
                    "batch": batch,
                    "topic": topic,
                    "partition": partition,
                    "start_offset": before.get(topic, {}).get(partition, 0),
                    "end_offset": end,
                    "watermark_ms": log.watermark_ms,
                    "planned_at": 0.0 if plan is None else plan[0] - wall_start,
                    "planned_by": 0 if plan is None else plan[1],
                    "committed_at": None if commit is None else commit[0] - wall_start,
                    "committed_by": None if commit is None else commit[1],
                }
        before = log.ends


def unreported(checkpoint: Path, events: Sequence[Sequence[Any]]) -> list[str]:
    """The log files on disk of which ``events`` do not tell. The plan of batch 0 is the template's."""
    planned = _last(events, Point.AFTER_OFFSET_LOG, Point.BEFORE_OFFSET_LOG)
    committed = _last(events, Point.AFTER_COMMIT_LOG, Point.AFTER_COMMIT_LOG)
    plans = [f"offsets/{batch}" for batch in numbers(checkpoint / "offsets") if batch and batch not in planned]
    return plans + [f"commits/{batch}" for batch in numbers(checkpoint / "commits") if batch not in committed]


def progress_rows(checkpoint: Path, query: str) -> Iterator[dict[str, Any]]:
    """The rows of table ``progress``: the ends of the last committed batch."""
    done = numbers(checkpoint / "commits")
    if not done:
        return
    log = parse_offset_log((checkpoint / "offsets" / str(done[-1])).read_text(encoding="utf-8"))
    for topic, partitions in log.ends.items():
        for partition, end in partitions.items():
            yield {"query": query, "batch": done[-1], "topic": topic, "partition": partition, "end_offset": end}


def open_watermark(checkpoint: Path) -> bool:
    """Whether the last committed batch moved the watermark, and no batch has acted on it."""
    done = numbers(checkpoint / "commits")
    if not done:
        return False
    last = parse_offset_log((checkpoint / "offsets" / str(done[-1])).read_text(encoding="utf-8")).watermark_ms
    following = parse_commit_log((checkpoint / "commits" / str(done[-1])).read_text(encoding="utf-8"))
    return following is not None and last is not None and following > last


def numbers(log: Path) -> list[int]:
    """The batches of a log, in order."""
    return sorted(int(path.name) for path in log.glob("[0-9]*") if path.name.isdigit()) if log.is_dir() else []


def _last(events: Sequence[Sequence[Any]], at: Point, by: Point) -> dict[int, tuple[float, int]]:
    """Batch -> when the point was reached the last time, and which start wrote that file (the last to reach ``by``)."""
    times: dict[int, float] = {}
    starts: dict[int, int] = {}
    for wall, point, batch, start in events:
        if point == by:
            starts[batch] = start
            times.pop(batch, None)
        if point == at and batch not in times:
            times[batch] = wall
            starts.setdefault(batch, start)
    return {batch: (wall, starts[batch]) for batch, wall in times.items()}


def remove(folder: Path) -> None:
    """Remove the checkpoint of a schedule that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
