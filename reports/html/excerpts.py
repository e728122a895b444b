"""Finds what the logs of a run say at the time of an event, and stores it in ``excerpts.json`` for the run's page.

The excerpts are made while the run's secrets are known, so they are masked; the logs themselves are as the job wrote them. A page
that is written later shows what is stored, and reads no log.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter

from onceproof.base.masking import masked
from onceproof.base.words import times
from onceproof.history import run_files
from onceproof.reports.html.limits import Limits, Some, short
from onceproof.reports.html.moments import Moment, by_importance

FILE = "excerpts.json"
#: Entries before and after the event, lines at each end of one entry, and characters of one line.
_BESIDE, _AT_EACH_END, _MOST_TEXT = 3, 2, 200
#: Lines at each end of an entry in which secrets are looked for.
_MASKED = 100
#: Lines of a log that are read, characters that are kept of one, and that are read of one: a log may have any size.
_MOST_LINES, _LONGEST_LINE, _LONGEST_READ = 500_000, 10_000, 1_000_000
#: A log may go on for a moment after the last event.
_AFTER_S = 60.0
_STAMP = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d|\d\d/\d\d/\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,6})\d*)?"
    r"(?: ?(?P<zone>Z\b|UTC\b|[+-]\d\d:?\d\d\b))?"
)
_STAMP_WITHIN = 600


@dataclass(frozen=True)
class Excerpt:
    """A few lines of one log."""

    log: str
    """The file's name in ``logs/``."""
    first: int
    """Number of its first line, from 1 on."""
    last: int
    lines: tuple[str, ...]
    """Some of the lines from ``first`` to ``last``, without line ends; of a long entry, the middle is left out."""


@dataclass(frozen=True)
class Excerpts:
    items: tuple[Excerpt, ...] = ()
    of_events: Mapping[str, int] = field(default_factory=dict)
    """Anchor of an event -> index of its excerpt in ``items``."""

    def of(self, anchor: str) -> int | None:
        index = self.of_events.get(anchor)
        return index if index is not None and 0 <= index < len(self.items) else None

    def chosen(self, listed: Iterable[Moment], limits: Limits) -> Some[tuple[int, Excerpt]]:
        """The excerpts of the listed events, each with its index: those of faults, starts and warnings first."""
        used = dict.fromkeys(index for one in by_importance(listed) if (index := self.of(one.anchor)) is not None)
        kept = sorted(list(used)[: limits.excerpts])
        return Some(tuple((index, self.items[index]) for index in kept), len(used) - len(kept))


_ADAPTER = TypeAdapter(Excerpts)


def read(run_dir: Path) -> Excerpts:
    """The stored excerpts; none if the run has no such file. Raises `OSError`, and `ValueError` for another format."""
    try:
        return _ADAPTER.validate_json(run_files.read_text(run_dir / FILE))
    except FileNotFoundError:
        return Excerpts()


def write(run_dir: Path, found: Sequence[Moment], wall_start: float) -> None:
    """Store the excerpts of these events. ``wall_start``: the wall clock at 0 of their times. Raises `OSError`."""
    made = _made(run_dir / "logs", found, wall_start)
    if made.items:
        run_files.write_text(run_dir / FILE, _ADAPTER.dump_json(made).decode() + "\n")


def _made(folder: Path, found: Sequence[Moment], wall_start: float) -> Excerpts:
    until = wall_start + max((one.at for one in found), default=0.0) + _AFTER_S
    logs = {name: _Log.read(folder / name, wall_start, until) for name in {one.log for one in found if one.log}}
    items: dict[Excerpt, int] = {}
    of_events = {}
    for one in found:
        excerpt = None if one.log is None else logs[one.log].at(wall_start + one.at)
        if excerpt is not None:
            of_events[one.anchor] = items.setdefault(excerpt, len(items))
    return Excerpts(tuple(items), of_events)


@dataclass(frozen=True)
class _Entry:
    """A line with a time, and the lines without one that follow it, such as a stack trace."""

    first: int
    lines: list[str]

    @cached_property
    def shown(self) -> tuple[str, ...]:
        """Its lines without secrets, or the first and the last of many. Many events may be near to one entry."""
        # As a whole: a secret in base64 may take several lines.
        ends = self.lines if len(self.lines) <= 2 * _MASKED else [*self.lines[:_MASKED], *self.lines[-_MASKED:]]
        lines = [line for line in masked("\n".join(ends)).split("\n") if line]
        hidden = len(lines) + len(self.lines) - len(ends) - 2 * _AT_EACH_END
        if hidden <= 1:
            return tuple(lines)
        return (*lines[:_AT_EACH_END], f"... {times(hidden, 'more line')} ...", *lines[-_AT_EACH_END:])


@dataclass(frozen=True)
class _Log:
    """The entries of one log in the file's order, and the time of each, seconds since 1970, never decreasing."""

    name: str
    entries: list[_Entry]
    times: list[float]
    is_cut: bool
    """Whether it has more lines than were read."""

    @classmethod
    def read(cls, path: Path, start: float, until: float) -> _Log:
        """Without entries if the file cannot be read, or if its times are not those of the run in any known time zone."""
        lines = list(_lines(path))
        stamps = [_stamp(line) for line in lines]
        # Of times without a zone: this machine's, or that of most containers. Other times are in the text of a line, such as
        # a date of a record. Times of Spark's logs are whole seconds.
        in_zones = ([_within(stamp, zone, start - 1, until) for stamp in stamps] for zone in (None, UTC))
        chosen = max(in_zones, key=lambda at: len(at) - at.count(None))
        return cls(path.name, *_entries(lines, chosen), is_cut=len(lines) == _MOST_LINES)

    def at(self, wall: float) -> Excerpt | None:
        """The entries around a time. None if the log has none."""
        if not self.entries:
            return None
        if self.is_cut and wall > self.times[-1]:
            return None
        middle = bisect_right(self.times, wall)
        around = self.entries[max(middle - _BESIDE, 0) : middle + _BESIDE]
        lines = tuple(short(line, _MOST_TEXT) for one in around for line in one.shown)
        return Excerpt(self.name, around[0].first, around[-1].first + len(around[-1].lines) - 1, lines)


def _lines(path: Path) -> Iterator[str]:
    """The lines without line ends. A long one is masked before it is cut, because half a secret is not found."""
    try:
        # Not at "\r": with it, Spark's progress bar writes over itself, and a line of the log then follows on the same line.
        with run_files.open_text(path, errors="replace", newline="\n") as file:
            for _ in range(_MOST_LINES):
                line = rest = file.readline(_LONGEST_READ)
                if not line:
                    return
                while rest and not rest.endswith("\n"):
                    rest = file.readline(_LONGEST_READ)
                line = next((part for part in reversed(line.rstrip("\n").split("\r")) if part.strip()), "")
                yield line if len(line) <= _LONGEST_LINE else masked(line)[:_LONGEST_LINE]
    except OSError:
        return


def _entries(lines: Sequence[str], at: Sequence[float | None]) -> tuple[list[_Entry], list[float]]:
    """The entries, and their times: each its own, or the greatest before it, because several threads write one log."""
    entries: list[_Entry] = []
    times_of: list[float] = []
    for number, (line, one) in enumerate(zip(lines, at, strict=True), 1):
        if one is not None:
            entries.append(_Entry(number, []))
            times_of.append(max(one, times_of[-1]) if times_of else one)
        if entries:
            entries[-1].lines.append(line)
    return entries, times_of


def _stamp(line: str) -> datetime | None:
    """The first time in a line, as Spark, Kafka, Postgres, Toxiproxy or a program of yours writes it. None: there is none."""
    found = _STAMP.search(line, 0, _STAMP_WITHIN)
    if found is None:
        return None
    day = found["day"].replace("/", "-")
    day = day if len(day) > len("yy-mm-dd") else f"20{day}"
    zone = (found["zone"] or "").replace("UTC", "+00:00").replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(f"{day}T{found['time']}.{(found['part'] or '0'):0<6}{zone}")
    except ValueError:
        return None


def _within(stamp: datetime | None, zone: tzinfo | None, start: float, until: float) -> float | None:
    """The time as seconds since 1970, if it is in this range. ``zone``: of a time without one; None: this machine's."""
    if stamp is None:
        return None
    try:
        at = (stamp if stamp.tzinfo else stamp.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):  # the first or the last year that there is
        return None
    return at if start <= at <= until else None
