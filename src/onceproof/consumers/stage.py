"""One play of a scenario with consumers on a broker that is up: its queues, its processes, its history.

A queue forgets what is taken from it, so each input queue has a twin that nobody takes from: the exchange gives it a copy of
every message, in the same order, and it is read back after the run as the log of what was really sent. An effect is what
stands in the output queue, which is read back in its order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from onceproof.consumers.crew import Crew
from onceproof.consumers.drive import Drive, Message
from onceproof.consumers.gate import Gate
from onceproof.data import Record, open_dataset
from onceproof.events import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.rundir import RunDir
from onceproof.scenario.consumer_check import input_queues, twin
from onceproof.scenario.model import ConsumerFaultSpec, ConsumersSpec, InputSpec, Scenario
from onceproof.scenario.templates import fill
from onceproof.spark_conf import inherited
from onceproof.stack import components
from onceproof.stack.amqp import EmbeddedAmqp
from onceproof.stack.processes import Owner


@dataclass(frozen=True)
class _Queues:
    """The names of one play: ``prefix`` keeps the plays of a replay apart."""

    spec: InputSpec
    consumers: ConsumersSpec
    prefix: str

    def inputs(self) -> list[str]:
        return [f"{self.prefix}{name}" for name in input_queues(self.spec)]

    def input(self, number: int) -> str:
        return self.inputs()[number]

    def of_consumer(self, index: int) -> tuple[str, ...]:
        return tuple(self.inputs()) if self.consumers.queues == "shared" else (self.input(index),)


def keys_to_queues(records: list[Record], queues: int) -> list[int]:
    """The queue of each record: keys are dealt out in the order in which they first come, records without one in turn."""
    dealt: dict[bytes, int] = {}
    return [
        dealt.setdefault(record.key, len(dealt) % queues) if record.key is not None else number % queues
        for number, record in enumerate(records)
    ]


def play(
    scenario: Scenario,
    here: Path,
    broker: EmbeddedAmqp,
    owner: Owner,
    directory: RunDir,
    timeline: Timeline,
    prefix: str,
) -> None:
    """Play the scenario's schedule once, and write its history into ``directory``."""
    spec, consumers = scenario.input[0], scenario.pipeline.consumers
    assert consumers is not None, "validated: a scenario of consumers"
    dataset = open_dataset(spec.dataset, spec.options, seed=scenario.seed)
    records = list(dataset.records(0, spec.rows if spec.rows is not None else dataset.rows()))
    queues = _Queues(spec, consumers, prefix)
    messages = [
        Message(number, queues.input(queue))
        for number, queue in enumerate(keys_to_queues(records, spec.partitions), start=1)
    ]
    outputs = {name: f"{prefix}{output.topic}" for name, output in scenario.outputs.items()}
    exchange = f"{prefix}exchange"
    bindings = {queue: [queue, twin(queue)] for queue in queues.inputs()}
    broker.declare(exchange, {**bindings, **{queue: [queue] for queue in outputs.values()}})
    scratch = owner.temporary_folder()
    gate = Gate(scratch / "gate")

    values = {"python": sys.executable, "here": str(here)}

    def environment(name: str, mark: str) -> Mapping[str, str]:
        index = consumers.names.index(name)
        return {
            **inherited(),
            **{name: os.environ[name] for name in scenario.pipeline.secrets},
            **{variable: fill(value, values) for variable, value in scenario.pipeline.env.items()},
            "ONCEPROOF_GATE": str(scratch / "gate"),
            "ONCEPROOF_CONSUMER": name,
            "ONCEPROOF_AMQP_URL": broker.url,
            "ONCEPROOF_QUEUES": ",".join(queues.of_consumer(index)),
            "ONCEPROOF_OUTPUT": next(iter(outputs.values())),
            "ONCEPROOF_MARK": mark,
            "ONCEPROOF_ACKNOWLEDGE": consumers.acknowledge,
        }

    crew = Crew(
        [fill(word, values) for word in scenario.pipeline.command],
        environment,
        owner=owner,
        gate=gate,
        logs=directory.logs,
        cwd=scratch,
        prefix=prefix,
        check=broker.check,
    )

    def publish(message: Message) -> None:
        record = records[message.number - 1]
        properties = pika.BasicProperties(
            message_id=f"m{message.number}",
            content_type="application/json",
            headers={"key": record.key.decode(errors="replace")} if record.key is not None else {},
        )
        broker.publish(exchange, message.queue, record.value, properties)

    drive = Drive(
        consumers,
        messages,
        {name: queues.of_consumer(index) for index, name in enumerate(consumers.names)},
        crew,
        publish,
        broker.await_gone,
        broker.exists,
        timeline,
        [fault for fault in scenario.chaos if isinstance(fault, ConsumerFaultSpec)],
        timeline.now() + scenario.limits.deadline_s,
    )
    timeline.emit("phase", name="run")
    try:
        drive.play()
    finally:
        crew.stop()
    drive.settle()
    timeline.emit("phase", name="collect")
    with HistoryWriter(directory.path) as writer:
        writer.append("sent", _sent(drive, spec, queues))
        writer.append("faults", drive.fault_rows())
        for number, queue in enumerate(queues.inputs()):
            writer.append("input", _input(broker, spec.topic, number, twin(queue)))
            writer.append("progress", _progress(drive, spec.topic, number, queue))
        for name, queue in outputs.items():
            writer.append("output", _output(broker, name, queue))
    broker.remove(exchange, [*bindings, *map(twin, bindings), *outputs.values()])
    hidden = [broker.password, *(os.environ[name] for name in scenario.pipeline.secrets)]
    directory.update(**_summary(drive, crew, hidden), seconds=round(timeline.now(), 3))


def _sent(drive: Drive, spec: InputSpec, queues: _Queues) -> Iterator[dict[str, Any]]:
    """The ledger: the broker answered for what was published, and a queue keeps the order in which it was told."""
    place = dict.fromkeys(queues.inputs(), 0)
    published = {move.message for move in drive.moves if move.kind == "publish"}
    for message in drive.messages:
        if message.number in published:
            yield {
                "topic": spec.topic,
                "seq": message.number - 1,
                "status": "acked",
                "partition": queues.inputs().index(message.queue),
                "offset": place[message.queue],
            }
            place[message.queue] += 1


def _input(broker: EmbeddedAmqp, topic: str, number: int, twin: str) -> Iterator[dict[str, Any]]:
    for place, found in enumerate(broker.drain(twin)):
        yield {
            "topic": topic,
            "partition": number,
            "offset": place,
            "key": found.key.encode() if "key" in found.headers else None,
            "value": found.body,
            "visibility": "committed",
        }


def _output(broker: EmbeddedAmqp, output: str, queue: str) -> Iterator[dict[str, Any]]:
    for place, found in enumerate(broker.drain(queue)):
        text = _text(found.body)
        yield {
            "output": output,
            "op": "insert",
            "partition": 0,
            "offset": place,
            "key": found.key.encode() if "key" in found.headers else None,
            "content": text,
            "raw": found.body if text is None else None,
            "visibility": "committed",
        }


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _progress(drive: Drive, topic: str, number: int, queue: str) -> Iterator[dict[str, Any]]:
    """How far a queue was acknowledged without a gap: what is missing below that is lost."""
    done = 0
    acknowledged = drive.acknowledged()
    for message in drive.messages:
        if message.queue == queue:
            if message.number not in acknowledged:
                break
            done += 1
    yield {"query": "consumers", "batch": 0, "topic": topic, "partition": number, "end_offset": done}


def _summary(drive: Drive, crew: Crew, hidden: list[str]) -> dict[str, Any]:
    died = drive.died
    last_words = died.last_words if died is not None else None
    for secret in filter(None, hidden):
        last_words = last_words.replace(secret, "***") if last_words is not None else None
    return {
        "fed": any(move.kind == "publish" and move.message == len(drive.messages) for move in drive.moves),
        "drained": drive.drained,
        "drain_note": drive.note,
        "stuck": drive.stuck,
        "job": {
            "starts": 1 + crew.restarts,
            "exits": crew.exits,
            "died_before_fault": died is not None and not drive.any_fired,
            "given_up": False,
            "traceback": last_words,
        },
    }


def observe(scenario: Scenario, path: Path, directory: RunDir, timeline: Timeline) -> None:
    """Everything of a run of consumers that touches live services: the counterpart of a Spark job's."""
    timeline.emit("phase", name="fetch")
    fetched = components.ensure_amqp()
    with Owner() as owner:
        timeline.emit("phase", name="stack")
        timeline.emit("stack.starting", service="amqp")
        began = timeline.now()
        broker = EmbeddedAmqp.start(owner, directory.logs / "amqp.log", fetched)
        timeline.emit("stack.ready", service="amqp", seconds=round(timeline.now() - began, 3))
        directory.update(versions=broker.versions)
        play(scenario, path.resolve().parent, broker, owner, directory, timeline, prefix="")
        timeline.emit("phase", name="stop")
    directory.update(observed=True, seconds=round(timeline.now(), 3))
