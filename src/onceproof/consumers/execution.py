"""One play of a scenario with consumers on a broker that is up: its queues, its processes, its history."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onceproof.base.masking import masked_value
from onceproof.base.timeline import Timeline
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.contract import Broker, Queues
from onceproof.consumers.drive import Drive
from onceproof.consumers.gate import Gate
from onceproof.consumers.layout import Layout, Message
from onceproof.consumers.processes import Crew
from onceproof.data import Record, open_dataset
from onceproof.history.run_directory import RunDir
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import ConsumerFaultSpec, Scenario
from onceproof.scenario.templates import fill
from onceproof.stack.processes.owner import Owner
from onceproof.stack.spark_settings import inherited


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
    broker: Broker,
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
    layout = layouts.of_scenario(scenario, prefix)
    messages = [
        Message(number, layout.inputs[queue])
        for number, queue in enumerate(keys_to_queues(records, spec.partitions), start=1)
    ]
    queues = broker.lay_out(layout)
    scratch = owner.temporary_folder()
    gate = Gate(scratch / "gate")

    values = {"python": sys.executable, "here": str(here)}

    def environment(name: str, mark: str) -> Mapping[str, str]:
        return {
            **inherited(),
            "TMPDIR": str(scratch),
            **{name: os.environ[name] for name in scenario.pipeline.secrets},
            **{variable: fill(value, values) for variable, value in scenario.pipeline.env.items()},
            "ONCEPROOF_GATE": str(scratch / "gate"),
            "ONCEPROOF_CONSUMER": name,
            "ONCEPROOF_BROKER": consumers.broker,
            "ONCEPROOF_ACKNOWLEDGE": consumers.acknowledge,
            "ONCEPROOF_ON_REFUSAL": consumers.on_refusal,
            **queues.environment(name, mark),
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
    drive = Drive(
        consumers,
        messages,
        layout,
        crew,
        queues,
        records,
        timeline,
        [fault for fault in scenario.chaos if isinstance(fault, ConsumerFaultSpec)],
        timeline.now() + scenario.limits.deadline_s,
    )
    timeline.emit("phase", name="run")
    try:
        drive.play()
    finally:
        crew.stop()
    drive.faults.settle(drive.moves)
    timeline.emit("phase", name="collect")
    with HistoryWriter(directory.path) as writer:
        writer.append("sent", _sent(drive, layout))
        writer.append("faults", masked_value(drive.faults.rows()))
        for group in layout.groups():
            writer.append("progress", _progress(drive, layout, queues, group))
        outputs = queues.collect(writer, timeline)
    queues.remove()
    directory.update(outputs=dict(outputs), **_summary(drive, crew), seconds=round(timeline.now(), 3))


def _sent(drive: Drive, layout: Layout) -> Iterator[dict[str, Any]]:
    """The ledger: the broker answered for what was published, and a queue keeps the order in which it was told."""
    place = dict.fromkeys(layout.inputs, 0)
    published = {move.message for move in drive.moves if move.kind == "publish"}
    for message in drive.messages:
        if message.number in published:
            yield {
                "topic": layout.topic,
                "seq": message.number - 1,
                "status": "acked",
                "partition": layout.inputs.index(message.queue),
                "offset": place[message.queue],
            }
            place[message.queue] += 1


def _progress(drive: Drive, layout: Layout, queues: Queues, group: str) -> Iterator[dict[str, Any]]:
    """How far a queue was done without a gap, as the broker says or as it has answered: what is missing below that is lost."""
    said = queues.committed(group)
    acknowledged = drive.acknowledged(group)
    for number, queue in enumerate(layout.inputs):
        done = 0
        for message in drive.messages:
            if message.queue == queue:
                if message.number not in acknowledged:
                    break
                done += 1
        if said is not None:
            done = said[number]
        yield {"query": group, "batch": 0, "topic": layout.topic, "partition": number, "end_offset": done}


def _summary(drive: Drive, crew: Crew) -> dict[str, Any]:
    died = drive.died
    return {
        "fed": any(move.kind == "publish" and move.message == len(drive.messages) for move in drive.moves),
        "drained": drive.drained,
        "drain_note": drive.note,
        "stuck": drive.stuck,
        "job": {
            "starts": 1 + crew.restarts,
            "exits": crew.exits,
            "died_before_fault": died is not None and not drive.faults.any_fired,
            "given_up": False,
            "traceback": died.last_words if died is not None else None,
        },
    }


def observe(scenario: Scenario, path: Path, directory: RunDir, timeline: Timeline) -> None:
    """Everything of a run of consumers that touches live services: the counterpart of a Spark job's."""
    timeline.emit("phase", name="fetch")
    start = services.fetched(scenario)
    with Owner() as owner:
        timeline.emit("phase", name="stack")
        broker = start(owner, directory.path, timeline)
        directory.update(versions=dict(broker.versions))
        play(scenario, path.resolve().parent, broker, owner, directory, timeline, prefix="")
        timeline.emit("phase", name="stop")
    directory.update(observed=True, seconds=round(timeline.now(), 3))
