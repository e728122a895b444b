"""What a stored run says of itself in ``run.json`` and ``verdict.json``, however damaged it is. No table is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceproof.base.errors import HistoryError, NotARun
from onceproof.history.run_record import FILE, RunRecord
from onceproof.judge.findings import VERDICT_FILE, Outcome, Verdict

#: A larger file than this is not read.
_MOST_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Brief:
    path: Path
    record: RunRecord
    verdict: Verdict | None
    notes: tuple[str, ...] = ()
    """What could not be read, and why."""

    @property
    def name(self) -> str:
        """The scenario's, or else the directory's."""
        return self.verdict.scenario if self.verdict is not None else self.record.scenario.name or self.path.name

    @property
    def outcome(self) -> Outcome | None:
        return None if self.verdict is None else self.verdict.outcome

    @property
    def word(self) -> str:
        return "no verdict" if self.verdict is None else self.verdict.word

    @property
    def why(self) -> str:
        """The first reason of the verdict, or why there is none."""
        if self.verdict is not None and self.verdict.reasons:
            return self.verdict.reasons[0]
        return self.record.error or "; ".join(self.notes) or "it was never judged"

    @property
    def hits(self) -> str:
        """How many of its faults hit: ``2 of 3``."""
        faults = () if self.verdict is None else self.verdict.faults
        planned = max(len(faults), len(self.record.scenario.chaos or []))
        return f"{sum(fault.hit for fault in faults)} of {planned}" if planned else "no fault"


def brief(run_dir: Path) -> Brief:
    notes: list[str] = []
    return Brief(run_dir, _record(run_dir, notes), _verdict(run_dir, notes), tuple(notes))


def _record(run_dir: Path, notes: list[str]) -> RunRecord:
    if _is_too_large(run_dir / FILE):
        notes.append(f"{FILE}: it is too large")
        return RunRecord()
    try:
        return RunRecord.read(run_dir)
    except NotARun:
        notes.append(f"{FILE}: there is none")
    except (HistoryError, RecursionError) as error:
        notes.append(_line(str(error).partition("\n")[0], run_dir))
    return RunRecord()


def _verdict(run_dir: Path, notes: list[str]) -> Verdict | None:
    if _is_too_large(run_dir / VERDICT_FILE):
        notes.append(f"{VERDICT_FILE}: it is too large")
        return None
    try:
        return Verdict.from_json(run_dir / VERDICT_FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        notes.append(_line(f"{VERDICT_FILE} cannot be read: {str(error).partition(chr(10))[0]}", run_dir))
        return None


def _line(text: str, run_dir: Path) -> str:
    return text.replace(f"{run_dir}/", "")[:300]


def _is_too_large(path: Path) -> bool:
    try:
        return path.lstat().st_size > _MOST_BYTES
    except OSError:
        return False
