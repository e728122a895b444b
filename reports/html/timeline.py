"""The timeline of a run as a value: lanes with bars and ticks, windows of faults, and series on the same axis of time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onceproof.base.timeline import Event
from onceproof.base.words import times
from onceproof.judge.findings import BatchReport
from onceproof.reports.comparison import state
from onceproof.reports.html.limits import Limits, some, spread
from onceproof.reports.html.moments import DRIVER, INPUT, Moment, broker_lane, fault_lane, number_of, text_of
from onceproof.reports.html.source import Batch, StoredRun

_BUCKETS, _MOST_POINTS = 80, 300
#: What is drawn elsewhere, or is not part of the pipeline.
_NO_LANE = ("driver", "broker", "harness", "self-test")
#: Target of a fault -> the service that it strikes, where the names differ.
_KAFKA = "kafka"
_SERVICES = {"broker": _KAFKA}
#: Faults with a lane of their own: all of them have a row in the table. Brokers of a stack: more are not of onceproof.
FAULT_LANES, _MOST_BROKERS = 6, 9


@dataclass(frozen=True)
class Bar:
    start: float
    end: float
    label: str
    title: str
    style: str
    anchor: str | None = None


@dataclass(frozen=True)
class Tick:
    at: float
    title: str
    anchor: str | None = None
    label: str = ""


@dataclass(frozen=True)
class Lane:
    name: str
    bars: tuple[Bar, ...] = ()
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True)
class Window:
    """A fault from the moment when it was armed to its healing. Times are seconds on the run's clock; None: it did not happen."""

    number: int
    title: str
    target: str
    armed: float | None
    fired: float | None
    settled: float | None
    healed: float | None
    hit: bool

    @property
    def state(self) -> str:
        return state(armed=self.armed is not None, fired=self.fired is not None, hit=self.hit)


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[tuple[float, float], ...]
    """(seconds, value)"""
    style: str = "one"


@dataclass(frozen=True)
class Plot:
    title: str
    unit: str
    kind: str
    """``bars``, each ``width_s`` wide from its time on, or ``steps``."""
    series: tuple[Series, ...]
    width_s: float = 0.0

    @property
    def top(self) -> float:
        return max((value for one in self.series for _, value in one.points), default=0.0)

    def summary(self) -> str:
        """What the plot shows, in words."""
        parts = []
        for one in self.series:
            at, most = max(one.points, key=lambda point: point[1], default=(0.0, 0.0))
            parts.append(f"{one.name}: at most {most:,.4g} {self.unit}".rstrip() + f", at {at:.1f} s")
        return "; ".join(parts)


@dataclass(frozen=True)
class Timeline:
    start: float
    end: float
    lanes: tuple[Lane, ...]
    windows: tuple[Window, ...]
    plots: tuple[Plot, ...]
    hidden: tuple[tuple[int, str], ...] = ()
    """What is not drawn: (how many, of what)."""

    @property
    def span(self) -> float:
        return self.end - self.start


def timeline(run: StoredRun, found: tuple[Moment, ...], limits: Limits) -> Timeline | None:
    """The timeline of a run; None if nothing of the run has a time."""
    batches = batches_of(run)
    at = [
        one.at
        for one in found
        if one.lane == INPUT or one.kind.startswith(("job.", "fault.fired", "batch.", "consumers."))
    ]
    at += [time for batch in batches for time in (batch.planned_at, batch.committed_at) if time is not None]
    at += [commit.at for commit in run.commits]
    at = [time for time in at if math.isfinite(time)] or [one.at for one in found]
    if not at:
        return None
    first, last = min(at), max(max(at), max((one.at for one in found), default=0.0))
    margin = max((last - first) * 0.02, 0.1)
    start, end = max(first - margin, 0.0), last + margin
    windows = tuple(_windows(run, limits))
    drawn = _drawn(batches, limits)
    anchors = {(one.kind, one.what.rpartition(" with ")[0] or one.what): one.anchor for one in found}
    lanes = [
        *_faults(windows, start, end),
        _ticks(INPUT, [one for one in found if one.lane == INPUT], limits),
        *_drivers(run, found, end, limits),
    ]
    services = some(_services(run, windows, start, end), limits.lanes)
    undrawn = Counter({"batch": len(batches) - len(drawn), "lane": services.more, "mark": 0})
    verdicts = {(b.query, b.batch): b for b in run.verdict.batches} if run.verdict is not None else {}
    for query in dict.fromkeys(batch.query for batch in drawn):
        bars = tuple(_bar(batch, end, verdicts, anchors) for batch in drawn if batch.query == query)
        lanes.append(Lane(f"batches {query}".strip(), bars))
    for output in dict.fromkeys(commit.output for commit in run.commits):
        commits = [one for one in run.commits if one.output == output]
        undrawn["mark"] += max(len(commits) - limits.ticks, 0)
        made = (
            Tick(one.at, f"commit of {times(one.rows, 'row')} in {output} at {one.at:.3f} s")
            for one in spread(commits, limits.ticks)
        )
        lanes.append(Lane(f"commits {output}", ticks=tuple(made)))
    lanes += services.shown
    others: dict[str, list[Moment]] = {}
    for one in found:
        if one.at >= start:
            others.setdefault(one.lane, []).append(one)
    known = {*_NO_LANE, *(lane.name for lane in lanes)}
    known |= {_KAFKA} if any(lane.name.startswith(f"{_KAFKA} broker") for lane in lanes) else set()
    for name in [name for name in others if name not in known]:
        lanes.append(_ticks(name, others[name], limits))
        undrawn["mark"] += max(len(others[name]) - limits.ticks, 0)
    undrawn["mark"] += max(sum(one.lane == INPUT for one in found) - limits.ticks, 0)
    shown = some((lane for lane in lanes if lane.bars or lane.ticks), limits.lanes)
    undrawn["lane"] += shown.more
    undrawn["driver start"] = max(sum(event.kind == "job.started" for event in run.events) - limits.bars, 0)
    plots = tuple(_plots(run, batches, start, end))
    return Timeline(start, end, shown.shown, windows, plots, tuple((n, noun) for noun, n in undrawn.items()))


def batches_of(run: StoredRun) -> tuple[Batch, ...]:
    """The batches of the history or, of a run that ended early, those in its events."""
    records: dict[tuple[str, int], int | None] = {}
    planned: dict[tuple[str, int], float] = {}
    committed: dict[tuple[str, int], float] = {}
    for event in run.events:
        key = (text_of(event, "query"), number_of(event, "batch") or 0)
        if event.kind == "batch.planned":
            planned.setdefault(key, event.at)
        elif event.kind == "batch.committed":
            committed[key] = event.at
            records[key] = number_of(event, "records")
    if run.batches:
        return tuple(replace(batch, records=records.get((batch.query, batch.number))) for batch in run.batches)
    keys = sorted(planned.keys() | committed.keys())
    return tuple(Batch(*key, planned.get(key), None, committed.get(key), None, records.get(key)) for key in keys)


def _drawn(batches: tuple[Batch, ...], limits: Limits) -> tuple[Batch, ...]:
    timed = [batch for batch in batches if batch.planned_at is not None or batch.committed_at is not None]
    replayed = [i for i, batch in enumerate(timed) if batch.replayed][: limits.bars]
    others = spread([i for i, batch in enumerate(timed) if not batch.replayed], limits.bars - len(replayed))
    return tuple(timed[i] for i in sorted((*replayed, *others)))


def _bar(
    batch: Batch, end: float, verdicts: dict[tuple[str, int], BatchReport], anchors: dict[tuple[str, str], str]
) -> Bar:
    of = verdicts.get((batch.query, batch.number))
    broken = of is not None and bool(of.anomalies)
    begins = batch.planned_at if batch.planned_at is not None else batch.committed_at
    ends = batch.committed_at if batch.committed_at is not None else end
    began = begins if begins is not None else end
    title = f"batch {batch.number} of {batch.query}"
    if batch.records is not None:
        title += f", {times(batch.records, 'record')}"
    title += f": planned at {began:.3f} s"
    title += "" if batch.planned_by is None else f" by start {batch.planned_by}"
    title += ", never committed" if batch.committed_at is None else f", committed at {ends:.3f} s"
    title += "" if batch.committed_by is None else f" by start {batch.committed_by}"
    mark = " \u21bb" if batch.replayed else ""
    mark += " \u2715" if batch.committed_at is None else ""
    mark += " !" if broken else ""
    if of is not None and of.anomalies:
        title += f"; {', '.join(f'{name} {count:,}' for name, count in sorted(of.anomalies.items()))}"
    style = "broken" if broken else "replayed" if batch.replayed else "plain"
    name = f"batch {batch.number} of {batch.query}"
    anchor = anchors.get(("batch.committed", f"{name} committed in the checkpoint"))
    return Bar(
        began,
        max(ends, began),
        f"{batch.number}{mark}",
        title,
        style,
        anchor or anchors.get(("batch.planned", f"{name} planned in the checkpoint")),
    )


def _ticks(name: str, found: Sequence[Moment], limits: Limits) -> Lane:
    ticks = (Tick(one.at, f"{one.what}, at {one.at:.3f} s", one.anchor) for one in spread(found, limits.ticks))
    return Lane(name, ticks=tuple(ticks))


def _drivers(run: StoredRun, found: tuple[Moment, ...], end: float, limits: Limits) -> Iterator[Lane]:
    anchors = {(one.kind, one.at): one.anchor for one in found}
    exits = {number_of(event, "start"): event for event in run.events if event.kind == "job.exited"}
    bars = []
    for event in run.events:
        if event.kind == "job.started":
            start = number_of(event, "start")
            ended = exits.get(start)
            until = end if ended is None else max(ended.at, event.at)
            killed = ended is not None and ended.data.get("killed") is True
            title = f"driver start {start}: from {event.at:.3f} s to {until:.3f} s"
            title += " (killed)" if killed else ", still running" if ended is None else ""
            label = f"start {start} \u2715 killed" if killed else f"start {start}"
            bars.append(Bar(event.at, until, label, title, "driver", anchors.get(("job.started", event.at))))
    yield Lane(DRIVER, tuple(bars[: limits.bars]))


def _faults(windows: tuple[Window, ...], start: float, end: float) -> Iterator[Lane]:
    """A lane for each of the first faults: armed until it fires, then until it is healed; with a mark where its hit was proved."""
    for one in windows[:FAULT_LANES]:
        anchor, bars, ticks = f"fault-{one.number}", [], []
        healed = end if one.healed is None else one.healed
        until = healed if one.fired is None else one.fired
        if one.armed is not None and until > start:
            title = f"fault {one.number}, {one.title}: armed at {one.armed:.3f} s"
            bars.append(Bar(max(one.armed, start), until, "armed", title, "armed", anchor))
        if one.fired is not None:
            title = f"fault {one.number}, {one.title}: fired at {one.fired:.3f} s, "
            title += "never healed" if one.healed is None else f"healed at {healed:.3f} s"
            bars.append(Bar(one.fired, max(healed, one.fired), "fired", title, "struck", anchor))
        if one.settled is not None:
            word = "\u2713 hit" if one.hit else "\u2715 not hit"
            ticks.append(Tick(one.settled, f"fault {one.number}: {word} at {one.settled:.3f} s", anchor, word))
        yield Lane(f"F{one.number} {one.title}", tuple(bars), tuple(ticks))


def _brokers(run: StoredRun, ready: float, start: float, end: float) -> Iterator[Lane]:
    """A lane for each broker, with the times when it was away. None if the run has one node, and no fault struck it alone."""
    away: dict[str, list[Bar]] = {f"kafka broker {n + 1}": [] for n in range(_number_of_brokers(run))}
    for event in run.events:
        bars = away.setdefault(broker_lane(event), []) if event.kind.startswith("broker.") else []
        if event.kind == "broker.away":
            how = text_of(event, "how")
            bars.append(Bar(event.at, end, how, f"{broker_lane(event)}: {how} at {event.at:.3f} s", "struck"))
        elif event.kind == "broker.back" and bars and bars[-1].end == end:
            last = bars.pop()
            bars.append(replace(last, end=max(event.at, last.start), title=f"{last.title}, back at {event.at:.3f} s"))
    for name, bars in away.items():
        yield Lane(name, (Bar(max(ready, start), end, "", f"{name}: ready at {ready:.3f} s", "driver"), *bars))


def _number_of_brokers(run: StoredRun) -> int:
    """How many brokers the stack had; 0 for a single node, and if that is not known."""
    stack = run.record.scenario.stack
    kafka = stack.get("kafka") if isinstance(stack, dict) else None
    number = kafka.get("brokers") if isinstance(kafka, dict) else None
    return number if isinstance(number, int) and 1 < number <= _MOST_BROKERS else 0


def _services(run: StoredRun, windows: tuple[Window, ...], start: float, end: float) -> Iterator[Lane]:
    """A bar from the time when a service was ready, and one for each fault that struck it. Kafka: a lane for each broker."""
    for event in run.events:
        service = text_of(event, "service")
        if event.kind == "stack.ready" and service == _KAFKA and (brokers := [*_brokers(run, event.at, start, end)]):
            yield from brokers
        elif event.kind == "stack.ready" and service not in _NO_LANE:
            bars = [Bar(max(event.at, start), end, "", f"{service}: ready at {event.at:.3f} s", "driver")]
            for window in windows:
                if window.target == service and window.fired is not None:
                    healed = end if window.healed is None else max(window.healed, window.fired)
                    title = f"fault {window.number} on {service}: {window.title}"
                    bars.append(
                        Bar(window.fired, healed, f"F{window.number}", title, "struck", f"fault-{window.number}")
                    )
            yield Lane(service, tuple(bars))


def _windows(run: StoredRun, limits: Limits) -> Iterator[Window]:
    by_number: dict[int, list[Event]] = {}
    for event in run.events:
        index = number_of(event, "index")
        if event.kind.startswith("fault.") and index is not None:
            by_number.setdefault(index, []).append(event)
    for index, events in sorted(by_number.items())[: limits.items]:
        seen = {event.kind: event.at for event in reversed(events)}  # the first of each kind
        last = events[-1]
        batch, lane = number_of(last, "batch"), fault_lane(last)
        where = f", batch {batch}" if batch is not None else ""
        yield Window(
            number=index + 1,
            title=f"{text_of(last, 'fault')} {lane}{where} at {text_of(last, 'point')}",
            target=_SERVICES.get(lane, lane),
            armed=seen.get("fault.armed"),
            fired=seen.get("fault.fired"),
            settled=seen.get("fault.hit", seen.get("fault.missed")),
            healed=seen.get("fault.healed"),
            hit="fault.hit" in seen,
        )


def _plots(run: StoredRun, batches: tuple[Batch, ...], start: float, end: float) -> Iterator[Plot]:
    fed = [(event.at, float(number_of(event, "records") or 0)) for event in run.events if event.kind == "feed.chunk"]
    out = [(commit.at, float(commit.rows)) for commit in run.commits]
    width = _nice((end - start) / _BUCKETS)
    if fed or out:
        series = (Series("fed", _per_second(fed, width)), Series("written", _per_second(out, width), "two"))
        yield Plot("Throughput", "rows/s", "bars", tuple(one for one in series if one.points), width)
    done = [b for b in batches if b.planned_at is not None and b.committed_at is not None]
    lasted = tuple((b.committed_at or 0.0, (b.committed_at or 0.0) - (b.planned_at or 0.0)) for b in done)
    if lasted:
        yield Plot(
            "Batch duration, at the time of its commit",
            "s",
            "stems",
            (Series("planned to committed", _thinned(lasted)),),
        )
    if fed and any(batch.records for batch in batches):
        yield Plot(
            "Records that were fed and not yet in a committed batch", "records", "steps", (_unseen(fed, batches, end),)
        )
    starts = [(event.at, 1.0) for event in run.events if event.kind == "job.started"]
    if len(starts) > 1:
        counted = _thinned(tuple((at, float(number)) for number, (at, _) in enumerate(starts)))
        yield Plot(
            "Restarts of the driver so far", "", "steps", (Series("restarts", (*counted, (end, counted[-1][1]))),)
        )


def _unseen(fed: Iterable[tuple[float, float]], batches: Iterable[Batch], end: float) -> Series:
    """At each moment the number of fed records that the slowest query has not committed."""
    per_query: dict[str, list[tuple[float, float]]] = {}
    for batch in batches:
        if batch.committed_at is not None:
            per_query.setdefault(batch.query, []).append((batch.committed_at, -float(batch.records or 0)))
    curves = []
    for done in per_query.values():
        total, points = 0.0, []
        for at, change in sorted([*fed, *done]):
            total += change
            points.append((at, max(total, 0.0)))
        curves.append((*points, (end, max(total, 0.0))))
    worst = max(curves, key=lambda curve: sum(value for _, value in curve), default=())
    return Series("records" if len(curves) < 2 else "records of the slowest query", _thinned(tuple(worst)))


def _thinned(points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """At most `_MOST_POINTS` points: the highest of each group of neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    groups = (points[start : start + size] for start in range(0, len(points), size or 1))
    return points if size <= 1 else tuple(max(group, key=lambda point: point[1]) for group in groups)


def _per_second(changes: Iterable[tuple[float, float]], width: float) -> tuple[tuple[float, float], ...]:
    buckets: Counter[int] = Counter()
    for at, amount in changes:
        buckets[math.floor(at / width)] += int(amount)
    return tuple((number * width, amount / width) for number, amount in sorted(buckets.items()))


def _nice(least: float) -> float:
    """The smallest of 0.1, 0.2, 0.5, 1, 2, 5, ... that is not below ``least``."""
    size = 10.0 ** math.floor(math.log10(max(least, 0.1)))
    return next(size * step for step in (1, 2, 5, 10) if size * step >= least * 0.999)
