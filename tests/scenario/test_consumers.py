"""Scenarios of consumers that can never work: `validate` names the value and what to use instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.scenario.model import WORKER
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find

TEXT = resolved(find("amqp-redelivery-reorders"))


def refusal(tmp_path: Path, old: str, new: str) -> str:
    path = tmp_path / "amqp-redelivery-reorders.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("message: 3", "message: 6", "there is no message 6: they are numbered from 1 to 5"),
        ("holds: 4", "holds: 9", "there is no message 9: they are numbered from 1 to 5"),
        ("target: c2", "target: c3", r"there is no consumer 'c3'\n.*c2"),
        ("consumer: c1", "consumer: c2", r"there is no other consumer 'c2'\n.*others: c1"),
        ("{2: 2,", "{7: 2,", "there is no message 7: they are numbered from 1 to 5"),
        ("{2: 2,", "{two: 2,", "not a whole number"),
        ("names: [c1, c2]", "names: [c1, c1]", "consumer 'c1' occurs twice"),
        ("names: [c1, c2]", "names: [c1, c2, ../c3]", "the names of a queue and of a file are made from this name"),
        ("names: [c1, c2]", "names: [c1, c2]\n    queues: own", "queues: own needs one queue for each of 2 consumers, and the input has 1"),
        ("amqp: {}", "postgres: {}", r"need an AMQP broker.*\n.*add 'amqp: \{\}'"),
        ("amqp: {}", "amqp: {}, object_store: {}", r"the object store is for checkpoints, and consumers have none"),
        ("fault: crash", "fault: fence", r"unknown fault of consumers 'fence'\n.*crash"),
        ("{topic: processed,", "{table: processed,", r"a table, which consumers of broker amqp cannot write\n.*topic: QUEUE, or broker: kafka-group"),
        ("{topic: processed,", "{topic: processed, table: processed,", "and has table and topic"),
        ("outputs:\n", "outputs:\n  more: {topic: more, identity: [id]}\n", r"consumers of broker amqp write to one output, and there are 2\n.*broker: kafka-group"),
        ("{topic: processed,", "{", "and has none"),
        ("at: {message: 3", "at: {batch: 3, message: 3", "batch"),
        ("{topic: processed,", "{topic: orders,", "output 'processed' is the input topic 'orders'"),
        ("{topic: processed,", "{topic: 'orders#input',", "which holds the copies of input 'orders'"),
        ("pipeline:\n", "pipeline:\n  env: {WHERE: '{kafka}'}\n", r"template \{kafka\} has no value.*\n.*\{here\} or \{python\}"),
        ("pipeline:\n", "pipeline:\n  command: ['{python}', '{topic.orders}']\n", r"template \{topic.orders\} has no value"),
        ("at: {message: 3", "at: {message: 3, after: acknowledge", r"exercises nothing with acknowledge: after-effect.*message 3"),
    ],
)  # fmt: skip
def test_a_scenario_that_can_never_work_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert re.search(expected, refusal(tmp_path, old, new)), refusal(tmp_path, old, new)


def test_an_output_that_is_one_of_several_input_queues_is_refused(tmp_path: Path) -> None:
    new = "options: {keys: [a, b]}\n    partitions: 2\n    rows: 2"
    old = re.search(r"options:.*\n    partitions: 1", TEXT)
    assert old is not None
    text = TEXT.replace(old[0], new)
    for topic, expected in {"orders.1": "a queue of input 'orders'", "orders.0#input": "the copies of input"}.items():
        path = tmp_path / "amqp-redelivery-reorders.yaml"
        path.write_text(text.replace("{topic: processed,", f"{{topic: '{topic}',"))
        with pytest.raises(ScenarioError, match=expected):
            load(path)


def test_a_crash_after_the_last_step_is_refused_only_for_the_shipped_worker(tmp_path: Path) -> None:
    crash = "{message: 3, while: {consumer: c1, holds: 4}}"
    early = {crash: "{message: 3, after: effect}", "names: [c1, c2]": "names: [c1, c2]\n    acknowledge: before-effect"}
    text = TEXT
    for old, new in early.items():
        text = text.replace(old, new)
    path = tmp_path / "amqp-redelivery-reorders.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="a crash after effect exercises nothing with acknowledge: before-effect"):
        load(path)
    path.write_text(text.replace("pipeline:\n", 'pipeline:\n  command: ["{python}", -V]\n'))
    load(path)


def test_a_command_replaces_the_shipped_worker(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT.replace("pipeline:\n", 'pipeline:\n  command: ["{python}", -V]\n'))
    assert load(path).pipeline.command == ["{python}", "-V"]
    assert load(find("amqp-redelivery-reorders")).pipeline.command == WORKER


def test_the_plan_shows_the_position_of_the_crash() -> None:
    planned = plan(load(find("amqp-redelivery-reorders")))
    (fault,) = planned.faults
    assert (fault.batch, fault.point) == (None, "message 3 after take while c1 holds message 4")
    assert fault.placement.exactness == "exact" and planned.stack == ("an AMQP 0-9-1 broker (Qpid Broker-J)",)


def refusal_of(tmp_path: Path, name: str, old: str, new: str) -> str:
    text = resolved(find(name))
    assert old in text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("kafka-partition-per-key", "    restart_after: 10\n", "", r"its partitions wait for it.*\n.*restart_after: TICKS"),
        ("share-group-redelivery-reorders", "names:", "acknowledge: with-effect\n    names:", "cannot be part of a transaction"),
        ("share-group-redelivery-reorders", "names:", "queues: own\n    names:", "members of a share group take from all"),
        ("share-group-redelivery-reorders", "partitions: 1", "partitions: 2", r"the share group, not the schedule, would decide.*\n.*partitions: 1"),
        ("share-group-redelivery-reorders", "share-group\n", "sharing\n", r"unknown broker 'sharing'\n.*'share-group'"),
        ("retry-topic-reorders", "    on_refusal: retry-topic\n", "", "on_refusal: retry-topic and retry must be used together"),
        ("retry-topic-reorders", "consumer: retrier", "consumer: nobody", r"no other consumer 'nobody'.*\n.*c1, retrier"),
        ("retry-topic-reorders", "topic: orders-retry", "topic: orders", "'orders' is already the input or an output"),
        ("retry-topic-reorders", "kafka-group", "share-group", "not supported for share groups yet"),
        ("retry-topic-reorders", "names:", "acknowledge: with-effect\n    names:", "cannot be part of the transaction"),
        ("retry-topic-reorders", "{message: 3}", "{message: 3, after: effect}", r"nothing is left to refuse\n.*use take"),
        ("retry-stops-the-partition", "input:", "stack: {kafka: {brokers: 3}}\ninput:", r"with several brokers.*\n.*brokers: 1"),
        ("retry-stops-the-partition", "names:", "acknowledge: with-effect, names:", "ends its transaction"),
        ("retry-stops-the-partition", "{message: 3}", "{message: 9}", "there is no message 9: they are numbered from 1 to 5"),
        ("fan-out", "billing: [biller],", "", "consumer 'biller' is in 0 groups"),
        ("fan-out", "audit: [auditor]", "audit: [auditer]", r"there is no consumer 'auditer'\n.*auditor"),
        ("fan-out", ", query: audit}", "}", r"output 'audited' has no group.*\n.*billing, shipping, audit"),
        ("fan-out", "query: audit}", "query: billing}", "group 'audit' has 1 consumers and 0 outputs"),
        ("fan-out", "kafka-group", "amqp", "groups that each read the whole input need a log"),
    ],
)  # fmt: skip
def test_a_scenario_on_kafka_that_can_never_work_is_refused(
    tmp_path: Path, name: str, old: str, new: str, expected: str
) -> None:
    message = refusal_of(tmp_path, name, old, new)
    assert re.search(expected, message), message


def test_the_plan_of_consumers_on_kafka_names_their_stack() -> None:
    assert plan(load(find("fan-out"))).stack == ("Kafka, 1 node", "Toxiproxy in front of every client listener")


@pytest.mark.parametrize(
    ("naive", "remedy", "differs"),
    [
        ("share-group-redelivery-reorders", "kafka-partition-per-key", {"broker": "kafka-group"}),
        (
            "retry-topic-reorders",
            "retry-stops-the-partition",
            {"names": ["c1"], "on_refusal": "again", "retry": None},
        ),
    ],
)
def test_a_remedy_differs_from_its_naive_twin_only_in_the_named_settings(
    naive: str, remedy: str, differs: dict[str, object]
) -> None:
    one, other = load(find(naive)), load(find(remedy))
    assert (one.chaos, one.claim, one.oracle, one.outputs) == (other.chaos, other.claim, other.oracle, other.outputs)
    assert one.pipeline.consumers is not None and other.pipeline.consumers is not None
    assert one.pipeline.consumers.model_copy(update=differs) == other.pipeline.consumers


def test_only_a_command_of_ones_own_writes_to_several_outputs(tmp_path: Path) -> None:
    text = resolved(find("dual-write-outbox"))
    path = tmp_path / "dual-write-outbox.yaml"
    path.write_text(text)
    assert load(path).outputs.keys() == {"orders", "placed"}
    path.write_text(re.sub(r"(?m)^  (command|args):.*\n(    .*\n|  - .*\n)*", "", text))
    with pytest.raises(ScenarioError, match=r"onceproof writes to one output, and there are 2\n.*command of your own"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("stack: {postgres: {}}\n", "", r"output table 'processed' needs Postgres.*\n.*add 'postgres: \{\}'"),
        ("  prepare: {", "  env: {", r"nothing creates table 'processed' before.*\n.*CREATE TABLE under pipeline: prepare: sql"),
        ("fault: crash", "fault: lost-ack", "keep their positions in Postgres and send no acknowledgement"),
    ],
)  # fmt: skip
def test_an_output_table_without_what_it_needs_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = resolved(find("position-with-row"))
    assert old in text
    path = tmp_path / "position-with-row.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


@pytest.mark.parametrize("queue", ["a/b", "a,b", "amq.orders", "", " a", "x" * 201, "\u202e"])
def test_an_invalid_queue_name_is_refused(tmp_path: Path, queue: str) -> None:
    expected = "cannot be the name of a queue\n    a queue's name has at most 200 bytes of printable characters other than '/' and ','"
    assert expected in refusal(tmp_path, "topic: processed", f'topic: "{queue}"')
    assert expected in refusal(tmp_path, "topic: orders", f'topic: "{queue}"')
