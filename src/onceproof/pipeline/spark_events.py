"""Reads the attempts at a batch's tasks from Spark's event log while Spark writes it.

Spark's ``EventLoggingListener`` writes one JSON object per line. A job that a query started has the query's id and the batch in
its properties. Each task of its stages has a start event, and an end event with a reason.
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
    """``Success``, ``ExecutorLostFailure``, ``ExceptionFailure``, ``TaskKilled``, ...; None while its end is not in the log."""
    why: str = ""
    """The first sentence of Spark's description of a failure."""

    def describe(self) -> str:
        kind = "speculative attempt" if self.speculative else "attempt"
        end = {"Success": "succeeded", None: "has no end in Spark's log"}.get(self.reason, f"ended in {self.reason}")
        return f"{kind} {self.attempt} of task {self.task} in stage {self.stage} on executor {self.executor} {end}"


def attempts(folder: Path, batch: int, query_id: str | None) -> list[Attempt]:
    """All attempts at tasks of that batch, in the order of their launch. ``query_id`` None: of any query.

    Each driver start is a new application with a log of its own. An incomplete last line is left for the next call. A job that
    sets ``spark.eventLog`` itself writes its logs elsewhere, or none.
    """
    found = [one for log in folder.iterdir() for one in _of_application(log, batch, query_id)]
    return sorted(found, key=lambda a: (a.launched_ms, a.stage, a.task, a.attempt))


def _of_application(log: Path, batch: int, query_id: str | None) -> Iterator[Attempt]:
    stages: set[int] = set()
    started: dict[tuple[int, int, int, int], Attempt] = {}
    for event in _events(log):
        kind = event.get("Event")
        if kind == "SparkListenerJobStart":
            properties = event.get("Properties") or {}
            if properties.get(_BATCH) == str(batch) and query_id in (None, properties.get(_QUERY)):
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
            started[(one.stage, event["Stage Attempt ID"], one.task, one.attempt)] = one
    yield from started.values()


def _events(log: Path) -> Iterator[dict[str, Any]]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # Spark renamed it when the application ended: the next call finds it
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _why(end: dict[str, Any]) -> str:
    text = end.get("Loss Reason") or end.get("Kill Reason") or end.get("Description") or ""
    return " ".join(str(text).split()).partition(". ")[0]
