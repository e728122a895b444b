"""What a qualification reads of a run that is over: its verdict, and which instrument saw the point of each fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.judge.findings import VERDICT_FILE, Verdict


def fired_by(run_dir: Path) -> Mapping[int, str]:
    """Number of each fault that fired -> the instrument that saw its point."""
    by: dict[int, str] = {}
    with (run_dir / "events.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            event = json.loads(line)
            if event["kind"] == "fault.fired":
                by[int(event["index"])] = str(event["instrument"])
    return by


def read_verdict(run_dir: Path) -> Verdict:
    """The stored verdict of a run. Raises `HistoryError`."""
    try:
        return Verdict.from_json(run_dir / VERDICT_FILE)
    except (OSError, ValueError) as damaged:
        message = f"{run_dir / VERDICT_FILE} cannot be read: {damaged}"
        again = f"judge the run again: onceproof check {run_dir}"
        gone = "the qualification counts on this run: put its directory back, or begin a new qualification"
        raise HistoryError(message, hint=again if run_dir.is_dir() else gone) from None
