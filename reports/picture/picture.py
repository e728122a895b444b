"""The picture of a run of consumers as a value: its lanes, and row by row what went from which lane to which.

Time runs downwards, one row per event. Lanes: the producer, each queue of the broker, each consumer, each output.
`onceproof.reports.picture.svg` and `onceproof.reports.picture.text` render it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError
from onceproof.consumers.trace import TraceEvent, read_trace
from onceproof.data import open_dataset
from onceproof.history.run_record import FILE, RunRecord
from onceproof.kinds.contract import has_picture
from onceproof.scenario.model import InputSpec
from onceproof.scenario.outputs import Claim, OutputSpec

_Work = Literal["effect", "acknowledge", "crash", "return", "retry", "lost", "fenced", "fail", "dead-letter"]
RowKind = Literal[_Work, "publish", "take", "again", "start", "refuse", "cut", "stop", "resume", "delete", "skip"]

#: What a consumer does with a message that it has.
_WORK = get_args(_Work)


@dataclass(frozen=True)
class Lane:
    name: str
    kind: Literal["producer", "queue", "consumer", "output"]
    caption: str = ""
    """The label, if it is not the kind."""


@dataclass(frozen=True)
class Row:
    """One event. ``source`` and ``target`` are numbers of lanes; if they are the same, the event happens within that lane."""

    kind: RowKind
    tick: int
    source: int
    target: int
    message: int = 0


@dataclass(frozen=True)
class Hold:
    """A consumer has a message, from one row to another. ``crashed``: it had the message when it died."""

    lane: int
    message: int
    first: int
    last: int
    crashed: bool


@dataclass(frozen=True)
class DrawnEffect:
    """One effect; the results are in the order of the output."""

    message: int
    queue: str
    """The queue to which its message was published."""
    key: str
    late: bool
    """Whether it comes after the effect of a later message, although the claim promises the order of the two."""
    repeated: bool
    output: str = ""


@dataclass(frozen=True)
class Picture:
    title: str
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    holds: tuple[Hold, ...]
    absences: tuple[tuple[int, int, int], ...]
    """Lane, first and last row of a time during which the consumer was dead."""
    results: tuple[DrawnEffect, ...]

    def is_late(self, row: Row) -> bool:
        """Whether the row is the effect of a message that is late in the output to which this effect goes."""
        late = {(result.output, result.message) for result in self.results if result.late}
        return row.kind == "effect" and (self.lanes[row.target].name, row.message) in late

    def by_queue(self) -> dict[str, list[DrawnEffect]]:
        """The effects of each queue's messages, in their order, without empty lists.

        If there are several outputs, separately for each.
        """
        outputs = list(dict.fromkeys(lane.name for lane in self.lanes if lane.kind == "output"))
        found: dict[str, list[DrawnEffect]] = {}
        for output in outputs if len(outputs) > 1 else [""]:
            of_output = [result for result in self.results if output in ("", result.output)]
            for queue in sorted({result.queue for result in of_output}):
                named = f"{queue} in {output}" if output else queue
                found[named] = [result for result in of_output if result.queue == queue]
        return found


def of_run(run_dir: Path) -> Picture | None:
    """The picture of a stored run; None for a run without consumers. Raises `HistoryError`."""
    run = RunRecord.read(run_dir)
    if not has_picture(run.scenario.pipeline.kind):
        return None
    where, hint = f"the scenario in {run_dir / FILE} cannot be drawn", "run the scenario again"
    for part, there in (("input", run.scenario.input), ("outputs", run.scenario.outputs)):
        if not there:
            raise HistoryError(f"{where}: it has no {part!r}", hint=hint)
    try:
        return _of_record(run, run_dir)
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise HistoryError(f"{where}: {type(error).__name__}: {error}", hint=hint) from error


def _of_record(run: RunRecord, run_dir: Path) -> Picture:
    """Draws a scenario that need not be complete: what only judging needs may be missing."""
    scenario = run.scenario
    consumers = scenario.pipeline.consumers_spec()
    spec = InputSpec.model_validate(scenario.input[0])
    outputs = [OutputSpec.model_validate(output) for output in scenario.outputs.values()]
    claim = outputs[0].claim or Claim.model_validate(scenario.claim or {})
    by_group = {str(output.query): _place(output) for output in outputs}
    places = dict(zip(scenario.outputs, map(_place, outputs), strict=True))
    return of_trace(
        str(scenario.name),
        [replace(event, output=places.get(event.output, event.output)) for event in read_trace(run_dir)],
        consumers.names,
        _place(outputs[0]),
        _keys(spec, run.seed or 0, run_dir),
        order=claim.order,
        with_effect=consumers.acknowledge == "with-effect",
        output_of={name: by_group[group] for group, names in consumers.groups.items() for name in names},
        queues_are=_queues_are(consumers.broker, spec.partitions),
    )


def _place(output: OutputSpec) -> str:
    place = output.topic or output.table
    if place is None:
        raise ValueError("an output has neither topic nor table")
    return place


def _keys(spec: InputSpec, seed: int, run_dir: Path) -> list[str | None]:
    """The key of each message, in order. A file that the run names is not opened: it may be any file of this machine."""
    if spec.dataset == "file":
        found = stored_keys(run_dir)
    else:
        dataset = open_dataset(spec.dataset, spec.options, seed=seed)
        found = [record.key for record in dataset.records(0, spec.rows or dataset.rows())]
    return [key.decode(errors="replace") if key is not None else None for key in found]


def stored_keys(run_dir: Path) -> list[bytes | None]:
    """The keys in the history; None for messages that were never published. Raises `HistoryError`."""
    place = ["topic", "partition", "offset"]
    try:
        sent = pq.read_table(run_dir / "history" / "sent.parquet", columns=[*place, "seq"]).to_pylist()
        read = pq.read_table(run_dir / "history" / "input.parquet", columns=[*place, "key"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise HistoryError(f"{run_dir} has no history to take the messages' keys from: {error}") from error
    key_at = {tuple(row[name] for name in place): row["key"] for row in read}
    by_number = {row["seq"]: key_at.get(tuple(row[name] for name in place)) for row in sent}
    return [by_number.get(number) for number in range(max(by_number, default=-1) + 1)]


def _queues_are(broker: str, partitions: int) -> str:
    return "queue" if broker == "amqp" else "topic" if partitions == 1 else "partition"


def of_trace(
    title: str,
    trace: Sequence[TraceEvent],
    consumers: Sequence[str],
    output: str,
    keys: Sequence[str | None],
    *,
    order: str = "per-partition",
    with_effect: bool = False,
    output_of: Mapping[str, str] | None = None,
    queues_are: str = "queue",
) -> Picture:
    """The picture of a trace.

    ``order``: as the claim promises it. ``with_effect``: an effect counts once its transaction is committed.
    ``output_of``: consumer -> the output for its effects, where that is not ``output``.
    """
    goes_to = {name: (output_of or {}).get(name, output) for name in consumers}
    queues = sorted({event.queue for event in trace if event.kind == "publish"})
    retries = sorted({event.queue for event in trace if event.kind == "retry"})
    lanes = [Lane("producer", "producer"), *(Lane(queue, "queue", queues_are) for queue in queues)]
    lanes += [Lane(queue, "queue", "retry " + queues_are.replace("partition", "topic")) for queue in retries]
    lanes += [
        Lane(queue, "queue", "dead letters") for queue in sorted({e.queue for e in trace if e.kind == "dead-letter"})
    ]
    # Consumers next to the output of their group, so that few arrows cross another group.
    for name in dict.fromkeys(goes_to.values()):
        its = [each for each in consumers if goes_to[each] == name]
        named = {event.output for event in trace if event.consumer in its} - {"", name}
        lanes += [*(Lane(each, "consumer") for each in its), *(Lane(each, "output") for each in (name, *sorted(named)))]
    place: dict[tuple[str, str], int] = {(lane.kind, lane.name): number for number, lane in enumerate(lanes)}
    rows: list[Row] = []
    holds: list[Hold] = []
    since: dict[int, tuple[int, int]] = {}
    dead: dict[int, int] = {}
    absences: list[tuple[int, int, int]] = []
    unaware: set[int] = set()
    taken: set[tuple[str, int]] = set()  # instead of the broker's redelivery mark, which may be missing
    for event, is_last in zip(trace, _last_about_message(trace), strict=True):
        goes = goes_to.get(event.consumer, "")
        copy = (goes, event.message)
        row = _row(event, place, place.get(("output", event.output or goes), len(lanes) - 1), again=copy in taken)
        if row is None or (row.kind == "start" and row.source not in dead):
            continue  # the first start of a consumer is not shown
        if row.kind == "cut":
            unaware.add(row.source)
        elif row.kind == "lost" and row.source in unaware:
            row = replace(row, kind="fail")  # the step that found the connection gone, whichever it was
            unaware.remove(row.source)
        rows.append(row)
        number = len(rows) - 1
        if event.kind == "take":
            taken.add(copy)
            since[row.target] = (event.message, number)
        elif row.kind in _WORK and row.source in since:
            message, first = since[row.source]
            if row.kind == "crash" or is_last:
                holds.append(Hold(row.source, message, first, number, row.kind == "crash"))
                del since[row.source]
        if row.kind == "crash":
            dead[row.source] = number
        elif row.kind == "start":
            absences.append((row.source, dead.pop(row.source), number))
    holds += [Hold(lane, message, first, len(rows) - 1, False) for lane, (message, first) in since.items()]
    absences += [(lane, first, len(rows)) for lane, first in dead.items()]
    results = _results(trace, keys, order, goes_to, with_effect=with_effect)
    return Picture(title, tuple(lanes), tuple(rows), tuple(holds), tuple(absences), results)


def _row(event: TraceEvent, place: Mapping[tuple[str, str], int], output: int, *, again: bool) -> Row | None:
    consumer = place.get(("consumer", event.consumer), 0)
    queue = place.get(("queue", event.queue), 0)
    match event.kind:
        case "publish":
            return Row("publish", event.tick, 0, queue, event.message)
        case "take":
            return Row("again" if again else "take", event.tick, queue, consumer, event.message)
        case "effect" | "refuse":
            return Row(event.kind, event.tick, consumer, output, event.message)
        case "acknowledge" | "lost" | "return" | "fenced" | "retry" | "dead-letter":
            return Row(event.kind, event.tick, consumer, queue, event.message)
        case "release" | "lapse":
            return Row("return", event.tick, consumer, queue, event.message)
        case "delete" | "skip":
            return Row(event.kind, event.tick, queue, queue, event.message)
        case "start" | "cut" | "stop" | "resume":
            return Row(event.kind, event.tick, consumer, consumer, event.message)
        case "crash" | "end":
            return Row("crash", event.tick, consumer, consumer, event.message)
        case _:
            return None


def _last_about_message(trace: Sequence[TraceEvent]) -> list[bool]:
    """For each event, whether its consumer does nothing more about its message afterwards, without having died."""
    following: dict[str, str] = {}
    last = []
    for event in reversed(trace):
        last.append(following.get(event.consumer, "take") in ("take", "start"))
        if event.kind not in ("commit", "return", "cut", "lapse", "stop", "resume", "delete", "skip"):
            following[event.consumer] = event.kind
    return last[::-1]


def _results(
    trace: Sequence[TraceEvent],
    keys: Sequence[str | None],
    order: str,
    goes_to: Mapping[str, str],
    *,
    with_effect: bool,
) -> tuple[DrawnEffect, ...]:
    """The effects that count: of consumers that work in transactions, those that were committed."""
    # A user's own command may commit although the scenario does not ask for it.
    transactional = with_effect or any(event.kind == "commit" for event in trace)
    kind = "commit" if transactional else "effect"
    # The claim promises the order of the queue to which a message was published, wherever it was put meanwhile.
    origin = {event.message: event.queue for event in trace if event.kind == "publish"}
    furthest: dict[tuple[str, str, str | None], int] = {}
    # (output, message) -> which take had the effect. Named effects of one take are shown once: a message may have several.
    seen: dict[tuple[str, int], tuple[str, int]] = {}
    takes: Counter[str] = Counter()
    found = []
    for event in trace:
        takes[event.consumer] += event.kind == "take"
        if event.kind == kind:
            output, queue = event.output or goes_to.get(event.consumer, ""), origin.get(event.message, event.queue)
            take = seen.get((output, event.message))
            if event.output and take == (event.consumer, takes[event.consumer]):
                continue
            again = take is not None
            key = keys[event.message - 1] if event.message <= len(keys) else None
            scope = (output, queue, key if order == "per-key" else None)
            promised = order == "per-partition" or (order == "per-key" and key is not None)
            late = promised and not again and event.message < furthest.get(scope, 0)
            found.append(DrawnEffect(event.message, queue, key or "", late, again, output))
            furthest[scope] = max(furthest.get(scope, 0), event.message)
            seen[output, event.message] = (event.consumer, takes[event.consumer])
    return tuple(found)
