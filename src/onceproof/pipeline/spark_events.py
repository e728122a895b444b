"""What Spark itself says of the attempts of a batch's tasks: its event log, read while it is written.

One JSON object a line, from Spark's ``EventLoggingListener``. A job that a query started carries the query's id and the
batch in its properties; its stages' tasks begin and end in events of their own, each end with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BATCH, _QUERY = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass(frozen=True)
class Attempt:
    """One attempt at one task of a batch."""

    application: str
    stage: int
    task: int
    """Its index in the stage, the same for all attempts at it."""
    attempt: int
    executor: str
    """``driver`` in local mode."""
    speculative: bool
    launched_ms: int
    """Wall clock of the driver."""
    reason: str | None
    """``Success``, ``ExecutorLostFailure``, ``ExceptionFailure``, ``TaskKilled``, ...; None while nothing is known of its end."""
    why: str = ""
    """The first sentence of what Spark says of a failure."""

    def describe(self) -> str:
        kind = "speculative attempt" if self.speculative else "attempt"
        end = {"Success": "succeeded", None: "was not seen to end"}.get(self.reason, f"ended in {self.reason}")
        return f"{kind} {self.attempt} of task {self.task} in stage {self.stage} on executor {self.executor} {end}"


def attempts(folder: Path, batch: int, query_id: str | None) -> list[Attempt]:
    """All attempts at tasks of that batch, in the order in which they began. ``query_id`` None: of any query.

    Of several applications (a driver that was started again is a new one) the oldest comes first. A line that is not
    whole yet is left for the next look.
    """
    found = [one for log in folder.iterdir() for one in _of_application(log, batch, query_id)]
    return sorted(found, key=lambda a: (a.launched_ms, a.stage, a.task, a.attempt))


def logs(folder: Path) -> list[Path]:
    """The event logs that are there: a job that sets ``spark.eventLog`` itself writes them elsewhere, or not at all."""
    return sorted(folder.iterdir())


def _of_application(log: Path, batch: int, query_id: str | None) -> Iterator[Attempt]:
    stages: set[int] = set()
    begun: dict[tuple[int, int, int, int], Attempt] = {}
    for event in _events(log):
        kind = event.get("Event")
        if kind == "SparkListenerJobStart":
            told = event.get("Properties") or {}
            if told.get(_BATCH) == str(batch) and query_id in (None, told.get(_QUERY)):
                stages |= set(event["Stage IDs"])
        elif kind in ("SparkListenerTaskStart", "SparkListenerTaskEnd") and event["Stage ID"] in stages:
            info = event["Task Info"]
            end = event.get("Task End Reason") or {}
            one = Attempt(
                log.name.removesuffix(".inprogress"),
                event["Stage ID"],
                info["Index"],
                info["Attempt"],
                info["Executor ID"],
                info["Speculative"],
                info["Launch Time"],
                end.get("Reason"),
                _why(end),
            )
            begun[(one.stage, event["Stage Attempt ID"], one.task, one.attempt)] = one
    yield from begun.values()


def _events(log: Path) -> Iterator[dict[str, Any]]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # it was renamed as its application ended: the next look finds it
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _why(end: dict[str, Any]) -> str:
    said = end.get("Loss Reason") or end.get("Kill Reason") or end.get("Description") or ""
    return " ".join(str(said).split()).partition(". ")[0]
