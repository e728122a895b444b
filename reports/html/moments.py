"""The events of a run that a report lists, each with the lane of the timeline that it belongs to and a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
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
        if event.kind == "job.started":
            start = number_of(event, "start") or 0
        if (described := _described(event)) is not None:
            lane, what = described
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


def fault_lane(event: Event) -> str:
    return text_of(event, "target")


def broker_lane(event: Event) -> str:
    return f"kafka broker {number_of(event, 'broker')}"


def _described(event: Event) -> Described | None:
    """The lane of an event and a sentence about it; None for an event without a row."""
    family, _, state = event.kind.partition(".")
    start, batch, records = (number_of(event, name) for name in ("start", "batch", "records"))
    service, query, why = (text_of(event, name) for name in ("service", "query", "why"))
    because = f": {why}" if why else ""
    match event.kind:
        case "phase":
            return HARNESS, f"phase {text_of(event, 'name')}{because}"
        case "stack.starting" | "stack.ready":
            return service, f"{service} {'is ready' if state == 'ready' else 'is being started'}"
        case "stack.shared":
            served = number_of(event, "served_before") or 0
            return HARNESS, f"the services run already, and served {served} executions before"
        case "stack.cleaned":
            return HARNESS, "the services were cleaned for the next execution, and nothing of this one is left"
        case "stack.used-up" | "stack.replaced":
            what = "cannot be used again" if state == "used-up" else "were replaced"
            return HARNESS, f"the services {what}: {text_of(event, 'reason')}"
        case "job.started":
            return DRIVER, f"driver start {start} begins"
        case "job.exited":
            killed = " (ended by the harness)" if event.data.get("killed") is True else ""
            return DRIVER, f"driver start {start} exits with code {number_of(event, 'code')}{killed}"
        case "job.kill":
            part = text_of(event, "part")
            return DRIVER, f"{f'the Connect {part} of ' if part else ''}driver start {start} is being killed"
        case "job.terminate":
            return DRIVER, f"driver start {start} is asked to end (SIGTERM)"
        case "driver.jvm":
            how = {"kept": "uses the JVM of the start before it", "direct": "gets a new JVM, without Spark's scripts"}
            words = how.get(text_of(event, "how"), "gets a new JVM from Spark's scripts")
            return DRIVER, f"driver start {start} {words}{because}"
        case "broker.away" | "broker.back":
            where = f"is {text_of(event, 'how') or 'away'}" if state == "away" else "is back"
            return broker_lane(event), f"broker {number_of(event, 'broker')} {where}"
        case "feed.chunk":
            chunk = f"chunk {number_of(event, 'chunk')} of {number_of(event, 'of')}"
            return INPUT, f"{chunk} fed to {text_of(event, 'topic')}: {times(records or 0, 'record')}"
        case "batch.planned" | "batch.committed":
            size = f" with {times(records, 'record')}" if records is not None else ""
            return f"batches {query}", f"batch {batch} of {query} {state} in the checkpoint{size}"
        case "point":
            return f"batches {query}", f"batch {batch} reaches {text_of(event, 'point')}"
        case "warning" | "bypass":
            return HARNESS, text_of(event, "message")
        case "harness.proxy-recreated":
            return PROXY, f"proxy {text_of(event, 'proxy')} made again: {why}"
    if family == "frame" and state in _FRAME_STATES:
        what = ", ".join(filter(None, [text_of(event, "frame"), text_of(event, "action"), why]))
        return PROXY, f"request {state}{f' to {service}' if service else ''}{f': {what}' if what else ''}"
    if family == "consumers" and state in _CONSUMER_STATES:
        message = number_of(event, "message")
        return CONSUMERS, f"{text_of(event, 'consumer')}: {state}{f', message {message}' if message else ''}"
    if family == "fault":
        return fault_lane(event), _fault(event, state)
    if family == "driver":
        return DRIVER, f"driver start {start} {state}"
    return ("sink", f"sink {text_of(event, 'sink')}: {state}, batch {batch}") if family == "sink" else None


_FRAME_STATES = ("stopped", "abandoned", "answered", "delivered", "released", "undeliverable")
_CONSUMER_STATES = ("crash", "cut", "end", "refuse", "lost", "return", "fenced", "lapse", "start")


def _fault(event: Event, state: str) -> str:
    batch, point, query = number_of(event, "batch"), text_of(event, "point"), text_of(event, "query")
    where = ", ".join(
        part for part in (f"batch {batch}" if batch is not None else "", f"query {query}" if query else "") if part
    )
    name = f"fault {(number_of(event, 'index') or 0) + 1}, {text_of(event, 'fault')} {fault_lane(event)}"
    return f"{name}: {state}{f' at {point}' if point else ''}{f' ({where})' if where else ''}"


def text_of(event: Event, name: str) -> str:
    """A text of an event; empty if it has none of that name."""
    value: Any = event.data.get(name)
    return value if isinstance(value, str) else ""


def number_of(event: Event, name: str) -> int | None:
    """A whole number of an event; None if it has none of that name."""
    value: Any = event.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None
