"""The picture of a run of consumers, before anybody renders it: lanes, and what went from which to which, row by row.

Time runs downwards, one row a move. Lanes: the producer, each queue of the broker, each consumer, the output. How it is drawn
stands in `onceproof.reports.picture.svg` and `onceproof.reports.picture.text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError
from onceproof.consumers import trace as moves_module
from onceproof.consumers.trace import Move
from onceproof.data import open_dataset
from onceproof.history.run_record import FILE, RunRecord
from onceproof.scenario.model import InputSpec
from onceproof.scenario.outputs import Claim, OutputSpec

RowKind = Literal[
    "publish",
    "take",
    "again",
    "effect",
    "acknowledge",
    "crash",
    "return",
    "start",
    "refuse",
    "retry",
    "lost",
    "fenced",
    "cut",
    "fail",
]

#: What its consumer does with a message that it has.
_WORK = {"effect", "acknowledge", "crash", "return", "retry", "lost", "fenced", "fail"}


@dataclass(frozen=True)
class Lane:
    name: str
    kind: Literal["producer", "queue", "consumer", "output"]
    said: str = ""
    """What it is called, where that is not its kind."""


@dataclass(frozen=True)
class Row:
    """One move. ``source`` and ``target`` are lanes by number; the same lane twice: something happens there."""

    kind: RowKind
    tick: int
    source: int
    target: int
    message: int = 0


@dataclass(frozen=True)
class Hold:
    """A consumer has a message, from one row to another; ``crashed``: it had it to its end."""

    lane: int
    message: int
    first: int
    last: int
    crashed: bool


@dataclass(frozen=True)
class Result:
    """One effect, in the order in which they stand."""

    message: int
    queue: str
    """That it was published to."""
    key: str
    late: bool
    """After the effect of a later message, where the claim promises the order of the two."""
    repeated: bool
    output: str = ""


@dataclass(frozen=True)
class Picture:
    title: str
    lanes: tuple[Lane, ...]
    rows: tuple[Row, ...]
    holds: tuple[Hold, ...]
    absences: tuple[tuple[int, int, int], ...]
    """Lane, first and last row of the time in which it was dead."""
    results: tuple[Result, ...]
    late_messages: frozenset[int]

    def is_late(self, row: Row) -> bool:
        """Whether it is the effect of a message that is late where the effect goes to."""
        late = {(result.output, result.message) for result in self.results if result.late}
        return row.kind == "effect" and (self.lanes[row.target].name, row.message) in late

    def by_queue(self) -> dict[str, list[Result]]:
        """The effects of each queue's messages, in their order: in each output, where there are several. Without empty ones."""
        outputs = list(dict.fromkeys(lane.name for lane in self.lanes if lane.kind == "output"))
        found: dict[str, list[Result]] = {}
        for output in outputs if len(outputs) > 1 else [""]:
            of_output = [result for result in self.results if output in ("", result.output)]
            for queue in sorted({result.queue for result in of_output}):
                named = f"{queue} in {output}" if output else queue
                found[named] = [result for result in of_output if result.queue == queue]
        return found


def of_run(run_dir: Path) -> Picture | None:
    """The picture of a stored run; None for one that has no consumers. Raises `HistoryError`."""
    run = RunRecord.read(run_dir)
    if run.scenario.pipeline.kind != "consumers":
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
    """Of a scenario that need not be whole: what only judging asks for may be missing."""
    scenario = run.scenario
    consumers = scenario.pipeline.crew()
    spec = InputSpec.model_validate(scenario.input[0])
    outputs = [OutputSpec.model_validate(output) for output in scenario.outputs.values()]
    claim = outputs[0].claim or Claim.model_validate(scenario.claim or {})
    by_group = {str(output.query): _place(output) for output in outputs}
    return of_moves(
        str(scenario.name),
        moves_module.of_run(run_dir),
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
    """The key of each message, in order. A file that the run names is not opened: it may be anything on this machine."""
    if spec.dataset == "file":
        found = stored_keys(run_dir)
    else:
        dataset = open_dataset(spec.dataset, spec.options, seed=seed)
        found = [record.key for record in dataset.records(0, spec.rows or dataset.rows())]
    return [key.decode(errors="replace") if key is not None else None for key in found]


def stored_keys(run_dir: Path) -> list[bytes | None]:
    """As the history has them; of messages that were never published, none. Raises `HistoryError`."""
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


def of_moves(
    title: str,
    moves: Sequence[Move],
    consumers: Sequence[str],
    output: str,
    keys: Sequence[str | None],
    *,
    order: str = "per-partition",
    with_effect: bool = False,
    output_of: Mapping[str, str] | None = None,
    queues_are: str = "queue",
) -> Picture:
    """``order`` is the claim's, ``with_effect``: an effect counts when its transaction is committed.

    ``output_of``: consumer -> where its effects go, where that is not ``output``.
    """
    goes_to = {name: (output_of or {}).get(name, output) for name in consumers}
    queues = sorted({move.queue for move in moves if move.kind == "publish"})
    retries = sorted({move.queue for move in moves if move.kind == "retry"})
    lanes = [Lane("producer", "producer"), *(Lane(queue, "queue", queues_are) for queue in queues)]
    lanes += [Lane(queue, "queue", "retry " + queues_are.replace("partition", "topic")) for queue in retries]
    # Beside its group's output, where there are several: few arrows cross another group then.
    for name in dict.fromkeys(goes_to.values()):
        lanes += [*(Lane(each, "consumer") for each in consumers if goes_to[each] == name), Lane(name, "output")]
    place: dict[tuple[str, str], int] = {(lane.kind, lane.name): number for number, lane in enumerate(lanes)}
    rows: list[Row] = []
    holds: list[Hold] = []
    since: dict[int, tuple[int, int]] = {}
    dead: dict[int, int] = {}
    absences: list[tuple[int, int, int]] = []
    unaware: set[int] = set()
    taken: set[tuple[str, int]] = set()  # not the broker's mark of a redelivery: it may leave that out
    for move, is_last in zip(moves, _last_ones(moves), strict=True):
        goes = goes_to.get(move.consumer, "")
        copy = (goes, move.message)
        row = _row(move, place, place.get(("output", goes), len(lanes) - 1), again=copy in taken)
        if row is None or (row.kind == "start" and row.source not in dead):
            continue  # everybody's first start says nothing
        if row.kind == "cut":
            unaware.add(row.source)
        elif row.kind == "lost" and row.source in unaware:
            row = replace(row, kind="fail")  # whichever step it was that found the connection gone
            unaware.remove(row.source)
        rows.append(row)
        number = len(rows) - 1
        if move.kind == "take":
            taken.add(copy)
            since[row.target] = (move.message, number)
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
    results = _results(moves, keys, order, goes_to, with_effect=with_effect)
    late = frozenset(result.message for result in results if result.late)
    return Picture(title, tuple(lanes), tuple(rows), tuple(holds), tuple(absences), results, late)


def _row(move: Move, place: Mapping[tuple[str, str], int], output: int, *, again: bool) -> Row | None:
    consumer = place.get(("consumer", move.consumer), 0)
    queue = place.get(("queue", move.queue), 0)
    match move.kind:
        case "publish":
            return Row("publish", move.tick, 0, queue, move.message)
        case "take":
            return Row("again" if again else "take", move.tick, queue, consumer, move.message)
        case "effect":
            return Row("effect", move.tick, consumer, output, move.message)
        case "acknowledge":
            return Row("acknowledge", move.tick, consumer, queue, move.message)
        case "lost":
            return Row("lost", move.tick, consumer, queue, move.message)
        case "return":
            return Row("return", move.tick, consumer, queue, move.message)
        case "fenced":
            return Row("fenced", move.tick, consumer, queue, move.message)
        case "release" | "lapse":
            return Row("return", move.tick, consumer, queue, move.message)
        case "refuse":
            return Row("refuse", move.tick, consumer, output, move.message)
        case "retry":
            return Row("retry", move.tick, consumer, queue, move.message)
        case "start":
            return Row("start", move.tick, consumer, consumer, move.message)
        case "cut":
            return Row("cut", move.tick, consumer, consumer, move.message)
        case "crash" | "end":
            return Row("crash", move.tick, consumer, consumer, move.message)
        case _:
            return None


def _last_ones(moves: Sequence[Move]) -> list[bool]:
    """Of each move, whether its consumer does nothing more about the message after it, without dying."""
    following: dict[str, str] = {}
    last = []
    for move in reversed(moves):
        last.append(following.get(move.consumer, "take") in ("take", "start"))
        if move.kind not in ("commit", "return", "cut", "lapse"):
            following[move.consumer] = move.kind
    return last[::-1]


def _results(
    moves: Sequence[Move], keys: Sequence[str | None], order: str, goes_to: Mapping[str, str], *, with_effect: bool
) -> tuple[Result, ...]:
    """The effects that count. Where a consumer works in transactions, those whose commit came."""
    # A command of the user's own may commit although the scenario does not ask for it.
    transactional = with_effect or any(move.kind == "commit" for move in moves)
    kind = "commit" if transactional else "effect"
    # The queue that it was published to: the order of that one is what is promised, wherever it was put meanwhile.
    origin = {move.message: move.queue for move in moves if move.kind == "publish"}
    furthest: dict[tuple[str, str, str | None], int] = {}
    seen: set[tuple[str, int]] = set()
    found = []
    for move in moves:
        if move.kind == kind:
            output, queue = goes_to.get(move.consumer, ""), origin.get(move.message, move.queue)
            again = (output, move.message) in seen
            key = keys[move.message - 1] if move.message <= len(keys) else None
            scope = (output, queue, key if order == "per-key" else None)
            promised = order == "per-partition" or (order == "per-key" and key is not None)
            late = promised and not again and move.message < furthest.get(scope, 0)
            found.append(Result(move.message, queue, key or "", late, again, output))
            furthest[scope] = max(furthest.get(scope, 0), move.message)
            seen.add((output, move.message))
    return tuple(found)
