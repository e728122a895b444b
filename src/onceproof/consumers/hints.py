"""Where to begin a shrink of a schedule of consumers: what the witnesses of a run's findings, and its faults, say that matters.

A witness names a message, and of 200 messages in a run the finding is about one, the fault about that and another. So the
smallest schedules that could show it can be written down before anything is played; whether they do, a play shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pyarrow.parquet as pq

from onceproof.consumers import trace
from onceproof.consumers.schedule import Schedule, named
from onceproof.consumers.trace import Move
from onceproof.scenario.model import ConsumerFaultSpec
from onceproof.scenario.schedule import Clue

#: Pairs of a witness and its fault that are followed; more of the same would say the same.
_MOST_CLUES = 3


@dataclass(frozen=True)
class Clues:
    """What a run tells: its moves, and of each anomaly the messages that its witnesses name."""

    whole: Schedule
    moves: Sequence[Move]
    witnesses: Sequence[Sequence[int]]
    """Of each anomaly that must stay."""

    @classmethod
    def of_run(cls, run_dir: Path, whole: Schedule, clues: Sequence[Sequence[Clue]]) -> Clues:
        """``clues``: of each anomaly that must stay, what its witnesses name."""
        sent = pq.read_table(run_dir / "history" / "sent.parquet", columns=["topic", "partition", "offset", "seq"])
        numbers = {f"{row['topic']}/{row['partition']}@{row['offset']}": row["seq"] + 1 for row in sent.to_pylist()}
        witnesses = [[numbers[clue.cause] for clue in of if clue.cause in numbers] for of in clues]
        return cls(whole, trace.of_run(run_dir), witnesses)

    def schedules(self) -> Iterator[Schedule]:
        """Small schedules worth playing first, the smallest first. Each leaves out more than it keeps."""
        pairs = [self._pairs(messages)[:_MOST_CLUES] for messages in self.witnesses]
        for together in zip_longest(*pairs):
            chosen = [pair or of[-1] for pair, of in zip(together, pairs, strict=True) if of]
            if chosen:
                yield from self._around([w for w, _ in chosen], list(dict.fromkeys(fault for _, fault in chosen)))

    def _pairs(self, witnesses: Sequence[int]) -> list[tuple[int, ConsumerFaultSpec]]:
        """A witness and the fault that struck its message, or, where no fault did, the last one before it."""
        exact = [(w, fault) for w in witnesses for fault in self.whole.faults if fault.at.message == w]
        before = [(w, [f for f in self.whole.faults if f.at.message <= w]) for w in witnesses]
        return exact or [(w, max(faults, key=lambda f: f.at.message)) for w, faults in before if faults]

    def _around(self, witnesses: Sequence[int], faults: list[ConsumerFaultSpec]) -> Iterator[Schedule]:
        core = set(witnesses).union(*map(named, faults))
        core |= {other for w in witnesses if (other := self._overtaker(w)) is not None}
        yield self._of(core, faults)
        busy = core.union(*(self._held_at(fault).values() for fault in faults))
        if busy != core:
            yield self._of(busy, faults)
        window = [m for m in self.whole.messages if min(busy) - len(self.whole.names) <= m <= max(busy) + 1]
        for kept in (window, [m for m in self.whole.messages if m <= max(busy) + 1]):
            part = self.whole.only(kept)
            if part.messages != self.whole.messages:
                yield replace(part, faults=tuple(f for f in part.faults if f in faults))

    def _of(self, messages: set[int], faults: list[ConsumerFaultSpec]) -> Schedule:
        """Of these messages, and those who had them: in the order in which they took them, for the first named takes first."""
        kept = tuple(sorted(messages))
        takers = {fault.at.message: fault.target for fault in faults}
        takers |= {f.at.while_.holds: f.at.while_.consumer for f in faults if f.at.while_}
        for move in self.moves:
            if move.kind == "take" and move.message in messages:
                takers.setdefault(move.message, move.consumer)
        names = dict.fromkeys(takers[message] for message in kept if message in takers)
        return Schedule(kept, tuple(names) or self.whole.names[:1], tuple(faults))

    def _overtaker(self, message: int) -> int | None:
        """The first message after this one, of its queue, whose effect came before this one's."""
        queue = next((move.queue for move in self.moves if move.message == message and move.queue), None)
        done = []
        for move in self.moves:
            if move.kind == "effect" and move.queue == queue:
                if move.message == message:
                    break
                done.append(move.message)
        return min((other for other in done if other > message), default=None)

    def _held_at(self, fault: ConsumerFaultSpec) -> dict[str, int]:
        """Who had what when the fault was there: those who are busy are why it went as it did."""
        held: dict[str, int] = {}
        did: dict[str, set[str]] = {}
        for move in self.moves:
            if move.kind == "take":
                held[move.consumer], did[move.consumer] = move.message, set()
            elif move.kind in ("crash", "end", "return"):
                held.pop(move.consumer, None)
            elif move.consumer in held:
                did[move.consumer].add(move.kind)
                if {"effect", "acknowledge"} <= did[move.consumer]:
                    held.pop(move.consumer)
            at = fault.at
            if (move.consumer, move.kind, move.message) == (fault.target, at.after, at.message):
                return {**held, fault.target: at.message}
        return {}
