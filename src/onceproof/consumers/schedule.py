"""A schedule of consumers that can be shrunk: its messages, consumers and faults."""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any

from onceproof.base.words import times
from onceproof.data import Record, open_dataset
from onceproof.scenario.model import ConsumerFaultSpec, Elsewhere, Scenario, consumers_of
from onceproof.scenario.schedule import MOST_WAYS, Removal

#: With at most so many messages left, each of them is tried in place of a removed message that a fault had named.
_FEW = 3
#: The oracle's fields with an entry per output.
_BY_OUTPUT = ("queries", "columns", "where")


@dataclass(frozen=True)
class ConsumerSchedule:
    """Messages keep the numbers of the original scenario, also in the faults."""

    messages: tuple[int, ...]
    names: tuple[str, ...]
    faults: tuple[ConsumerFaultSpec, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        return self.messages

    def sizes(self) -> dict[str, int]:
        return dict(zip(("messages", "consumers", "faults"), self.size, strict=True))

    @property
    def size(self) -> tuple[int, int, int]:
        return len(self.messages), len(self.names), len(self.faults)

    def __str__(self) -> str:
        return ", ".join(map(times, self.size, ("message", "consumer", "fault")))

    def without_faults(self) -> ConsumerSchedule:
        """The same schedule without its faults."""
        return replace(self, faults=())

    def only(self, messages: Sequence[int]) -> ConsumerSchedule:
        """The schedule of these messages only, with the faults that name no other message."""
        left = set(messages)
        return replace(
            self,
            messages=tuple(m for m in self.messages if m in left),
            faults=tuple(fault for fault in self.faults if messages_of(fault) <= left),
        )

    def smaller(self) -> Iterator[Removal[ConsumerSchedule]]:
        """Every single removal: of a message, a consumer or a fault."""
        for message in self.messages:
            rest = replace(self, messages=tuple(m for m in self.messages if m != message))
            yield Removal(f"message {message}", *rest._placements())
        for name in self.names:
            if len(self.names) > 1:
                rest = replace(self, names=tuple(n for n in self.names if n != name))
                yield Removal(f"consumer {name}", *rest._placements())
        for index, fault in enumerate(self.faults):
            rest = replace(self, faults=tuple(f for number, f in enumerate(self.faults) if number != index))
            yield Removal(f"{fault.fault} of {fault.target}", [rest])

    def _placements(self) -> tuple[list[ConsumerSchedule], bool]:
        """The ways in which its faults can strike the remaining messages and consumers, the least changed first.

        Also whether there are more ways than these.
        """
        if not self.messages:
            return [], False
        ways = list(islice(product(*(self._places_of(fault) for fault in self.faults)), MOST_WAYS + 1))
        placed = [replace(self, faults=tuple(f for f in way if f is not None)) for way in ways[:MOST_WAYS]]
        unlike = sorted(placed, key=lambda s: sum(f not in self.faults for f in s.faults) - len(s.faults))
        return list(dict.fromkeys(unlike)), len(ways) > MOST_WAYS

    def _places_of(self, fault: ConsumerFaultSpec) -> list[ConsumerFaultSpec | None]:
        whole = messages_of(fault) <= set(self.messages) and _consumers_of(fault) <= set(self.names)
        if whole and (len(self.faults) > 1 or fault.numbers):
            return [fault]
        if fault.numbers:
            return [None]  # at another message, its other numbers may mean nothing
        at = fault.at
        messages = [at.message] if at.message in self.messages else []
        messages += [m for m in self.messages if m != at.message and (len(self.messages) <= _FEW or not messages)]
        found: list[ConsumerFaultSpec | None] = []
        for message in messages:
            for target in sorted(self.names, key=lambda name: name != fault.target):
                for other in self._others(at.while_, message, target):
                    where = at.model_copy(update={"message": message, "while_": other})
                    found.append(fault.model_copy(update={"target": target, "at": where}))
        return found if whole else [*found, None]  # the fault may be removed too if its message or consumer is gone

    def _others(self, was: Elsewhere | None, message: int, target: str) -> list[Elsewhere | None]:
        if was is None:
            return [None]
        names = sorted((name for name in self.names if name != target), key=lambda name: name != was.consumer)
        held = [m for m in self.messages if m != message and (was.holds == m or was.holds not in self.messages)]
        return [Elsewhere(consumer=name, holds=m) for name in names for m in held] or [None]


def records_of(scenario: Scenario) -> list[Record]:
    """The records of a scenario's messages, in order."""
    (spec,) = scenario.input
    dataset = open_dataset(spec.dataset, spec.options, seed=scenario.seed)
    return list(dataset.records(0, spec.rows if spec.rows is not None else dataset.rows()))


def messages_of(fault: ConsumerFaultSpec) -> set[int]:
    """The messages that a fault needs."""
    named = {int(getattr(fault, field)) for field in fault.numbers}
    return {fault.at.message} | named | ({fault.at.while_.holds} if fault.at.while_ else set())


def _consumers_of(fault: ConsumerFaultSpec) -> set[str]:
    return {fault.target} | ({fault.at.while_.consumer} if fault.at.while_ else set())


@dataclass(frozen=True)
class WholeConsumers:
    """The original scenario of a shrink; makes a scenario of a smaller schedule."""

    scenario: Scenario

    @cached_property
    def records(self) -> list[Record]:
        return records_of(self.scenario)

    @cached_property
    def schedule(self) -> ConsumerSchedule:
        consumers = consumers_of(self.scenario)
        faults = tuple(self.scenario.faults(ConsumerFaultSpec))
        return ConsumerSchedule(tuple(range(1, len(self.records) + 1)), tuple(consumers.names), faults)

    def execution_key(self, schedule: ConsumerSchedule) -> Hashable:
        """The same value for schedules that differ only in message numbers, on which nothing depends."""
        if self.scenario.input[0].dataset != "messages":
            return schedule  # a user's own consumer may act on what is in a record
        numbers = {message: number for number, message in enumerate(schedule.messages, start=1)}
        keys = tuple(self.records[message - 1].key for message in schedule.messages)
        faults = tuple(_renumbered(fault, numbers) for fault in schedule.faults)
        return keys, schedule.names, faults, tuple(self._slow(numbers).items())

    def _slow(self, numbers: Mapping[int, int]) -> dict[int, int]:
        slow = consumers_of(self.scenario).slow
        return {numbers[m]: ticks for m, ticks in sorted(slow.items()) if m in numbers}

    def of(self, schedule: ConsumerSchedule, records_file: Path) -> Scenario:
        """The scenario with that schedule, its messages renumbered from 1.

        Of the data set ``messages`` the keys suffice; the records of any other are written to ``records_file``.
        """
        scenario = self.scenario
        consumers = consumers_of(scenario)
        numbers = {message: number for number, message in enumerate(schedule.messages, start=1)}
        members = {group: [n for n in names if n in schedule.names] for group, names in consumers.groups.items()}
        groups = {group: names for group, names in members.items() if names}
        spec = consumers.model_copy(
            update={"names": list(schedule.names), "slow": self._slow(numbers), "groups": groups}
        )
        update = self._input(schedule, records_file)
        if consumers.queues == "own":
            update["partitions"] = len(schedule.names) - (consumers.retry is not None)
        return scenario.model_copy(
            update={
                **(self._read_by(groups) if consumers.groups else {}),
                "input": [scenario.input[0].model_copy(update={"rows": None, **update})],
                "pipeline": scenario.pipeline.model_copy(update={"consumers": spec}),
                "chaos": [_renumbered(fault, numbers) for fault in schedule.faults],
            }
        )

    def _read_by(self, groups: Container[str | None]) -> dict[str, Any]:
        """The outputs of these groups, and the oracle's expectations of them."""
        outputs = {name: output for name, output in self.scenario.outputs.items() if output.query in groups}
        oracle = self.scenario.oracle
        expectations = {
            field: {name: text for name, text in getattr(oracle, field).items() if name in outputs}
            for field in _BY_OUTPUT
            if field in type(oracle).model_fields
        }
        return {"outputs": outputs, "oracle": oracle.model_copy(update=expectations)}

    def _input(self, schedule: ConsumerSchedule, records_file: Path) -> dict[str, Any]:
        kept = [self.records[message - 1] for message in schedule.messages]
        if self.scenario.input[0].dataset == "messages":
            return {"options": {"keys": [(record.key or b"").decode() for record in kept]}}
        records_file.parent.mkdir(parents=True, exist_ok=True)
        records_file.write_text("".join(f"{json.dumps(_as_row(record))}\n" for record in kept), encoding="utf-8")
        return {"dataset": "file", "options": {"file": str(records_file)}}


def _renumbered(fault: ConsumerFaultSpec, numbers: Mapping[int, int]) -> ConsumerFaultSpec:
    at = fault.at
    other = at.while_.model_copy(update={"holds": numbers[at.while_.holds]}) if at.while_ else None
    named = {field: numbers[getattr(fault, field)] for field in fault.numbers}
    return fault.model_copy(
        update={"at": at.model_copy(update={"message": numbers[at.message], "while_": other}), **named}
    )


def _as_row(record: Record) -> dict[str, Any]:
    row: dict[str, Any]
    try:
        row = {"value": record.value.decode()}
    except UnicodeDecodeError:
        row = {"value_base64": base64.b64encode(record.value).decode()}
    if record.key is not None:
        row["key_base64"] = base64.b64encode(record.key).decode()
    return {**row, "timestamp_ms": record.timestamp_ms}
