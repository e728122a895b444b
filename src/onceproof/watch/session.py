"""One watch, from its first offset to its verdict: reads topics, closes and settles windows, reports what it finds.

A window is closed when the input has been read past the ends that it had at one moment. It is settled when the grace period is over,
and the output has been read past the ends that it had then. Both sides are therefore complete up to known offsets, and the delay
depends on neither the rate of records nor their timestamps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import duckdb
from confluent_kafka import KafkaException, Message

from onceproof.base.errors import Interrupted, OnceproofError
from onceproof.base.signals import uninterrupted
from onceproof.history.run_directory import private_files
from onceproof.judge.findings import Verdict
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.owner import Owner
from onceproof.stores.kafka.rows import COMMITTED, input_batch, offset_of, output_batch
from onceproof.watch.judging import Settlement, Windows
from onceproof.watch.metrics import FOUND, Metrics, served
from onceproof.watch.summary import Tally, verdict_on
from onceproof.watch.topics import Topics, Unreachable
from onceproof.watch.window import Positions, behind, reached

#: How long one call waits for records.
_TURN_S = 0.1
#: At the end, how long it waits for the output after the grace period, before it gives the last windows up.
_GIVE_UP_S = 30.0
#: Lines about progress are this far apart.
PROGRESS_S = 10.0


@dataclass(frozen=True)
class Options:
    """The settings of a watch. Times are in seconds."""

    kafka: str
    """Bootstrap addresses."""
    window_s: float = 5.0
    grace_s: float = 5.0
    """How long after its window was closed a row may become readable without being late."""
    lead_in_s: float = 60.0
    """How much of the input before the start is read, so that rows of earlier records are recognized."""
    for_s: float | None = None
    """When it ends by itself; None: at a signal."""
    remember_s: float = 600.0
    """How long the identities of settled rows are remembered."""
    metrics_port: int | None = None


@dataclass(frozen=True)
class Progress:
    """How far a watch is."""

    seconds: float
    """Since its start."""
    windows: int
    records: int
    """Input records in settled windows."""
    rate: float
    """Input records read per second, since the last progress."""
    lag_s: float
    """Age of the newest input that is judged."""
    waiting: int
    """Records held in memory."""
    problem: str | None = None
    """Why nothing can be read at the moment."""


@dataclass(frozen=True)
class Began:
    """The first offsets that are judged."""

    inputs: Mapping[tuple[str, int], int]
    outputs: Mapping[tuple[str, int], int]
    metrics_port: int | None
    notices: tuple[str, ...]
    """What the verdict will not cover."""


@dataclass(frozen=True)
class Ending:
    """It has begun to end: input from now on is not judged."""

    wait_s: float


Event = Began | Settlement | Progress | Ending


@dataclass
class _Cut:
    """A window that is being closed."""

    ends: Positions
    """The ends of the input, to be read before it is closed."""
    seen: dict[tuple[str, int], int]
    """How far the outputs had been read just before these ends were asked for."""


@dataclass
class Watch:
    """One watch of a scenario. `run` returns its verdict."""

    scenario: Scenario
    options: Options
    listener: Callable[[Event], None]
    metrics: Metrics = field(default_factory=Metrics)
    tally: Tally = field(default_factory=Tally)

    def run(self) -> Verdict:
        """Watch until the time is over or a signal comes; then settle the last windows. A second signal ends it at once.

        Raises `UsageError` for a topic that does not exist or a port that is in use, and `HistoryError` if the brokers cannot be
        reached at the start. What fails later makes the verdict inconclusive.
        """
        with ExitStack() as closing:
            closing.enter_context(private_files())
            folder = closing.enter_context(Owner()).scratch
            inputs = closing.enter_context(Topics(self.options.kafka, self.input_topics()))
            outputs = closing.enter_context(Topics(self.options.kafka, list(dict.fromkeys(self.topic_of().values()))))
            port = closing.enter_context(served(self.metrics, self.options.metrics_port))
            loop = _Loop(self, Windows(self.scenario, folder, self.options.remember_s), inputs, outputs)
            loop.begin(port)
            loop.watch()
        return verdict_on(self.scenario, self.tally, loop.windows, loop.seconds())

    def input_topics(self) -> list[str]:
        return list(dict.fromkeys(spec.topic for spec in self.scenario.input))

    def topic_of(self) -> dict[str, str]:
        """Output -> its topic."""
        return {name: spec.topic for name, spec in self.scenario.outputs.items() if spec.topic is not None}


class _Loop:
    """Reads both sides in turns, and closes and settles windows when they are due."""

    def __init__(self, watch: Watch, windows: Windows, inputs: Topics, outputs: Topics) -> None:
        self.windows = windows
        self._watch = watch
        self._options = watch.options
        self._tally = watch.tally
        self._inputs, self._outputs = inputs, outputs
        self._outputs_of = {
            topic: [name for name, its in watch.topic_of().items() if its == topic] for topic in outputs.topics
        }
        self._began = self._next_cut = self._next_progress = time.monotonic()
        self._lead_in_ends: Positions | None = None
        self._after_lead_in: list[tuple[str, int, list[Message]]] = []
        """Records that were read with the last ones of the lead-in, and are judged."""
        self._cut: _Cut | None = None
        self._due: dict[int, dict[tuple[str, int], int]] = {}
        """Number of a window whose grace period is over -> the ends of the outputs at that time."""
        self._judged_until = self._began
        self._read: Counter[str] = Counter()
        self._read_before = 0
        self._problem: str | None = None
        self._last = False

    def begin(self, port: int | None) -> None:
        """Find the first offsets. Those of the outputs come first: a row of later input is then certainly after them."""
        outputs = self._outputs.ends()
        ends = self._inputs.ends()
        starts = self._inputs.at_time(time.time() - self._options.lead_in_s, ends)
        self._outputs.start(outputs)
        self._inputs.start(starts)
        self._lead_in_ends = ends
        self.windows.begin(starts, lead_in=True)
        for name in self._watch.topic_of():  # from now on, so that a first finding is an increase
            self._watch.metrics.late.labels(name)
            for anomaly in FOUND:
                self._watch.metrics.findings.labels(anomaly, name)
        notices = self._tally.begin(self._watch.scenario)
        self._watch.listener(Began(ends, outputs, port, notices))

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def watch(self) -> None:
        """Read and judge until the end. Signals come between two turns, so no record is read and forgotten."""
        try:
            while not (self._ended or self._tally.failed):
                with uninterrupted("finishing what was just read"):
                    with self._failing():
                        self._turn()
                    self._report_progress()
        except Interrupted:
            pass
        if self._tally.failed is None:
            try:
                self._end()
            except Interrupted:
                self._tally.cut_short = True
        self._tally.open = sum(window.records for window in self.windows.closed) + self.windows.open.records

    @property
    def _ended(self) -> bool:
        return self._options.for_s is not None and self.seconds() >= self._options.for_s

    def _end(self) -> None:
        """Close a last window, and settle what is left."""
        self._watch.listener(Ending(self._options.grace_s))
        deadline = time.monotonic() + self._options.grace_s + _GIVE_UP_S
        self._cut, self._next_cut = None, time.monotonic()
        while time.monotonic() < deadline and self._tally.failed is None:
            if self._last and not self.windows.closed:
                return
            with uninterrupted("finishing what was just read"):
                with self._failing():
                    self._turn(ending=True)
                self._report_progress()
        self._tally.problem = self._problem

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Carry on while the brokers do not answer. Anything else that cannot be read ends the watch."""
        try:
            yield
            self._problem = None
        except Unreachable as away:
            self._problem = away.message
        except (OnceproofError, KafkaException, duckdb.Error, OSError) as failure:
            self._tally.failed = str(failure) or type(failure).__name__

    def _turn(self, *, ending: bool = False) -> None:
        now = time.monotonic()
        for topic, partition, messages in self._inputs.read(_TURN_S):
            self._note_read(topic, len(messages))
            self._take_input(topic, partition, messages)
        for topic, partition, messages in self._outputs.read(_TURN_S):
            for name in self._outputs_of[topic]:
                self._note_read(name, len(messages))
                self.windows.add_output(output_batch(name, partition, messages, [COMMITTED] * len(messages)))
        if self._lead_in_ends is not None:
            self._pass_lead_in(now, ending)
        elif not self._last:
            self._close_window(now, last=ending)
        self._settle_due()

    def _take_input(self, topic: str, partition: int, messages: list[Message]) -> None:
        if self._last:
            return
        if self._lead_in_ends is not None:
            end = self._lead_in_ends[topic, partition]
            after = [message for message in messages if offset_of(message) >= end]
            if after:
                self._after_lead_in.append((topic, partition, after))
                messages = messages[: len(messages) - len(after)]
        if messages:
            batch = input_batch(topic, partition, messages, [COMMITTED] * len(messages))
            self.windows.add_input(batch, time.monotonic())

    def _pass_lead_in(self, now: float, ending: bool) -> None:
        """End the lead-in when its records have been read, and settle it at once: it is not judged."""
        if self._lead_in_ends is not None and reached(self._inputs.positions, self._lead_in_ends):
            self.windows.close({}, now)
            self.windows.begin(self._lead_in_ends)
            self._lead_in_ends = None
            for records in self._after_lead_in:
                self._take_input(*records)
            self._after_lead_in = []
            self._judged_until = now
            self._next_cut = now if ending else now + self._options.window_s

    def _close_window(self, now: float, *, last: bool) -> None:
        if self._cut is None and now >= self._next_cut:
            seen = {
                (name, partition): offset
                for (topic, partition), offset in self._outputs.positions.items()
                for name in self._outputs_of[topic]
            }
            self._cut = _Cut(self._inputs.ends(), seen)
            self._note_behind(self._inputs, self._cut.ends)
        if self._cut is not None and reached(self._inputs.positions, self._cut.ends):
            # Not the time of the cut: records that were written since then have been read as well, and are in this window.
            self.windows.close(self._cut.seen, time.monotonic())
            self._cut, self._next_cut = None, max(self._next_cut + self._options.window_s, now)
            self._last = last

    def _settle_due(self) -> None:
        now = time.monotonic()
        due = [w for w in self.windows.closed if w.lead_in or now >= w.closed_at + self._options.grace_s]
        asked = [window for window in due if window.number not in self._due]
        if asked:
            ends = {} if all(window.lead_in for window in asked) else self._outputs.ends()
            self._note_behind(self._outputs, ends)
            self._due |= {window.number: {} if window.lead_in else ends for window in asked}
        while due and reached(self._outputs.positions, self._due[due[0].number]):
            window = due.pop(0)
            settlement = self.windows.settle(time.monotonic())
            del self._due[window.number]
            if not window.lead_in:
                self._judged_until = window.closed_at
            self._note(settlement)
            break  # read again before the next one

    def _note_behind(self, topics: Topics, ends: Positions) -> None:
        for topic in topics.topics:
            its_ends = {place: end for place, end in ends.items() if place[0] == topic}
            self._watch.metrics.behind.labels(topic).set(behind(topics.positions, its_ends))

    def _note_read(self, place: str, count: int) -> None:
        self._read[place] += count
        self._watch.metrics.records.labels(place).inc(count)

    def _note(self, settlement: Settlement) -> None:
        self._tally.add(settlement)
        metrics = self._watch.metrics
        for finding in settlement.findings:
            metrics.findings.labels(finding.anomaly, finding.output).inc(finding.total)
        for late in settlement.late:
            metrics.late.labels(late.output).inc()
        if not settlement.window.lead_in:
            result = "unjudged" if settlement.unjudged else "equal" if settlement.equal else "unequal"
            metrics.windows.labels(result).inc()
        self._watch.listener(settlement)

    def _report_progress(self) -> None:
        now = time.monotonic()
        metrics = self._watch.metrics
        metrics.lag.set(now - self._judged_until)
        metrics.waiting.set(self.windows.waiting())
        metrics.open.set(len(self.windows.closed))
        if now >= self._next_progress:
            read = sum(self._read[topic] for topic in self._inputs.topics)
            rate = (read - self._read_before) / max(now - self._next_progress + PROGRESS_S, 0.001)
            self._read_before, self._next_progress = read, now + PROGRESS_S
            self._watch.listener(
                Progress(
                    self.seconds(),
                    self._tally.windows,
                    self._tally.records,
                    rate,
                    now - self._judged_until,
                    self.windows.waiting(),
                    self._problem,
                )
            )
