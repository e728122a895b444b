"""Kafka as a store: topics, read back with both isolation levels. It also reads back the inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict

from onceproof.base.registry import suggest
from onceproof.history.run_record import OutputRecord
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.stores.kafka.frames import KafkaFrames
from onceproof.stores.kafka.read_back import collect_topics
from onceproof.stores.kafka.state import all_ends, stable_ends


class KafkaStore:
    """Implements `onceproof.stores.contract.Store` and `HasFrames`."""

    about = "a Kafka topic (for consumers: a queue)"
    field = "topic"
    Spec = OutputSpec
    words = Words("record", "topic", system="Kafka")
    frames = KafkaFrames()

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        topics = scenario.topics()
        if spec.topic is not None and spec.topic not in topics:
            hint = f"add it under pipeline: prepare: topics; {suggest(spec.topic, topics)}"
            yield Complaint(("topic",), f"output topic {spec.topic!r} is not created", hint)

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return spec.place

    def name(self, spec: OutputSpec) -> str:
        return f"topic {spec.topic}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        if outputs is None:
            return {
                f"topic {topic}": f"stable up to {_offsets_text(ends)}"
                for topic, ends in stable_ends(stack.kafka).items()
            }
        if not outputs:
            return {}
        ends = all_ends(stack.kafka)
        topics = {spec.place for spec in outputs}
        return {f"topic {topic}": f"records up to {_offsets_text(ends[topic])}" for topic in topics & ends.keys()}

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        topics = {name: spec.place for name, spec in run.outputs(self).items()}
        inputs = [spec.topic for spec in run.scenario.input]
        found, back = collect_topics(run.stack.kafka, inputs, topics, run.writer, run.timeline)
        run.ends.update({topic: counts.ends for topic, counts in found.items()})
        return {name: OutputRecord(columns=None, **asdict(counts)) for name, counts in back.items()}


def _offsets_text(ends: Mapping[int, int]) -> str:
    return " ".join(f"{partition}@{end}" for partition, end in sorted(ends.items()))


stores.register("kafka")(KafkaStore())
