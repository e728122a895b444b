"""The rows of the index: what ``run.json``, ``verdict.json`` and ``qualification.json`` say. No table of a history is opened.

A row is read again only if one of these files has changed. Links are not followed: a link among the runs, such as ``latest``,
has no row.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from onceproof.base.errors import OnceproofError
from onceproof.base.timeline import EVENTS
from onceproof.history.run_record import FILE as RUN
from onceproof.judge.findings import VERDICT_FILE, Outcome
from onceproof.qualify.directory import FILE as QUALIFICATION
from onceproof.qualify.directory import Directory
from onceproof.reports.brief import Brief, brief
from onceproof.reports.html.files import FILE as PAGE
from onceproof.reports.html.limits import short
from onceproof.reports.html.run_page import SYMBOLS
from onceproof.serve.live import State, Tail

IN_PROGRESS, NONE = "in progress", "no verdict"
#: Choices of the filter.
VERDICTS = (*(one.value for one in Outcome), IN_PROGRESS, NONE)
#: Rows of the page. Without an event for so long, a run without a verdict has ended without one: it was killed.
MOST_ROWS, SILENT_S = 1000, 900.0
_STAMP = re.compile(r"-(\d{8}T\d{6})-[0-9a-f]+$", re.ASCII)
_FILES = (RUN, VERDICT_FILE, QUALIFICATION)


@dataclass(frozen=True)
class Row:
    """One run, or one qualification."""

    name: str
    """Of its directory."""
    link: str
    """Of its page, from the root of the server."""
    kind: str
    scenario: str
    result: str
    """One of `VERDICTS`."""
    word: str
    symbol: str
    why: str
    findings: str
    faults: str
    began: float
    seconds: float | None
    state: State | None = None
    """While it is in progress."""

    @property
    def style(self) -> str:
        return "none" if self.result in (IN_PROGRESS, NONE) else self.result

    @property
    def began_at(self) -> str:
        try:
            return datetime.fromtimestamp(self.began, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        except (OverflowError, OSError, ValueError):  # of a foreign record
            return "unknown"


@dataclass(frozen=True)
class Wanted:
    """A filter. Empty: everything."""

    verdict: str = ""
    scenario: str = ""
    text: str = ""

    def fits(self, row: Row) -> bool:
        shown = " ".join((row.name, row.kind, row.scenario, row.word, row.why, row.findings, row.faults)).casefold()
        return (
            self.verdict in ("", row.result)
            and self.scenario in ("", row.scenario)
            and all(word in shown for word in self.text.casefold().split())
        )


@dataclass
class _Known:
    """What was read of one directory."""

    signature: tuple[object, ...]
    row: Row
    ended: bool
    """No more can come: it has a verdict, or says how it ended."""
    planned: int | None
    """Number of faults in the scenario, if that is known."""
    wall_start: float | None
    tails: dict[tuple[str, ...], Tail]


class Index:
    """The rows of one folder. Safe from any thread."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """The newest first. Raises `OSError` if the folder cannot be read."""
        with self._lock:
            names = _folders(self._runs_dir)
            self._known = {name: known for name, known in self._known.items() if name in names}
            rows = [row for name in names if (row := self._row(name)) is not None]
        return sorted(rows, key=lambda row: (row.began, row.name), reverse=True)

    def _row(self, name: str) -> Row | None:
        folder = self._runs_dir / name
        files = [_signature(folder / file) for file in _FILES]
        # A run in progress adds to its events all the time: only whether there are any counts.
        signature = (*files, _signature(folder / EVENTS) is not None)
        if not any(signature):
            return None
        known = self._known.get(name)
        if known is None or known.signature != signature:
            tails = {} if known is None else known.tails
            try:
                known = self._known[name] = _read(folder, signature, tails)
            except Exception as defect:  # one folder that nothing foresaw must not hide all others
                known = self._known[name] = _unreadable(folder, signature, defect)
        return known.row if known.ended else self._in_progress(folder, known)

    def _in_progress(self, folder: Path, known: _Known) -> Row:
        names = (folder.name,) if known.row.kind == "run" else _newest_run(folder)
        changed = [_changed(self._runs_dir.joinpath(*names) / EVENTS)]
        changed += [_changed(folder / file) for file in (RUN, QUALIFICATION)]
        if time.time() - max(changed) > SILENT_S:
            return known.row
        tail = known.tails.get(names) or Tail(self._runs_dir, names)
        known.tails.clear()
        known.tails[names] = tail
        tail.look()
        if tail.stopped and known.row.kind == "run":
            return known.row
        seconds = 0.0 if known.wall_start is None else time.time() - known.wall_start
        state = tail.state(known.planned, seconds if tail.at <= seconds <= tail.at + SILENT_S else tail.at)
        row = replace(known.row, findings="", faults="", seconds=None)
        return replace(row, result=IN_PROGRESS, word=IN_PROGRESS, symbol="\u2026", state=state)


def digest(rows: list[Row]) -> str:
    """Changes whenever the list does, but not with the state of a run in progress."""
    return hashlib.sha256(repr([replace(row, state=None) for row in rows]).encode("utf-8", "replace")).hexdigest()[:16]


def link_to(*names: str) -> str:
    """The address of a file in the folder of runs, from the root of the server."""
    return "/".join(("", "runs", *(quote(os.fsencode(name), safe="") for name in names)))


def _folders(parent: Path) -> set[str]:
    """Names of the plain folders in it, without links and hidden ones."""
    with os.scandir(parent) as entries:
        return {one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")}


def _signature(path: Path) -> tuple[int, ...] | None:
    """Changes when the file does; None: there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _changed(path: Path) -> float:
    """When the file was changed; a link's own time, and 0 if there is none."""
    signature = _signature(path)
    return 0.0 if signature is None else signature[0] / 1e9


def _read(folder: Path, signature: tuple[object, ...], tails: dict[tuple[str, ...], Tail]) -> _Known:
    if signature[_FILES.index(QUALIFICATION)] is not None:
        return _qualification(folder, signature, tails)
    found = brief(folder)
    record = found.record
    row = Row(
        name=folder.name,
        link=link_to(folder.name, PAGE),
        kind="run",
        scenario=short(found.name),
        result=NONE if found.outcome is None else found.outcome.value,
        word=short(found.word),
        symbol="?" if found.outcome is None else SYMBOLS[found.outcome],
        why=short("; ".join(dict.fromkeys((found.why.partition("\n")[0], *found.notes)))),
        findings=_findings(found),
        faults=found.hits,
        began=record.wall_start if record.wall_start is not None else _made(folder),
        seconds=found.verdict.seconds if found.verdict is not None else record.seconds or None,
    )
    judged = signature[_FILES.index(VERDICT_FILE)] is not None  # also if that cannot be read
    ended = judged or record.imported or record.interrupted or record.error is not None
    return _Known(signature, row, ended, len(record.scenario.chaos or []), record.wall_start, tails)


def _unreadable(folder: Path, signature: tuple[object, ...], defect: Exception) -> _Known:
    why = short(f"cannot be read: {type(defect).__name__}: {defect}")
    row = Row(
        folder.name, link_to(folder.name, PAGE), "run", folder.name, NONE, NONE, "?", why, "", "", _made(folder), None
    )
    return _Known(signature, row, True, None, None, {})


def _findings(found: Brief) -> str:
    broken = {} if found.verdict is None else found.verdict.anomalies()
    return short(", ".join(f"{anomaly} {total:,}" for anomaly, total in list(broken.items())[:20]))


def _qualification(folder: Path, signature: tuple[object, ...], tails: dict[tuple[str, ...], Tail]) -> _Known:
    link = link_to(folder.name, PAGE)
    row = Row(folder.name, link, "qualification", folder.name, NONE, NONE, "?", "", "", "", _made(folder), None)
    try:
        progress = Directory.open(folder)[1]
    except OnceproofError as error:
        why = short(error.message.partition("\n")[0].replace(f"{folder}/", ""))
        return _Known(signature, replace(row, why=why), True, None, None, tails)
    result = progress.result()
    cells = progress.settled()
    reachable = [cell for cell in cells if cell.reachable]
    anomalies = dict.fromkeys(
        [
            *(anomaly for cell in cells for anomaly in cell.anomalies),
            *(a for found in progress.unclaimed.values() for a in found),
        ]
    )
    row = replace(
        row,
        scenario=short(progress.scenario),
        result=result.value,
        word=result.value,
        symbol=SYMBOLS[result],
        why=f"{sum(cell.verdict is not None for cell in reachable)} of {len(reachable)} cells are decided",
        findings=short(", ".join(list(anomalies)[:20])),
        seconds=progress.spent_s,
    )
    return _Known(signature, row, progress.ended is not None, None, None, tails)


def _newest_run(folder: Path) -> tuple[str, ...]:
    """The run of a qualification that has begun last: the folders from the qualification on."""
    runs = folder / "runs"
    newest: tuple[float, str] = (0.0, "")
    with suppress(OSError):
        if stat.S_ISDIR(runs.lstat().st_mode):
            newest = max(((_changed(runs / name / RUN), name) for name in _folders(runs)), default=newest)
    return (folder.name, runs.name, newest[1]) if newest[1] else (folder.name,)


def _made(folder: Path) -> float:
    """When the directory was made: by its name, or else when it was changed."""
    try:
        if stamp := _STAMP.search(folder.name):
            return datetime.strptime(f"{stamp[1]}Z", "%Y%m%dT%H%M%S%z").timestamp()
    except ValueError:
        pass  # not one of ours
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def scenarios(rows: list[Row]) -> Iterator[str]:
    """Names of the scenarios, each once."""
    yield from sorted({row.scenario for row in rows})
