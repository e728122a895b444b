"""The state of a run in progress, from its ``events.jsonl``: only what was added since the last look is read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from onceproof.base.timeline import EVENTS, Event
from onceproof.base.visible import visible
from onceproof.history import run_files

#: Bytes that one look reads, bytes of one line, and characters of one text: a foreign file may have any size.
_MOST_BYTES, _LONGEST_LINE, _MOST_TEXT = 16 * 2**20, 100_000, 100
#: Parts of the lines that matter. All others are skipped unread.
_RELEVANT = (b'"phase"', b'"batch.committed"', b'"fault.')


@dataclass(frozen=True)
class State:
    """For people. All of it comes from the run and may be foreign text."""

    phase: str
    batch: str
    """``4``, or ``both 4, other 2`` with several queries."""
    faults: str
    seconds: float

    def __str__(self) -> str:
        return f"phase {self.phase}, batch {self.batch}, faults: {self.faults}, {self.seconds:.0f} s"


@dataclass
class Tail:
    """Follows the events of one run. Not safe for use by several threads at once."""

    runs_dir: Path
    names: tuple[str, ...]
    """The folders from there to the run."""
    phase: str = "fetch"
    at: float = 0.0
    """Time of the last event, in seconds on the run's clock."""
    stopped: bool = False
    """The run has recorded its end."""
    batches: dict[str, int] = field(default_factory=dict)
    fired: set[int] = field(default_factory=set)
    hit: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    _offset: int = 0

    def look(self) -> None:
        """Read what was added. A file that cannot be read, or a line that is not an event, changes nothing."""
        with suppress(OSError), run_files.open_below(self.runs_dir, *self.names, EVENTS) as file:
            file.seek(self._offset)
            left = _MOST_BYTES
            while left > 0 and (line := file.readline(_LONGEST_LINE)):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
                    break  # it is being written: read it whole the next time
                self._offset += len(line)
                left -= len(line)
                if any(part in line for part in _RELEVANT):
                    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError):
                        self._add(Event.from_line(line.decode(errors="replace")))

    def state(self, planned: int | None, seconds: float) -> State:
        """``planned``: the number of faults in the scenario, None if that is not known. ``seconds``: how long it has run."""
        done = [f"{len(numbers)} {word}" for numbers, word in ((self.hit, "hit"), (self.missed, "missed")) if numbers]
        active = len(self.fired - self.hit - self.missed)
        done += [f"{active} active"] if active else []
        of = "" if planned is None else f" of {planned}"
        faults = "none planned" if planned == 0 else f"{', '.join(done)}{of}" if done else f"none{of} so far"
        return State(self.phase, self._batch(), faults, seconds)

    def _batch(self) -> str:
        if len(self.batches) == 1:
            return str(next(iter(self.batches.values())))
        shown = sorted(self.batches.items())[:10]
        return ", ".join(f"{query} {batch}" for query, batch in shown) or "none yet"

    def _add(self, event: Event) -> None:
        self.at, kind, data = event.at, event.kind, event.data
        if kind == "phase":
            self.phase = visible(str(data["name"])[:_MOST_TEXT])
            self.stopped = self.phase == "stopped"
        elif kind == "batch.committed" and len(self.batches) < 100:
            self.batches[visible(str(data.get("query") or "")[:_MOST_TEXT])] = int(data["batch"])
        elif kind in ("fault.fired", "fault.hit", "fault.missed"):
            numbers = {"fault.fired": self.fired, "fault.hit": self.hit, "fault.missed": self.missed}[kind]
            if len(numbers) < 1000:
                numbers.add(int(data["index"]))
