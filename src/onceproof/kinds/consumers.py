"""The kind ``consumers``: processes that take messages, write effects and acknowledge, on a clock of ticks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers import services as brokers
from onceproof.consumers.brokers.contract import Broker, KeepsLog, Queues
from onceproof.consumers.executor import ScheduleExecutor
from onceproof.consumers.gate import Gate
from onceproof.consumers.hints import ShrinkHints
from onceproof.consumers.layout import Layout
from onceproof.consumers.processes import ConsumerProcesses
from onceproof.consumers.schedule import ConsumerSchedule, WholeConsumers, records_of
from onceproof.history.execution import Execution
from onceproof.history.writer import HistoryWriter
from onceproof.kinds.contract import Start, pipelines, stack_services
from onceproof.scenario.model import ConsumerFaultSpec, Scenario, consumers_of
from onceproof.scenario.schedule import ShrinkHint
from onceproof.scenario.templates import fill
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.processes.owner import Owner
from onceproof.stack.sharing.shared import SharedStack
from onceproof.stack.spark_settings import inherited


@pipelines.register("consumers")
class Consumers:
    """Processes that take messages from a broker.

    The schedule decides which consumer takes what when, whatever the machine's load.
    """

    fault_label: ClassVar[str] = " (consumer)"
    micro_batches: ClassVar[bool] = False
    has_picture: ClassVar[bool] = True
    runs_oracle_code: ClassVar[bool] = False
    repeats_exactly: ClassVar[bool] = True
    shares_services: ClassVar[bool] = True

    def services(self, scenario: Scenario) -> tuple[str, ...]:
        if not scenario.pipeline.on_queues:
            return stack_services(scenario.stack)
        installed = scenario.stack.amqp is not None and scenario.stack.amqp.broker == "rabbitmq"
        return (f"an AMQP 0-9-1 broker ({'RabbitMQ, as installed' if installed else 'Qpid Broker-J'})",)

    def whole(self, scenario: Scenario) -> WholeConsumers:
        return WholeConsumers(scenario)

    def hinted_schedules(
        self, whole: WholeConsumers, run_dir: Path, hints: Sequence[Sequence[ShrinkHint]]
    ) -> Iterator[ConsumerSchedule]:
        return ShrinkHints.of_run(run_dir, whole.schedule, hints).schedules()

    def fetch(
        self,
        scenario: Scenario,
        *,
        survey: bool = False,
        profile: StackProfile | None = None,
        shared: SharedStack | None = None,
    ) -> Start:
        assert profile is None, "validated: consumers need services of their own"
        return brokers.fetched(scenario)

    def prepare(self, execution: Execution, services: Broker, owner: Owner, writer: HistoryWriter) -> ConsumerPipeline:
        return ConsumerPipeline(execution, services, owner, writer)


class ConsumerPipeline:
    """Implements `onceproof.kinds.contract.PreparedPipeline`."""

    def __init__(self, execution: Execution, broker: Broker, owner: Owner, writer: HistoryWriter) -> None:
        scenario = execution.scenario
        spec, consumers = scenario.input[0], consumers_of(scenario)
        self._execution = execution
        self._writer = writer
        records = records_of(scenario)
        self._layout = layout = layouts.of_scenario(scenario, execution.prefix)
        messages = layout.messages(records, spec.partitions)
        self._queues = queues = broker.lay_out(layout)
        scratch = owner.temporary_folder()
        values = {"python": sys.executable, "here": str(execution.here)}

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

        self._processes = ConsumerProcesses(
            [fill(word, values) for word in scenario.pipeline.command],
            environment,
            owner=owner,
            gate=Gate(scratch / "gate"),
            logs=execution.directory.logs,
            cwd=scratch,
            prefix=execution.prefix,
            check=broker.check,
        )
        self._executor = ScheduleExecutor(
            consumers,
            messages,
            layout,
            self._processes,
            queues,
            records,
            execution.timeline,
            scenario.faults(ConsumerFaultSpec),
            execution.timeline.now() + scenario.limits.deadline_s,
        )

    @contextmanager
    def start(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._processes.stop()

    def drive(self) -> None:
        self._executor.execute()

    def heal(self) -> None:
        self._executor.faults.heal_all()

    def collect(self) -> None:
        executor, layout, writer = self._executor, self._layout, self._writer
        executor.faults.check()
        executor.faults.settle()
        self._execution.phase("collect")
        writer.append("sent", _sent(executor, layout, self._queues))
        writer.append("faults", executor.faults.rows())
        for group in layout.groups():
            writer.append("progress", _progress(executor, layout, self._queues, group))
        outputs = self._queues.collect(writer, self._execution.timeline)
        self._queues.remove()
        self._execution.directory.update(
            outputs=dict(outputs), **_summary(executor, self._processes), seconds=self._execution.seconds()
        )


def _sent(executor: ScheduleExecutor, layout: Layout, queues: Queues) -> Iterator[dict[str, Any]]:
    """The ledger: the broker confirmed each published message, a log with its offset; a queue keeps the order of publishing."""
    place = dict.fromkeys(layout.inputs, 0)
    published = {event.message for event in executor.trace if event.kind == "publish"}
    offsets = queues.offsets if isinstance(queues, KeepsLog) else {}
    for message in executor.messages:
        if message.number in published:
            yield {
                "topic": layout.topic,
                "seq": message.number - 1,
                "status": "acked",
                "partition": layout.inputs.index(message.queue),
                "offset": offsets.get(message.number, place[message.queue]),
            }
            place[message.queue] += 1


def _progress(executor: ScheduleExecutor, layout: Layout, queues: Queues, group: str) -> Iterator[dict[str, Any]]:
    """How far each queue was done without a gap, by the broker's own count or by its answers: what is missing below is lost."""
    committed = queues.committed(group)
    acknowledged = executor.acknowledged(group)
    for number, queue in enumerate(layout.inputs):
        done = 0
        for message in executor.messages:
            if message.queue == queue:
                if message.number not in acknowledged:
                    break
                done += 1
        if committed is not None:
            done = committed.get(number, 0)  # 0: the partition was to be added, and was not
        yield {"query": group, "batch": 0, "topic": layout.topic, "partition": number, "end_offset": done}


def _summary(executor: ScheduleExecutor, processes: ConsumerProcesses) -> dict[str, Any]:
    died = executor.died
    return {
        "fed": any(event.kind == "publish" and event.message == len(executor.messages) for event in executor.trace),
        "drained": executor.drained,
        "drain_note": executor.note,
        "stuck": executor.stuck,
        "job": {
            "starts": 1 + processes.restarts,
            "exits": processes.exits,
            "died_before_fault": died is not None and not executor.faults.any_fired,
            "given_up": False,
            "traceback": died.last_words if died is not None else None,
        },
    }
