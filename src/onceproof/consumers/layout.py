"""The names of one execution: its queues, which consumer takes from which, and where effects go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onceproof.consumers.routes import AddsPartitions, Kills, OutlastsItsBroker, Rewinds
from onceproof.data import Record
from onceproof.faults.contract import fault_of
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import InputSpec, Scenario, consumers_of
from onceproof.scenario.queues import input_queues

#: The group of all consumers, where a scenario names none.
GROUP = "consumers"


@dataclass(frozen=True)
class Message:
    number: int
    """From 1, in the order of the data set."""
    queue: str


@dataclass(frozen=True)
class Layout:
    """Names as the scenario and its picture have them; ``prefix`` separates the executions of a replay at the broker."""

    prefix: str
    topic: str
    inputs: tuple[str, ...]
    """The queue of each partition of the input, with those that a fault adds."""
    outputs: Mapping[str, str]
    """Name of an output -> its queue."""
    retry: str | None
    """The queue for messages whose effect an output refused."""
    queues_of: Mapping[str, tuple[str, ...]]
    """Consumer -> queues that it takes from, in this order."""
    group_of: Mapping[str, str]
    output_of: Mapping[str, str]
    """Consumer -> name of the output that its effects go to: the first of its group."""
    tables: Mapping[str, str] = field(default_factory=dict)
    """Name of an output -> its table in Postgres, for outputs that are tables."""
    prepare_sql: str = ""
    """The SQL that creates the tables."""
    keeps_positions: bool = False
    """Whether consumers keep their positions in Postgres, together with their effects, instead of in the group."""
    static: bool = True
    """Whether members of a consumer group keep their partitions while they are away."""
    dead_letter: str | None = None
    """The topic for messages that the output refuses, which is an output too."""
    offset_reset: str = "earliest"
    """What a consumer does when the log no longer has its next record."""
    outlasted: frozenset[str] = frozenset()
    """Consumers that a fault holds for longer than the group's timeout."""
    outputs_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Consumer -> names of all outputs of its group."""

    killed: frozenset[str] = frozenset()
    """Consumers that a fault kills, and whose group has to notice their death."""
    added: int = 0
    """How many partitions of the input, the last ones, do not exist before a fault adds them."""
    partitions_of: Mapping[str, int] = field(default_factory=dict)
    """Topic of an output -> its partitions, where it has more than one."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Settings of the input's topic."""

    def groups(self) -> list[str]:
        return list(dict.fromkeys(self.group_of.values()))

    def messages(self, records: Sequence[Record], partitions: int) -> list[Message]:
        """The message of each record, in the partition of its key if the input has that many."""
        queues = enumerate(keys_to_queues(records, partitions), start=1)
        return [Message(number, self.inputs[queue]) for number, queue in queues]

    def recorded_as(self, step: str, message: Message) -> Message:
        """The message as the trace records it after this step: once it is put into another topic, that is its queue."""
        put_into = {"retry": self.retry, "dead-letter": self.dead_letter}.get(step)
        return message if put_into is None else Message(message.number, put_into)

    @property
    def at_start(self) -> tuple[str, ...]:
        """The queues of the input that exist before any fault."""
        return self.inputs[: len(self.inputs) - self.added]


def of_scenario(scenario: Scenario, prefix: str = "") -> Layout:
    spec, consumers = scenario.input[0], consumers_of(scenario)
    added = max(
        (total for fault in scenario.chaos if (total := _total(fault, spec)) is not None), default=spec.partitions
    )
    inputs = tuple(input_queues(spec.model_copy(update={"partitions": added}), consumers.broker))
    at_start = inputs[: spec.partitions]
    group_of = {name: _group(consumers, name) for name in consumers.names}
    queues_of: dict[str, tuple[str, ...]] = {}
    for group in dict.fromkeys(group_of.values()):
        queues_of |= _assign_queues(consumers, at_start, [name for name, its in group_of.items() if its == group])
    if consumers.retry is not None:
        queues_of[consumers.retry.consumer] = (consumers.retry.topic,)
    dead_letter = consumers.dead_letter.topic if consumers.dead_letter is not None else None
    first = next(
        name for name, output in scenario.outputs.items() if dead_letter is None or output.topic != dead_letter
    )
    of_group = {output.query: name for name, output in scenario.outputs.items()}
    return Layout(
        prefix=prefix,
        topic=spec.topic,
        inputs=inputs,
        outputs={name: output.topic for name, output in scenario.outputs.items() if output.topic is not None},
        retry=consumers.retry.topic if consumers.retry is not None else None,
        queues_of=queues_of,
        group_of=group_of,
        output_of={name: of_group[group] if consumers.groups else first for name, group in group_of.items()},
        tables=(
            tables := {name: output.table for name, output in scenario.outputs.items() if output.table is not None}
        ),
        prepare_sql=scenario.pipeline.prepare.sql,
        keeps_positions=bool(tables) and consumers.acknowledge == "with-effect",
        static=consumers.static,
        dead_letter=dead_letter,
        offset_reset=consumers.offset_reset,
        outlasted=frozenset(fault.target for fault in scenario.chaos if issubclass(fault_of(fault), OutlastsItsBroker)),
        outputs_of={
            name: (of_group[group],) if consumers.groups else tuple(scenario.outputs)
            for name, group in group_of.items()
        },
        killed=frozenset(
            fault.target
            for fault in scenario.chaos
            if issubclass(fault_of(fault), Rewinds if consumers.static else Kills)
        ),
        added=added - spec.partitions,
        partitions_of={name: topic.partitions for name, topic in scenario.pipeline.prepare.topics.items()},
        config=spec.config,
    )


def _total(fault: AnyFaultSpec, spec: InputSpec) -> int | None:
    """The number of partitions of the input after this fault; None if it adds none."""
    kind = fault_of(fault)
    return kind.partitions_of(fault, spec.topic) if issubclass(kind, AddsPartitions) else None


def _group(consumers: ConsumersSpec, name: str) -> str:
    return next((group for group, names in consumers.groups.items() if name in names), GROUP)


def _assign_queues(consumers: ConsumersSpec, inputs: tuple[str, ...], members: list[str]) -> dict[str, tuple[str, ...]]:
    """The queues of the input that each member of a group takes from."""
    members = [name for name in members if consumers.retry is None or name != consumers.retry.consumer]
    if consumers.broker != "kafka-group" and consumers.queues == "shared":
        return dict.fromkeys(members, inputs)
    return assign_ranges(inputs, members)


def assign_ranges(inputs: tuple[str, ...], members: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Assign partitions as Kafka's range assignor does: consecutive equal shares, one more for the first members."""
    share, more = divmod(len(inputs), len(members))
    starts = [index * share + min(index, more) for index in range(len(members) + 1)]
    return {name: inputs[starts[index] : starts[index + 1]] for index, name in enumerate(members)}


def keys_to_queues(records: Sequence[Record], queues: int) -> list[int]:
    """The queue of each record: keys are assigned in the order of their first record, records without a key in turn."""
    assigned: dict[bytes, int] = {}
    return [
        assigned.setdefault(record.key, len(assigned) % queues) if record.key is not None else number % queues
        for number, record in enumerate(records)
    ]
