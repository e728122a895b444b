"""Reads what a report shows of a stored run, as far as it is there. A foreign run can lead it to no file outside of the run.

Whatever cannot be read becomes a note on the page: a report of an interrupted or damaged run shows the rest.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import duckdb

from onceproof.base.errors import HistoryError, NotARun
from onceproof.base.timeline import EVENTS, Event
from onceproof.history import run_files
from onceproof.history.database import Connection, Database, observed_rows
from onceproof.history.reader import History, open_history
from onceproof.history.run_record import FILE, RunRecord
from onceproof.history.version import JUDGE_THERE, other_version
from onceproof.judge import shown_rows
from onceproof.judge.findings import VERDICT_FILE, Verdict
from onceproof.judge.shown_rows import ShownRows
from onceproof.reports.brief import Brief
from onceproof.reports.html import excerpts
from onceproof.reports.html.excerpts import Excerpts

T = TypeVar("T")

LOGS = "logs"
#: Lines of ``events.jsonl`` that are read, and characters of one line: a foreign file may have any size.
MOST_EVENTS, _LONGEST_LINE = 200_000, 100_000
_MOST_LOGS = 60
_MOST_COMMITS = 2_000


@dataclass(frozen=True)
class Batch:
    """One micro-batch. Times are seconds on the run's clock; None: not seen."""

    query: str
    number: int
    planned_at: float | None
    planned_by: int | None
    committed_at: float | None
    committed_by: int | None
    records: int | None = None
    """Committed input records, if known."""

    @property
    def replayed(self) -> bool:
        return self.planned_by is not None and self.committed_by != self.planned_by


@dataclass(frozen=True)
class SinkCommit:
    """Rows or records that became visible in one output at one time."""

    output: str
    at: float
    rows: int


@dataclass(frozen=True)
class StoredRun(Brief):
    """What could be read of a run."""

    events: tuple[Event, ...] = ()
    batches: tuple[Batch, ...] = ()
    commits: tuple[SinkCommit, ...] = ()
    rows: tuple[ShownRows, ...] = ()
    logs: tuple[str, ...] = ()
    """Names of the files in ``logs/``."""
    excerpts: Excerpts = field(default_factory=Excerpts)


@dataclass
class _Reading:
    path: Path
    notes: list[str] = field(default_factory=list)

    def note(self, what: str, why: object) -> None:
        self.notes.append(f"{what}: {why}".replace(f"{self.path}/", ""))

    def read(self, file: str, from_run: Callable[[Path], T], none: T) -> T:
        """What is in a file of the run; ``none`` and a note if it cannot be read."""
        try:
            return from_run(self.path)
        except (OSError, ValueError, RecursionError) as error:
            self.note(file, f"it cannot be read: {_first_line(error)}")
            return none


def read(run_dir: Path) -> StoredRun:
    """Read a run. Raises `NotARun` for another folder, and `HistoryError` if there are links among the run's files."""
    reading = _Reading(run_dir)
    record = _record(reading)
    history = _history(reading) if record.observed else None
    batches, commits = ((), ()) if history is None else _tables(reading, history)
    return StoredRun(
        path=run_dir,
        record=record,
        verdict=_verdict(reading),
        events=tuple(_events(reading)),
        batches=batches,
        commits=commits,
        rows=reading.read(shown_rows.FILE, shown_rows.read, ()),
        logs=_logs(reading),
        excerpts=reading.read(excerpts.FILE, excerpts.read, Excerpts()),
        notes=tuple(reading.notes),
    )


def _record(reading: _Reading) -> RunRecord:
    try:
        record = RunRecord.read(reading.path)
        if (other := other_version(record.schema_, record.onceproof)) is not None:
            reading.note(
                FILE, f"{other}. This page shows what it can read, and may lack or misread the rest: {JUDGE_THERE}"
            )
        return record
    except NotARun:
        raise
    except HistoryError as error:
        run_files.refuse_links(reading.path)  # a run that leads elsewhere is not shown at all
        reading.note(FILE, f"{error.message}. What it says is missing below")
        return RunRecord()


def _verdict(reading: _Reading) -> Verdict | None:
    if not os.path.lexists(reading.path / VERDICT_FILE):
        why = f"there is none: the run was never judged. To judge it: onceproof check {reading.path}"
        reading.note(VERDICT_FILE, why)
        return None
    return reading.read(VERDICT_FILE, lambda path: Verdict.from_json(path / VERDICT_FILE), None)


def _events(reading: _Reading) -> Iterator[Event]:
    """The events in their order. A line that is not an event is skipped: the last one of a killed run may be cut off."""
    skipped = 0
    try:
        with run_files.open_text(reading.path / EVENTS, errors="replace") as file:
            for number in range(MOST_EVENTS + 1):
                line = file.readline(_LONGEST_LINE)
                if not line:
                    break
                if number == MOST_EVENTS:
                    reading.note(EVENTS, f"only its first {MOST_EVENTS:,} lines are shown")
                    break
                event = _event(line)
                if event is None:
                    skipped += 1
                else:
                    yield event
    except OSError as error:
        reading.note(EVENTS, f"it cannot be read: {error.strerror or error}")
    if skipped:
        reading.note(EVENTS, f"{skipped:,} of its lines could not be read and are left out")


def _event(line: str) -> Event | None:
    try:
        return Event.from_line(line)
    except ValueError:
        return None


def _history(reading: _Reading) -> History | None:
    try:
        return open_history(reading.path)
    except HistoryError as error:
        reading.note("history", error.message)
        return None


def _tables(reading: _Reading, history: History) -> tuple[tuple[Batch, ...], tuple[SinkCommit, ...]]:
    try:
        with tempfile.TemporaryDirectory(prefix="onceproof-report-") as folder:
            scenario = history.run.scenario.parsed(reading.path, with_faults=False)
            with closing(Database(history, scenario, Path(folder), whole_run=True)) as db:
                return tuple(_batches(db)), tuple(_commits(db, reading))
    except (duckdb.Error, OSError, HistoryError) as error:
        reading.note("history", f"its tables cannot be read: {_first_line(error)}")
        return (), ()


def _batches(db: Connection) -> Iterator[Batch]:
    rows = db.rows(
        f"""SELECT query, batch, min(planned_at) AS planned_at, min(planned_by) AS planned_by,
                   max(committed_at) AS committed_at, max(committed_by) AS committed_by
            FROM ({_table(db, "batches")}) GROUP BY query, batch ORDER BY query, batch"""  # noqa: S608
    )
    for row in rows:
        yield Batch(
            query=row["query"] or "",
            number=row["batch"] or 0,
            planned_at=row["planned_at"],
            planned_by=row["planned_by"],
            committed_at=row["committed_at"],
            committed_by=row["committed_by"],
        )


def _commits(db: Connection, reading: _Reading) -> Iterator[SinkCommit]:
    """Commits by output, in order. Without transactions, records that were written in the same tenth of a second are one."""
    began = db.run.wall_start
    if began is None:
        return
    rows = db.rows(
        f"""SELECT o.output, coalesce(o.txn_end_ms, c.commit_time_us / 1000, o.timestamp_ms // 100 * 100) AS ms, count(*) AS total
            FROM ({_table(db, "output")}) o LEFT JOIN ({_table(db, "commits")}) c USING (commit_order)
            WHERE o.visibility = 'committed' GROUP BY ALL HAVING ms IS NOT NULL ORDER BY ms LIMIT {_MOST_COMMITS + 1}"""  # noqa: S608
    )
    if len(rows) > _MOST_COMMITS:
        reading.note("history", f"only the first {_MOST_COMMITS:,} commits of the outputs are drawn")
    for row in rows[:_MOST_COMMITS]:
        at = float(row["ms"]) / 1000 - began
        if 0 <= at < 1e9:
            yield SinkCommit(row["output"] or "", at, row["total"])


def _table(db: Connection, name: str) -> str:
    return observed_rows(db.history, name)


def _logs(reading: _Reading) -> tuple[str, ...]:
    folder = reading.path / LOGS
    if not folder.is_dir() or folder.is_symlink():
        return ()
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    if len(names) > _MOST_LOGS:
        reading.note(LOGS, f"only the first {_MOST_LOGS} of its {len(names):,} files are linked")
    return tuple(names[:_MOST_LOGS])


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:300]
