"""The events of a run that a report lists, each with the lane of the timeline that it belongs to and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from onceproof.base.timeline import Event
from onceproof.base.words import times
from onceproof.reports.html.limits import short

INPUT, DRIVER, PROXY, HARNESS, CONSUMERS = "input", "driver starts", "proxies", "harness", "consumers"
_MOST_TEXT = 300


@dataclass(frozen=True)
class Moment:
    """One event that is worth a row."""

    anchor: str
    """The row's id in the page, an ASCII name."""
    at: float
    kind: str
    lane: str
    what: str
    log: str | None = None
    """The log with more about the event, a file in ``logs/``; None if the run has no such log."""


def moments(events: Iterable[Event], logs: Collection[str] = ()) -> tuple[Moment, ...]:
    """All events with a row, in the order of time. ``logs``: the names of the run's logs."""
    found, start = [], 0
    for number, event in enumerate(events):
        family = event.kind.partition(".")[0]
        describe = _WORDS.get(event.kind) or _FAMILIES.get(family)
        if event.kind == "job.started":
            start = number_of(event, "start") or 0
        if describe is not None:
            lane, what = describe(event)
            log = next((name for name in _logs_of(event, start) if name in logs), None)
            found.append(Moment(f"e{number}", event.at, event.kind, lane, short(what, _MOST_TEXT), log))
    return tuple(sorted(found, key=lambda one: one.at))


def by_importance(found: Iterable[Moment]) -> list[Moment]:
    """Faults, starts and warnings first, then the others; each in the given order."""
    return sorted(found, key=lambda one: not one.kind.startswith(_IMPORTANT))


def chosen(found: tuple[Moment, ...], most: int) -> tuple[Moment, ...]:
    """At most ``most`` of them: faults, starts and warnings first, then the others from the beginning on."""
    if len(found) <= most:
        return found
    kept = {one.anchor for one in by_importance(found)[:most]}
    return tuple(one for one in found if one.anchor in kept)


_IMPORTANT = ("fault.", "job.", "broker.", "driver.", "warning", "bypass", "phase", "harness.")
Described = tuple[str, str]


def _logs_of(event: Event, start: int) -> Iterator[str]:
    """The logs that may say more about an event, the best one first. ``start``: that of the driver that runs."""
    family = event.kind.partition(".")[0]
    if family in ("stack", "frame", "broker", "consumers"):
        broker = number_of(event, "broker")
        yield f"consumer-{text_of(event, 'consumer')}.log"
        yield f"kafka-{broker}.log"
        yield f"{text_of(event, 'service')}.log"
        yield f"{text_of(event, 'service')}-1.log"
    elif family == "fault":  # of brokers, the events broker.away and broker.back name the node
        yield f"{fault_lane(event)}.log"
    if family in ("job", "driver", "batch", "point", "sink", "fault", "warning"):
        number = number_of(event, "start")
        yield f"driver-{start if number is None else number}.log"


def _phase(event: Event) -> Described:
    why = text_of(event, "why")
    return HARNESS, f"phase {text_of(event, 'name')}{f': {why}' if why else ''}"


def _stack(event: Event) -> Described:
    service = text_of(event, "service")
    return service, f"{service} {'is ready' if event.kind == 'stack.ready' else 'is being started'}"


def _shared(event: Event) -> Described:
    return HARNESS, f"the services run already, and served {number_of(event, 'served_before') or 0} executions before"


def _cleaned(event: Event) -> Described:
    return HARNESS, "the services were cleaned for the next execution, and nothing of this one is left"


def _used_up(event: Event) -> Described:
    what = "cannot be used again" if event.kind == "stack.used-up" else "were replaced"
    return HARNESS, f"the services {what}: {text_of(event, 'reason')}"


def _fault(event: Event) -> Described:
    batch, point, query = number_of(event, "batch"), text_of(event, "point"), text_of(event, "query")
    where = ", ".join(
        part for part in (f"batch {batch}" if batch is not None else "", f"query {query}" if query else "") if part
    )
    number = (number_of(event, "index") or 0) + 1
    name = f"fault {number}, {text_of(event, 'fault')} {text_of(event, 'target')}"
    at = f" at {point}" if point else ""
    state = event.kind.partition(".")[2]
    return fault_lane(event), f"{name}: {state}{at}{f' ({where})' if where else ''}"


def fault_lane(event: Event) -> str:
    return text_of(event, "target")


def _broker(event: Event) -> Described:
    how = text_of(event, "how")
    state = f"is {how or 'away'}" if event.kind == "broker.away" else "is back"
    return broker_lane(event), f"broker {number_of(event, 'broker')} {state}"


def broker_lane(event: Event) -> str:
    return f"kafka broker {number_of(event, 'broker')}"


def _started(event: Event) -> Described:
    return DRIVER, f"driver start {number_of(event, 'start')} begins"


def _exited(event: Event) -> Described:
    killed = " (ended by the harness)" if event.data.get("killed") is True else ""
    return DRIVER, f"driver start {number_of(event, 'start')} exits with code {number_of(event, 'code')}{killed}"


def _jvm(event: Event) -> Described:
    how = {"kept": "uses the JVM of the start before it", "direct": "gets a new JVM, without Spark's scripts"}
    words = how.get(text_of(event, "how"), "gets a new JVM from Spark's scripts")
    why = text_of(event, "why")
    return DRIVER, f"driver start {number_of(event, 'start')} {words}{f': {why}' if why else ''}"


def _killing(event: Event) -> Described:
    return DRIVER, f"driver start {number_of(event, 'start')} is being killed"


def _asking(event: Event) -> Described:
    return DRIVER, f"driver start {number_of(event, 'start')} is asked to end (SIGTERM)"


def _driver(event: Event) -> Described:
    return DRIVER, f"driver start {number_of(event, 'start')} {event.kind.partition('.')[2]}"


def _chunk(event: Event) -> Described:
    records = times(number_of(event, "records") or 0, "record")
    of = f"chunk {number_of(event, 'chunk')} of {number_of(event, 'of')}"
    return INPUT, f"{of} fed to {text_of(event, 'topic')}: {records}"


def _batch(event: Event) -> Described:
    query, state = text_of(event, "query"), event.kind.partition(".")[2]
    records = number_of(event, "records")
    size = f" with {times(records, 'record')}" if records is not None else ""
    return f"batches {query}", f"batch {number_of(event, 'batch')} of {query} {state} in the checkpoint{size}"


def _point(event: Event) -> Described:
    return f"batches {text_of(event, 'query')}", f"batch {number_of(event, 'batch')} reaches {text_of(event, 'point')}"


def _sink(event: Event) -> Described:
    return "sink", f"sink {text_of(event, 'sink')}: {event.kind.partition('.')[2]}, batch {number_of(event, 'batch')}"


def _frame(event: Event) -> Described:
    what = [text_of(event, name) for name in ("frame", "action", "why")]
    service = text_of(event, "service")
    state = event.kind.partition(".")[2]
    return (
        PROXY,
        f"request {state}{f' to {service}' if service else ''}{': ' if any(what) else ''}{', '.join(filter(None, what))}",
    )


def _message(event: Event) -> Described:
    return HARNESS, text_of(event, "message")


def _recreated(event: Event) -> Described:
    return PROXY, f"proxy {text_of(event, 'proxy')} made again: {text_of(event, 'why')}"


def _consumer(event: Event) -> Described:
    message = number_of(event, "message")
    about = f", message {message}" if message else ""
    return CONSUMERS, f"{text_of(event, 'consumer')}: {event.kind.partition('.')[2]}{about}"


_WORDS: dict[str, Callable[[Event], Described]] = {
    "phase": _phase,
    "stack.starting": _stack,
    "stack.ready": _stack,
    "stack.shared": _shared,
    "stack.cleaned": _cleaned,
    "stack.used-up": _used_up,
    "stack.replaced": _used_up,
    "job.started": _started,
    "job.exited": _exited,
    "job.kill": _killing,
    "job.terminate": _asking,
    "driver.jvm": _jvm,
    "broker.away": _broker,
    "broker.back": _broker,
    "feed.chunk": _chunk,
    "batch.planned": _batch,
    "batch.committed": _batch,
    "point": _point,
    "warning": _message,
    "bypass": _message,
    "harness.proxy-recreated": _recreated,
    "frame.stopped": _frame,
    "frame.abandoned": _frame,
    "frame.answered": _frame,
    "frame.delivered": _frame,
    "frame.released": _frame,
    "frame.undeliverable": _frame,
    "consumers.crash": _consumer,
    "consumers.cut": _consumer,
    "consumers.end": _consumer,
    "consumers.refuse": _consumer,
    "consumers.lost": _consumer,
    "consumers.return": _consumer,
    "consumers.fenced": _consumer,
    "consumers.lapse": _consumer,
    "consumers.start": _consumer,
}
_FAMILIES: dict[str, Callable[[Event], Described]] = {"fault": _fault, "driver": _driver, "sink": _sink}


def text_of(event: Event, name: str) -> str:
    """A text of an event; empty if it has none of that name."""
    value: Any = event.data.get(name)
    return value if isinstance(value, str) else ""


def number_of(event: Event, name: str) -> int | None:
    """A whole number of an event; None if it has none of that name."""
    value: Any = event.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None
