"""Consumers on a real Kafka: groups, share groups and a retry topic beyond their shipped schedules, on one broker."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.contract import Broker
from onceproof.consumers.brokers.kafka import GroupQueues, KafkaBroker
from onceproof.consumers.brokers.share import ShareQueues
from onceproof.explore.replay import execute_once
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.shipped import find
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.groups import delete_group, describe_group, has_coordinator
from onceproof.stack.processes.owner import Owner

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

#: The names of an execution's topics, queues and groups begin with its number; the broker of this module keeps the old ones.
NUMBERS = count(1)
OWN = Path(__file__).parent.parent / "scenarios" / "jobs" / "own_kafka_consumer.py"
Execute = Callable[..., tuple[Verdict, list[int], RunDir]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    folder = tmp_path_factory.mktemp("kafka")
    (folder / "logs").mkdir()
    with Owner() as owner:
        start = services.fetched(load(find("kafka-partition-per-key")))
        broker = start(owner, folder, Timeline(folder / "events.jsonl"))
        assert isinstance(broker, KafkaBroker)
        yield broker


@pytest.fixture
def execute(kafka: KafkaBroker, tmp_path: Path) -> Execute:
    """``execute(name, changes)``: executes and judges that scenario with other text in it; the ids that came out, in order."""

    def once(
        name: str, changes: Mapping[str, str] = MappingProxyType({}), chaos: bool = True
    ) -> tuple[Verdict, list[int], RunDir]:
        text = resolved(find(name))
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        scenario = load(path) if chaos else load(path).model_copy(update={"chaos": []})
        assert scenario.pipeline.consumers is not None
        queues = GroupQueues if scenario.pipeline.consumers.broker == "kafka-group" else ShareQueues
        broker: Broker = KafkaBroker(kafka.stack, queues)
        directory = RunDir.below(tmp_path / "run")
        execute_once(scenario, tmp_path, lambda *_: broker, directory, number=next(NUMBERS))
        rows = pq.read_table(directory.path / "history" / "output.parquet").to_pylist()
        return judge(directory.path), [json.loads(row["content"])["id"] for row in rows], directory

    return once


def test_a_coordinator_that_is_stopped_is_asked_again_until_it_answers(kafka: KafkaBroker) -> None:
    cluster = kafka.stack.kafka
    service = cluster.nodes[1].service
    thawing = threading.Timer(3.0, service.thaw)
    service.freeze()
    try:
        assert not has_coordinator(cluster, "nobody")
        thawing.start()
        assert describe_group(cluster, "nobody", within_s=60) == []
    finally:
        thawing.cancel()
        service.thaw()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_members_of_a_group_are_reported_and_a_group_without_members_is_deleted(
    kafka: KafkaBroker, protocol: str
) -> None:
    cluster = kafka.stack.kafka
    topic = group = f"of-{protocol}"
    cluster.create_topic(topic, 2)
    settings = {
        **client_config(cluster.harness_bootstrap),
        "group.id": group,
        "client.id": "c",
        "group.protocol": protocol,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        wait_until("its partitions", lambda: consumer.poll(0.1) or len(consumer.assignment()) == 2, deadline_s=60)
        (member,) = describe_group(cluster, group, within_s=30)
        assert (member.client_id, member.instance_id) == ("c", None)
        assert sorted(member.partitions) == [(topic, 0), (topic, 1)]
        with pytest.raises(EnvironmentProblem, match=r"refuses a request about group .*: Broker: "):
            delete_group(cluster, group, within_s=30)
    wait_until("it to leave", lambda: not describe_group(cluster, group, within_s=30), deadline_s=60)
    for _ in range(2):  # the second time there is none
        delete_group(cluster, group, within_s=30)


@pytest.mark.parametrize("name", ["share-group-redelivery-reorders", "retry-topic-reorders", "slow-member-duplicates"])
def test_without_its_fault_the_same_schedule_is_in_order(execute: Execute, name: str) -> None:
    """Otherwise the different speeds of the consumers, and not the redelivery, would explain the reordering."""
    verdict, ids, _ = execute(name, chaos=False)
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert ids == [1, 2, 3, 4, 5]


def test_a_message_released_in_a_share_group_comes_after_its_successor(execute: Execute) -> None:
    """The consumer lives and gives back a message that it cannot process, while another consumer has the next one."""
    crash = re.search(r"  - \{fault: crash.*\n", resolved(find("share-group-redelivery-reorders")))
    assert crash is not None
    changes = {
        crash[0]: "  - {fault: reject, target: c2, at: {message: 3, while: {consumer: c1, holds: 4}}}\n",
        "restart_after: 10": "on_refusal: release",
    }
    verdict, ids, directory = execute("share-group-redelivery-reorders", changes)
    assert verdict.anomalies() == {"reordered": 1} and sorted(ids) == [1, 2, 3, 4, 5]
    assert verdict.faults[0].hit, verdict.faults
    takes = [json.loads(line) for line in directory.events.read_text().splitlines() if '"consumers.take"' in line]
    assert [(take["message"], take["redelivered"]) for take in takes if take["message"] == 3] == [(3, False), (3, True)]


#: A topic has an order, and the stack of this module has no Postgres.
TOPIC = {"{table: processed,": "{topic: processed,"}


@pytest.mark.parametrize(
    ("name", "changes", "answer"),
    [
        ("share-group-lock-timeout-duplicates", {**TOPIC, "{2: 4}": "{2: 4, 3: 3}"}, "refused its late"),
        ("share-group-lock-timeout-duplicates", TOPIC, "without an error"),
        ("slow-member-duplicates", {"static: false": "static: false, slow: {3: 3}"}, "refused its late"),
    ],
)
def test_a_late_acknowledgement_is_refused_while_another_consumer_has_the_message(
    execute: Execute, name: str, changes: dict[str, str], answer: str
) -> None:
    """In a share group only then: once the other is done, a late acknowledgement is answered without an error."""
    verdict, ids, _ = execute(name, changes)
    assert verdict.anomalies() == {"duplicate": 1} and ids[:4] == [1, 2, 3, 3], (ids, verdict.reasons)
    (fault,) = verdict.faults
    assert fault.hit and answer in fault.evidence[-1], fault.evidence


def test_a_lock_that_ends_while_another_consumer_has_the_next_message_reorders_too(execute: Execute) -> None:
    """A worker that is only slow: no consumer died, and two have the message."""
    changes = {**TOPIC, "{2: 4}": "{2: 4, 3: 5, 4: 2}", "{message: 3}": "{message: 3, while: {consumer: c1, holds: 4}}"}
    verdict, ids, _ = execute("share-group-lock-timeout-duplicates", {**changes, "order: none": "order: per-partition"})
    assert verdict.anomalies() == {"duplicate": 1, "reordered": 1}, verdict.reasons
    assert ids == [1, 2, 4, 3, 3] and verdict.faults[0].hit, verdict.faults


def test_a_slow_consumer_that_commits_first_is_refused_its_offset(execute: Execute) -> None:
    before = {"static: false": "static: false, acknowledge: before-effect"}
    verdict, ids, _ = execute("slow-member-duplicates", before)
    assert verdict.outcome is Outcome.HELD and verdict.faults[0].hit, verdict.reasons
    assert sorted(ids) == [1, 2, 3, 4, 5], "the slow consumer had no effect: another one processed the message"


def test_a_users_own_consumer_can_be_slow(execute: Execute) -> None:
    command = f'pipeline:\n  command: ["{{python}}", "{OWN}"]'
    verdict, ids, _ = execute("slow-member-duplicates", {"pipeline:": command})
    assert verdict.anomalies() == {"duplicate": 1} and verdict.faults[0].hit, verdict.reasons
    assert ids.count(3) == 2


def test_repeated_refusals_hold_up_only_their_own_partition(execute: Execute) -> None:
    changes = {"at: {message: 3}}": "at: {message: 3}, times: 3}", "partitions: 1": "partitions: 2"}
    keys = {"[order-1, order-1, order-1, order-1, order-1]": "[order-1, order-2, order-1, order-2, order-1]"}
    names = {"names: [c1]": "names: [c1, c2]"}
    verdict, ids, _ = execute("retry-stops-the-partition", {**changes, **keys, **names})
    assert verdict.outcome is Outcome.HELD and verdict.faults[0].hit, verdict.reasons
    assert ids.index(4) < ids.index(3), "m4 is in the other partition and did not wait"


def test_progress_is_the_offset_that_the_group_has_committed(execute: Execute) -> None:
    """c2 acknowledges m3 first and dies: the group counts it as done, and its effect does not exist."""
    at = {"{message: 3, while: {consumer: c1, holds: 4}}": "{message: 3, after: acknowledge}"}
    verdict, ids, directory = execute(
        "kafka-partition-per-key", {**at, "names:": "acknowledge: before-effect\n    names:"}
    )
    assert verdict.anomalies() == {"lost-write": 1} and 3 not in ids
    rows = pq.read_table(directory.path / "history" / "progress.parquet").to_pylist()
    assert sorted((row["topic"], row["partition"], row["end_offset"]) for row in rows) == [
        ("orders", 0, 4),
        ("orders", 1, 1),
    ]


def test_a_users_own_consumer_is_a_member_of_the_group(execute: Execute) -> None:
    command = f'pipeline:\n  command: ["{{python}}", "{OWN}"]'
    verdict, ids, _ = execute("kafka-partition-per-key", {"pipeline:": command})
    assert verdict.outcome is Outcome.HELD and verdict.faults[0].hit, verdict.reasons
    assert sorted(ids) == [1, 2, 3, 4, 5]


def test_a_consumer_that_ends_before_it_joins_is_named_and_not_the_one_that_is_awaited(execute: Execute) -> None:
    code = f"import os, runpy; os.environ['ONCEPROOF_CONSUMER'] == 'c2' and exit(3); runpy.run_path('{OWN}')"
    changes = {"pipeline:": f"pipeline:\n  command: {json.dumps(['{python}', '-c', code])}"}
    verdict, ids, _ = execute("kafka-partition-per-key", changes)
    assert verdict.outcome is Outcome.INCONCLUSIVE and ids == [], verdict.reasons
    assert "c2 ended with exit code 3 before its first step" in str(verdict.reasons)
