"""The picture of a run of consumers, before anybody renders it: lanes, and what went from which to which, row by row.

Time runs downwards, one row a move. Lanes: the producer, each queue of the broker, each consumer, the output. How it is drawn
stands in `onceproof.reports.picture_svg` and `onceproof.reports.picture_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from onceproof.consumers import moves as moves_module
from onceproof.consumers.moves import Move
from onceproof.data import open_dataset
from onceproof.history.reader import read_document

RowKind = Literal["publish", "take", "again", "effect", "acknowledge", "crash", "return", "start"]


@dataclass(frozen=True)
class Lane:
    name: str
    kind: Literal["producer", "queue", "consumer", "output"]


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
    key: str
    late: bool
    """After the effect of a later message of the same queue."""
    repeated: bool


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

    def by_queue(self) -> dict[str, list[Result]]:
        """The effects of each queue's messages, in their order. A queue without any is not there."""
        queues = sorted({result.queue for result in self.results})
        return {queue: [result for result in self.results if result.queue == queue] for queue in queues}


def of_run(run_dir: Path) -> Picture | None:
    """The picture of a stored run; None for one that has no consumers. Raises `HistoryError`."""
    document = read_document(run_dir)
    scenario: Mapping[str, Any] = document["scenario"]
    consumers = (scenario.get("pipeline") or {}).get("consumers")
    if not consumers:
        return None
    spec = scenario["input"][0]
    dataset = open_dataset(spec["dataset"], spec.get("options") or {}, seed=int(document.get("seed") or 0))
    stop = spec.get("rows") or dataset.rows()
    keys = [(record.key or b"").decode(errors="replace") for record in dataset.records(0, stop)]
    output = next(iter(scenario["outputs"].values()))["topic"]
    return of_moves(str(scenario["name"]), moves_module.of_run(run_dir), list(consumers["names"]), str(output), keys)


def of_moves(title: str, moves: Sequence[Move], consumers: Sequence[str], output: str, keys: Sequence[str]) -> Picture:
    queues = sorted({move.queue for move in moves if move.kind == "publish"})
    lanes = [Lane("producer", "producer"), *(Lane(queue, "queue") for queue in queues)]
    lanes += [*(Lane(name, "consumer") for name in consumers), Lane(output, "output")]
    place: dict[tuple[str, str], int] = {(lane.kind, lane.name): number for number, lane in enumerate(lanes)}
    rows: list[Row] = []
    holds: list[Hold] = []
    since: dict[int, tuple[int, int]] = {}
    dead: dict[int, int] = {}
    absences: list[tuple[int, int, int]] = []
    taken: set[int] = set()  # not the broker's mark of a redelivery: it may leave that out
    for move in moves:
        row = _row(move, place, len(lanes) - 1, again=move.message in taken)
        if row is None or (row.kind == "start" and row.source not in dead):
            continue  # everybody's first start says nothing
        rows.append(row)
        number = len(rows) - 1
        if move.kind == "take":
            taken.add(move.message)
            since[row.target] = (move.message, number)
        elif move.kind in ("effect", "acknowledge", "crash") and row.source in since:
            message, first = since[row.source]
            ended = move.kind == "crash" or _is_last(moves, move)
            if ended:
                holds.append(Hold(row.source, message, first, number, move.kind == "crash"))
                del since[row.source]
        if move.kind == "crash":
            dead[row.source] = number
        elif row.kind == "start":
            absences.append((row.source, dead.pop(row.source), number))
    holds += [Hold(lane, message, first, len(rows) - 1, False) for lane, (message, first) in since.items()]
    absences += [(lane, first, len(rows)) for lane, first in dead.items()]
    results = _results(moves, keys)
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
        case "return":
            return Row("return", move.tick, consumer, queue, move.message)
        case "crash" | "start":
            return Row(move.kind, move.tick, consumer, consumer, move.message)
        case _:
            return None


def _is_last(moves: Sequence[Move], move: Move) -> bool:
    """Whether its consumer does nothing more about the message after it, without dying."""
    later = moves[moves.index(move) + 1 :]
    following = next((m for m in later if m.consumer == move.consumer and m.kind not in ("commit", "return")), None)
    return following is None or following.kind in ("take", "start")


def _results(moves: Sequence[Move], keys: Sequence[str]) -> tuple[Result, ...]:
    """The effects that count. Where a consumer works in transactions, those whose commit came."""
    transactional = any(move.kind == "commit" for move in moves)
    kind = "commit" if transactional else "effect"
    furthest: dict[str, int] = {}
    seen: set[int] = set()
    found = []
    for move in moves:
        if move.kind == kind:
            again = move.message in seen
            late = not again and move.message < furthest.get(move.queue, 0)
            key = keys[move.message - 1] if move.message <= len(keys) else ""
            found.append(Result(move.message, move.queue, key, late, again))
            furthest[move.queue] = max(furthest.get(move.queue, 0), move.message)
            seen.add(move.message)
    return tuple(found)
