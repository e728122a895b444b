"""Small schedules with which a shrink of consumers begins, made from the witnesses and the faults of a run.

A run may have 200 messages, while its finding is about one of them and its fault about that one and another. So the smallest
schedules that could show the finding can be listed before anything is executed. Executing them shows which of them do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import pyarrow.parquet as pq

from onceproof.consumers.schedule import ConsumerSchedule, messages_of
from onceproof.consumers.trace import TraceEvent, read_trace
from onceproof.scenario.model import ConsumerFaultSpec
from onceproof.scenario.schedule import ShrinkHint

#: How many pairs of a witness and its fault are used; further pairs lead to similar schedules.
_MOST_PAIRS = 3


@dataclass(frozen=True)
class ShrinkHints:
    """What a run shows for a shrink: its trace, and the messages that the witnesses of each anomaly name."""

    whole: ConsumerSchedule
    trace: Sequence[TraceEvent]
    witnesses: Sequence[Sequence[int]]
    """The messages of each anomaly that must stay."""

    @classmethod
    def of_run(cls, run_dir: Path, whole: ConsumerSchedule, hints: Sequence[Sequence[ShrinkHint]]) -> ShrinkHints:
        """Read the trace of a stored run. ``hints``: per anomaly that must stay, what its witnesses name."""
        sent = pq.read_table(run_dir / "history" / "sent.parquet", columns=["topic", "partition", "offset", "seq"])
        numbers = {f"{row['topic']}/{row['partition']}@{row['offset']}": row["seq"] + 1 for row in sent.to_pylist()}
        witnesses = [[numbers[hint.cause] for hint in of if hint.cause in numbers] for of in hints]
        return cls(whole, read_trace(run_dir), witnesses)

    def schedules(self) -> Iterator[ConsumerSchedule]:
        """Small schedules to execute first, the smallest first. Each leaves out more than it keeps."""
        pairs = [self._pairs(messages)[:_MOST_PAIRS] for messages in self.witnesses]
        for together in zip_longest(*pairs):
            chosen = [pair or of[-1] for pair, of in zip(together, pairs, strict=True) if of]
            if chosen:
                yield from self._around([w for w, _ in chosen], list(dict.fromkeys(fault for _, fault in chosen)))

    def _pairs(self, witnesses: Sequence[int]) -> list[tuple[int, ConsumerFaultSpec]]:
        """Each witness with the fault that struck its message or, if no fault did, with the last fault before it."""
        exact = [(w, fault) for w in witnesses for fault in self.whole.faults if fault.at.message == w]
        before = [(w, [f for f in self.whole.faults if f.at.message <= w]) for w in witnesses]
        return exact or [(w, max(faults, key=lambda f: f.at.message)) for w, faults in before if faults]

    def _around(self, witnesses: Sequence[int], faults: list[ConsumerFaultSpec]) -> Iterator[ConsumerSchedule]:
        core = set(witnesses).union(*map(messages_of, faults))
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

    def _of(self, messages: set[int], faults: list[ConsumerFaultSpec]) -> ConsumerSchedule:
        """A schedule of these messages and the consumers that took them.

        Consumers are named in the order of their takes, because the first named takes first.
        """
        kept = tuple(sorted(messages))
        takers = {fault.at.message: fault.target for fault in faults}
        takers |= {f.at.while_.holds: f.at.while_.consumer for f in faults if f.at.while_}
        for event in self.trace:
            if event.kind == "take" and event.message in messages:
                takers.setdefault(event.message, event.consumer)
        names = dict.fromkeys(takers[message] for message in kept if message in takers)
        return ConsumerSchedule(kept, tuple(names) or self.whole.names[:1], tuple(faults))

    def _overtaker(self, message: int) -> int | None:
        """The first later message of the same queue whose effect came before this message's."""
        queue = next((event.queue for event in self.trace if event.message == message and event.queue), None)
        done = []
        for event in self.trace:
            if event.kind == "effect" and event.queue == queue:
                if event.message == message:
                    break
                done.append(event.message)
        return min((other for other in done if other > message), default=None)

    def _held_at(self, fault: ConsumerFaultSpec) -> dict[str, int]:
        """Consumer -> the message that it held when the fault struck: which consumers were busy decides who was given what."""
        held: dict[str, int] = {}
        did: dict[str, set[str]] = {}
        for event in self.trace:
            if event.kind == "take":
                held[event.consumer], did[event.consumer] = event.message, set()
            elif event.kind in ("crash", "end", "return"):
                held.pop(event.consumer, None)
            elif event.consumer in held:
                did[event.consumer].add(event.kind)
                if {"effect", "acknowledge"} <= did[event.consumer]:
                    held.pop(event.consumer)
            at = fault.at
            if (event.consumer, event.kind, event.message) == (fault.target, at.after, at.message):
                return {**held, fault.target: at.message}
        return {}
