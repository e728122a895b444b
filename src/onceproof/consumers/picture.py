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
from onceproof.errors import HistoryError
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
    """After the effect of a later message, where the claim promises the order of the two."""
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
    try:
        return _of_document(document, run_dir)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise HistoryError(
            f"the scenario in {run_dir / 'run.json'} cannot be drawn: {type(error).__name__}: {error}",
            hint="run the scenario again",
        ) from error


def _of_document(document: Mapping[str, Any], run_dir: Path) -> Picture | None:
    scenario: Mapping[str, Any] = document["scenario"]
    consumers = (scenario.get("pipeline") or {}).get("consumers")
    if not consumers:
        return None
    spec = scenario["input"][0]
    dataset = open_dataset(spec["dataset"], spec.get("options") or {}, seed=int(document.get("seed") or 0))
    stop = spec.get("rows") or dataset.rows()
    keys = [
        record.key.decode(errors="replace") if record.key is not None else None for record in dataset.records(0, stop)
    ]
    output = next(iter(scenario["outputs"].values()))
    claim = output.get("claim") or scenario.get("claim") or {}
    return of_moves(
        str(scenario["name"]),
        moves_module.of_run(run_dir),
        list(consumers["names"]),
        str(output["topic"]),
        keys,
        order=str(claim.get("order", "none")),
        with_effect=consumers.get("acknowledge") == "with-effect",
    )


def of_moves(
    title: str,
    moves: Sequence[Move],
    consumers: Sequence[str],
    output: str,
    keys: Sequence[str | None],
    *,
    order: str = "per-partition",
    with_effect: bool = False,
) -> Picture:
    """``order`` is the claim's, ``with_effect``: an effect counts when its transaction is committed."""
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
    for move, is_last in zip(moves, _last_ones(moves), strict=True):
        row = _row(move, place, len(lanes) - 1, again=move.message in taken)
        if row is None or (row.kind == "start" and row.source not in dead):
            continue  # everybody's first start says nothing
        rows.append(row)
        number = len(rows) - 1
        if move.kind == "take":
            taken.add(move.message)
            since[row.target] = (move.message, number)
        elif row.kind in ("effect", "acknowledge", "crash") and row.source in since:
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
    results = _results(moves, keys, order, with_effect=with_effect)
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
        case "start":
            return Row("start", move.tick, consumer, consumer, move.message)
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
        if move.kind not in ("commit", "return"):
            following[move.consumer] = move.kind
    return last[::-1]


def _results(moves: Sequence[Move], keys: Sequence[str | None], order: str, *, with_effect: bool) -> tuple[Result, ...]:
    """The effects that count. Where a consumer works in transactions, those whose commit came."""
    # A command of the user's own may commit although the scenario does not ask for it.
    transactional = with_effect or any(move.kind == "commit" for move in moves)
    kind = "commit" if transactional else "effect"
    furthest: dict[tuple[str, str | None], int] = {}
    seen: set[int] = set()
    found = []
    for move in moves:
        if move.kind == kind:
            again = move.message in seen
            key = keys[move.message - 1] if move.message <= len(keys) else None
            scope = (move.queue, key if order == "per-key" else None)
            promised = order == "per-partition" or (order == "per-key" and key is not None)
            late = promised and not again and move.message < furthest.get(scope, 0)
            found.append(Result(move.message, move.queue, key or "", late, again))
            furthest[scope] = max(furthest.get(scope, 0), move.message)
            seen.add(move.message)
    return tuple(found)
