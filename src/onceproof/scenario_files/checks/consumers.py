"""Checks the values of a scenario of consumers against each other."""

from __future__ import annotations

from collections.abc import Iterator

from onceproof import data
from onceproof.base.registry import suggest
from onceproof.consumers.routes import Kills, OutlastsItsBroker
from onceproof.faults.contract import fault_of
from onceproof.scenario import templates
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import WORKER, ConsumerFaultSpec, Scenario, consumers_of
from onceproof.scenario.problem import Complaint, Loc
from onceproof.scenario.queues import input_queues, twin
from onceproof.scenario_files.checks.names import is_topic
from onceproof.stores.contract import store_of

#: The templates that have a value in a run of consumers.
_TEMPLATES = ("here", "python")


def complaints(scenario: Scenario) -> list[Complaint]:
    """What can be wrong only with consumers. `onceproof.scenario_files.checks.crosscheck` has the checks of every kind."""
    spec = consumers_of(scenario)
    return [
        *_stack(scenario, spec),
        *_lengths(scenario, spec),
        *_outputs(scenario, spec),
        *_templates(scenario),
        *_names_and_queues(scenario, spec),
        *_groups(scenario, spec),
        *_takeover(scenario, spec),
        *_refusals(scenario, spec),
        *_dead_letters(scenario, spec),
        *_faults(scenario, spec),
    ]


def _stack(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    if spec.broker == "amqp" and scenario.stack.amqp is None:
        yield Complaint(
            ("pipeline", "consumers"),
            "consumers need an AMQP broker, and the stack has none",
            "add 'amqp: {}' under stack",
        )
    if scenario.stack.object_store is not None:
        message = "the object store is for checkpoints, and consumers have none"
        yield Complaint(("stack", "object_store"), message, "remove it", at_key=True)
    if len(scenario.input) > 1:
        message = f"consumers can take from only one input so far, and there are {len(scenario.input)}"
        yield Complaint(("input", 1), message, "for several queues, set the partitions of one input")
    letters = None if spec.dead_letter is None else spec.dead_letter.topic
    written = [output for output in scenario.outputs.values() if letters is None or output.topic != letters]
    if len(written) > 1 and not spec.groups and spec.broker == "amqp":
        message = f"consumers of broker amqp write to one output, and there are {len(written)}"
        yield Complaint(("outputs",), message, "keep one, or use broker: kafka-group", at_key=True)
    elif len(written) > 1 and not spec.groups and scenario.pipeline.command == WORKER:
        message = f"the consumer of onceproof writes to one output, and there are {len(written)}"
        hint = "keep one, give each a consumer group of its own, or name a command of your own"
        yield Complaint(("outputs",), message, hint, at_key=True)
    for name, output in scenario.outputs.items():
        if output.topic is None and output.table is None:
            message = f"output {name!r} is {store_of(output).about}, which consumers cannot write"
            yield Complaint(("outputs", name), message, "name a topic or a table", at_key=True)
            continue
        if output.table is not None and spec.broker == "amqp":
            message = f"output {name!r} is a table, which consumers of broker {spec.broker} cannot write"
            yield Complaint(("outputs", name, "table"), message, "use topic: QUEUE, or broker: kafka-group")
        if output.table is not None and scenario.stack.postgres is None:
            message = f"output table {output.table!r} needs Postgres, and the stack has none"
            yield Complaint(("outputs", name, "table"), message, "add 'postgres: {}' under stack")
        if output.table is not None and not scenario.pipeline.prepare.sql.strip():
            message = f"nothing creates table {output.table!r} before the consumers start"
            yield Complaint(("outputs", name, "table"), message, "put its CREATE TABLE under pipeline: prepare: sql")


def _lengths(scenario: Scenario, consumers: ConsumersSpec) -> Iterator[Complaint]:
    for index, spec in enumerate(scenario.input):
        fits = all(map(is_topic, input_queues(spec, consumers.broker)))
        if consumers.broker != "amqp" and is_topic(spec.topic) and not fits:
            yield Complaint(
                ("input", index, "topic"), f"{spec.topic!r} is too long once a partition's number is appended"
            )


def _outputs(scenario: Scenario, consumers: ConsumersSpec) -> Iterator[Complaint]:
    """An output must not be a queue of the input: effects would come back as messages."""
    for name, output in scenario.outputs.items():
        for spec in scenario.input:
            queues = input_queues(spec, consumers.broker)
            if output.topic == spec.topic:
                message = f"output {name!r} is the input topic {spec.topic!r}"
            elif output.topic in queues:
                message = f"output {name!r} is {output.topic!r}, a queue of input {spec.topic!r}"
            elif output.topic in [twin(queue) for queue in queues]:
                message = f"output {name!r} is {output.topic!r}, which holds the copies of input {spec.topic!r}"
            else:
                continue
            yield Complaint(("outputs", name, "topic"), message, "give the output a queue of its own")


def _templates(scenario: Scenario) -> Iterator[Complaint]:
    for loc, text in scenario.pipeline.texts():
        for misspelt, near in templates.misspelt(text):
            yield Complaint(loc, f"unknown template {{{misspelt}}}", near)
        for template in sorted(templates.used(text) - set(_TEMPLATES)):
            message = f"template {{{template}}} has no value in a run of consumers"
            hint = "use {here} or {python}; the variables ONCEPROOF_* hold the broker's address and the queues"
            yield Complaint(loc, message, hint)


def _names_and_queues(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    for index, name in enumerate(spec.names):
        if name in spec.names[:index]:
            yield Complaint(("pipeline", "consumers", "names", index), f"consumer {name!r} occurs twice")
        if not name.replace("-", "").replace("_", "").isalnum():
            message = f"consumer {name!r}: the names of a queue and of a file are made from this name"
            yield Complaint(("pipeline", "consumers", "names", index), message, "use only letters, digits, - and _")
    queues = scenario.input[0].partitions
    takers = len(spec.names) - (spec.retry is not None)
    if spec.queues == "own" and queues != takers:
        message = f"queues: own needs one queue for each of {takers} consumers, and the input has {queues}"
        yield Complaint(("pipeline", "consumers", "queues"), message, f"set input: partitions: {takers}")
    rows = rows_of(scenario)
    for number in spec.slow:
        if number > rows:
            message = f"there is no message {number}: they are numbered from 1 to {rows}"
            yield Complaint(("pipeline", "consumers", "slow", number), message)


def _groups(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    here: Loc = ("pipeline", "consumers")
    if spec.broker == "share-group" and spec.acknowledge == "with-effect":
        message = (
            "an acknowledgement to a share group cannot be part of a transaction (Kafka does not have KIP-1289 yet)"
        )
        yield Complaint((*here, "acknowledge"), message, "use after-effect or before-effect")
    if spec.broker == "share-group" and spec.queues == "own":
        message = "members of a share group take from all partitions"
        yield Complaint((*here, "queues"), message, "use queues: shared, or broker: kafka-group")
    if spec.broker == "share-group" and scenario.input[0].partitions > 1:
        message = "the share group, not the schedule, would decide which member takes from which of several partitions"
        yield Complaint(("input", 0, "partitions"), message, "use partitions: 1")
    if not spec.groups:
        return
    if spec.broker == "amqp":
        message = "groups that each read the whole input need a log: a queue gives each message to one consumer only"
        yield Complaint((*here, "groups"), message, "use broker: kafka-group or share-group", at_key=True)
    members = [name for names in spec.groups.values() for name in names]
    for name in spec.names:
        if members.count(name) != 1:
            message = f"consumer {name!r} is in {members.count(name)} groups"
            yield Complaint((*here, "groups"), message, "put it into exactly one", at_key=True)
    for group, names in spec.groups.items():
        for index, name in enumerate(names):
            if name not in spec.names:
                message = f"there is no consumer {name!r}"
                yield Complaint((*here, "groups", group, index), message, suggest(name, spec.names))
        count = sum(output.query == group for output in scenario.outputs.values())
        if count != 1 or not names:
            message = f"group {group!r} has {len(names)} consumers and {count} outputs"
            yield Complaint(
                (*here, "groups", group), message, f"give it consumers and one output with 'query: {group}'"
            )
    for name, output in scenario.outputs.items():
        if output.query not in spec.groups:
            message = f"output {name!r} has no group: its query is {output.query!r}"
            yield Complaint(("outputs", name), message, f"query: one of {', '.join(spec.groups)}", at_key=True)


def _takeover(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    """Members that are not static: one that is slower than the group waits loses its partitions to the others."""
    here: Loc = ("pipeline", "consumers", "static")
    if spec.static:
        return
    if spec.broker != "kafka-group":
        message = f"static applies to members of a consumer group, and these consumers use broker {spec.broker}"
        yield Complaint(here, message, "leave it out, or use broker: kafka-group")
    for index, fault in enumerate(scenario.chaos):
        if not issubclass(fault_of(fault), OutlastsItsBroker | Kills):
            message = f"{fault.fault} is not supported yet for members that are not static"
            yield Complaint(("chaos", index, "fault"), message, "use slow or crash, or leave out static: false")
    if spec.groups or spec.retry is not None or spec.on_refusal == "release":
        message = "static: false is supported only for one consumer group whose members all take from the input"
        yield Complaint(here, message, "leave out static: false, or groups, retry and release")
    if spec.acknowledge == "with-effect" and any(output.table is not None for output in scenario.outputs.values()):
        message = "positions in Postgres do not follow the group when it reassigns partitions"
        yield Complaint(here, message, "use a topic as output, or static members")


def _refusals(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    """Retry topics: where a message goes whose effect was refused."""
    here: Loc = ("pipeline", "consumers")
    if (spec.on_refusal == "retry-topic") != (spec.retry is not None):
        message = "on_refusal: retry-topic and retry must be used together"
        yield Complaint(here, message, "retry: {topic: NAME, consumer: NAME, after: TICKS}", at_key=True)
    if spec.retry is None:
        return
    taken = [scenario.input[0].topic, *(str(output.topic) for output in scenario.outputs.values())]
    if spec.retry.topic in [*taken, *input_queues(scenario.input[0], spec.broker)]:
        message = f"the retry topic {spec.retry.topic!r} is already the input or an output"
        yield Complaint((*here, "retry", "topic"), message, "give it another name")
    if spec.retry.consumer not in spec.names or len(spec.names) == 1:
        message = f"there is no other consumer {spec.retry.consumer!r} to take only from the retry topic"
        yield Complaint((*here, "retry", "consumer"), message, f"others: {', '.join(spec.names)}")
    if spec.acknowledge == "with-effect" and spec.broker == "kafka-group":
        message = "a retry topic cannot be part of the transaction of effect and acknowledgement"
        yield Complaint((*here, "acknowledge"), message, "use after-effect or before-effect")
    if spec.groups or spec.broker == "share-group":
        message = f"a retry topic is not supported for {'several groups' if spec.groups else 'share groups'} yet"
        yield Complaint((*here, "retry"), message, "use one consumer group", at_key=True)


def _dead_letters(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    """The topic for messages that the output refuses, and what a consumer does at a gap of the log."""
    here: Loc = ("pipeline", "consumers")
    if (spec.on_refusal == "dead-letter") != (spec.dead_letter is not None):
        message = "on_refusal: dead-letter and dead_letter must be used together"
        yield Complaint(here, message, "dead_letter: {topic: NAME}", at_key=True)
    if spec.offset_reset == "error" and (spec.broker != "kafka-group" or not spec.static):
        message = "offset_reset: error applies to static members of a consumer group"
        yield Complaint((*here, "offset_reset"), message, "leave it out, or use broker: kafka-group")
    if spec.on_refusal in ("skip", "dead-letter") and spec.acknowledge == "with-effect":
        message = "a refused effect ends its transaction, and the shipped consumer does not continue after that"
        yield Complaint((*here, "acknowledge"), message, "use after-effect")
    if spec.dead_letter is None:
        return
    letters = [name for name, output in scenario.outputs.items() if output.topic == spec.dead_letter.topic]
    if len(letters) != 1 or len(scenario.outputs) < 2:
        message = f"{len(letters)} outputs are the topic {spec.dead_letter.topic!r}, and one must be, next to the output itself"
        hint = f"outputs: dead_letters: {{topic: {spec.dead_letter.topic}, identity: [partition, offset]}}"
        yield Complaint((*here, "dead_letter", "topic"), message, hint)
    if spec.broker != "kafka-group" or spec.groups:
        message = "a topic for dead letters is supported only for one consumer group so far"
        yield Complaint((*here, "dead_letter"), message, "use broker: kafka-group, and no groups", at_key=True)


def _faults(scenario: Scenario, spec: ConsumersSpec) -> Iterator[Complaint]:
    rows = rows_of(scenario)
    for index, fault in enumerate(scenario.faults(ConsumerFaultSpec)):
        loc = ("chaos", index)
        if fault.target not in spec.names:
            message = f"there is no consumer {fault.target!r}"
            yield Complaint((*loc, "target"), message, suggest(fault.target, spec.names))
        if fault.at.message > rows:
            message = f"there is no message {fault.at.message}: they are numbered from 1 to {rows}"
            yield Complaint((*loc, "at", "message"), message)
        if (other := fault.at.while_) is not None:
            if other.consumer not in spec.names or other.consumer == fault.target:
                message = f"there is no other consumer {other.consumer!r}"
                rest = [name for name in spec.names if name != fault.target]
                yield Complaint((*loc, "at", "while", "consumer"), message, f"others: {', '.join(rest) or 'none'}")
            if other.holds > rows:
                message = f"there is no message {other.holds}: they are numbered from 1 to {rows}"
                yield Complaint((*loc, "at", "while", "holds"), message)


def rows_of(scenario: Scenario) -> int:
    """How many messages there will be."""
    return data.rows_of(scenario.input[0], scenario.seed)
