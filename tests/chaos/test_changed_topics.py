"""Topics that are created again or given partitions, and late answers: when each is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.add_partitions import AddPartitions, AddPartitionsSpec
from onceproof.chaos.consumers.latency import Latency, LatencySpec
from onceproof.chaos.consumers.recreate_topic import RecreateTopic, RecreateTopicSpec
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers.contract import Recreated
from onceproof.consumers.brokers.numbered_on import NumberedOn
from onceproof.consumers.faults import StepDone
from onceproof.consumers.schedule import records_of
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.faults.contract import Proof
from onceproof.history.schema import TABLES
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find

SKIPS, UNREAD, MOVES, LATE = (
    "recreated-topic-skips",
    "added-partition-unread",
    "added-partition-moves-keys",
    "late-answer-duplicates",
)


def event(kind: Kind, message: int, tick: int = 0, *, of: str = "c1", queue: str = "orders") -> TraceEvent:
    return TraceEvent(kind, tick, 0.0, of, message, queue)


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (SKIPS, "after: acknowledge", "after: effect", r"once c1 has acknowledged message 3\n.*use acknowledge"),
        (SKIPS, "names: [c1]", "names: [c1, c2]", r"several consumers or partitions.*\n.*use one consumer"),
        (SKIPS, "partitions: 1", "partitions: 2", r"several consumers or partitions"),
        (SKIPS, "restart_after: 4", "every: 1", r"it is never restarted\n.*restart_after"),
        (SKIPS, "broker: kafka-group", "broker: share-group", r"only consumers of a topic"),
        (UNREAD, "to: 2", "to: 1", r"to.*2"),
        (MOVES, "to: 3", "to: 2", r"'processed' has 2 partitions from the start.*\n.*use 3 or more"),
        (UNREAD, "topic: orders, to", "topic: others, to", r"'others' is not a topic of this scenario\n.*one of orders, processed"),
        (UNREAD, "broker: kafka-group", "broker: kafka-group, static: false", r"without static: false"),
        (LATE, "by_ms: 800", "by_ms: 5", r"by_ms"),
        (LATE, "message: 3", "message: 3, after: effect", r"while c1 writes the effect of message 3\n.*use take"),
    ],
)  # fmt: skip
def test_a_fault_that_cannot_work_is_refused(tmp_path: Path, name: str, old: str, new: str, expected: str) -> None:
    text = resolved(find(name))
    assert old in text, text
    path = tmp_path / f"{name}.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    assert re.search(expected, str(refused.value)), str(refused.value)


def test_the_shipped_consumer_cannot_be_given_partitions(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    chaos = "chaos: [{fault: add-partitions, target: c1, topic: orders, to: 2, at: {message: 2, after: acknowledge}}]"
    path.write_text(f"base: ack-lost-duplicates\n{chaos}\n")
    with pytest.raises(ScenarioError, match="the shipped consumer is written for the partitions"):
        load(path)


@pytest.mark.parametrize(
    ("name", "proof"),
    [
        (SKIPS, "the ids of both topics"),
        (UNREAD, "how many partitions the broker reported for orders before and after"),
        (LATE, "the round trip of a statement over the consumers' own route"),
    ],
)
def test_the_plan_says_what_will_prove_the_hit(name: str, proof: str) -> None:
    (fault,) = plan(load(find(name))).faults
    assert fault.placement.exactness == "exact" and proof in fault.placement.proof


RECREATE = RecreateTopicSpec.model_validate(
    {"fault": "recreate-topic", "target": "c1", "at": {"message": 2, "after": "acknowledge"}}
)


def recreated(new_id: str = "new") -> RecreateTopic:
    fault = RecreateTopic(RECREATE)
    fault._found = Recreated("old", new_id, 2)
    return fault


def test_a_topic_was_created_again_if_its_id_differs_and_all_of_the_old_one_was_done() -> None:
    kinds: tuple[Kind, ...] = ("publish", "take", "acknowledge")
    before = [event(kind, number) for number in (1, 2) for kind in kinds]
    later = [event("publish", 3), event("publish", 4), event("start", 0)]
    proof = proof_of(recreated(), before, [*later, event("take", 4, 7)])
    assert proof.hit and proof.evidence == (
        "the topic had id old and 2 records; created again, it had id new and none",
        "c1 was restarted and took message 4 first, at offset 1 of the new topic, at tick 7",
    )
    assert (
        proof_of(recreated(), before, [*later, event("end", 0)]).evidence[-1] == "c1 was restarted and ended by itself"
    )
    assert not proof_of(recreated("old"), before, later).hit, "it is the same topic"
    assert not proof_of(recreated(), before, later[:2]).hit, "nobody was restarted"
    assert not proof_of(recreated(), before, later[2:]).hit, "nothing is in the new topic"
    unread = proof_of(recreated(), [*before, event("publish", 5)], later)
    assert not unread.hit and "message 5 had not been read" in str(unread.evidence[-1])
    assert recreated().recreates() and not RecreateTopic(RECREATE).recreates()


def grown(topic: str, reported: tuple[int, int], *, is_input: bool) -> AddPartitions:
    values = {"fault": "add-partitions", "target": "c1", "topic": topic, "to": 2, "at": {"message": 2}}
    fault = AddPartitions(AddPartitionsSpec.model_validate(values))
    fault._reported, fault._is_input = reported, is_input
    return fault


def test_partitions_of_the_input_were_added_if_a_message_went_there() -> None:
    before = [event("publish", 1, queue="orders-0"), event("take", 1, queue="orders-0")]
    there = [event("publish", 2, 4, queue="orders-1"), event("take", 2, 5, queue="orders-1")]
    proof = proof_of(grown("orders", (1, 2), is_input=True), before, there)
    assert proof.hit and proof.evidence[1:] == (
        "message 2 was published to orders-1 at tick 4",
        "consumers took 1 of 1 message of this partition",
    )
    unread = proof_of(grown("orders", (1, 2), is_input=True), before, there[:1])
    assert unread.hit and unread.evidence[-1] == "consumers took 0 of 1 message of this partition"
    assert not proof_of(grown("orders", (1, 2), is_input=True), before, before).hit, "no message went there"
    assert not proof_of(grown("orders", (2, 2), is_input=True), before, there).hit, "none was added"
    assert grown("orders", (1, 2), is_input=True).added() == 2


def test_partitions_of_an_output_were_added_if_effects_came_after() -> None:
    fault = grown("out", (1, 2), is_input=False)
    assert fault.added() is None
    assert proof_of(fault, [], [event("effect", 3)]).hit and not proof_of(fault, [event("effect", 1)], []).hit


LATENCY = LatencySpec.model_validate({"fault": "latency", "target": "c1", "by_ms": 500, "at": {"message": 3}})


def late(before_ms: float, during_ms: float, took_ms: float | None) -> Latency:
    fault = Latency(LATENCY)
    fault._before_ms, fault._during_ms, fault._took_ms = before_ms, during_ms, took_ms
    return fault


def test_answers_were_late_if_a_statement_and_the_effect_took_longer_than_the_delay() -> None:
    done = [event("effect", 3, 5)]
    proof = proof_of(late(1, 503, 1540), [], done)
    assert proof.hit and proof.evidence == (
        "a round trip to the database took 1 ms before, and 503 ms meanwhile",
        "the effect of message 3 took 1540 ms from then on",
    )
    assert not proof_of(late(1, 3, 1540), [], done).hit, "the answers were not late"
    assert not proof_of(late(400, 510, 1540), [], done).hit, "they were late before"
    assert not proof_of(late(1, 503, 20), [], done).hit, "it did not wait for the database"
    assert not proof_of(late(1, 503, None), [], [event("end", 0)]).hit, "it ended"
    waiting = late(1, 503, None)
    assert not waiting.is_over([event("effect", 3, of="c2")]) and waiting.is_over(done)


def test_keys_move_when_the_input_has_more_partitions() -> None:
    scenario = load(find(UNREAD))
    layout = layouts.of_scenario(scenario)
    assert (layout.at_start, layout.inputs) == (("orders-0",), ("orders-0", "orders-1"))
    assert layout.queues_of == {"c1": ("orders-0",)}
    records = records_of(scenario)
    assert {message.queue for message in layout.messages(records, 1)} == {"orders-0"}
    assert [message.queue for message in layout.messages(records, 2)][3:6] == ["orders-1", "orders-0", "orders-1"]
    output = layouts.of_scenario(load(find(MOVES)))
    assert output.at_start == output.inputs == ("orders",) and output.partitions_of == {"processed": 2}


def test_records_of_a_topic_that_was_created_again_are_numbered_on() -> None:
    written: list[tuple[str, Any]] = []

    class Writer:
        def append(self, table: str, rows: Any) -> None:
            written.append((table, rows if isinstance(rows, pa.RecordBatch) else list(rows)))

    numbered = NumberedOn(Writer(), "orders", 3)
    row: dict[str, Any] = dict.fromkeys(TABLES["input"].names)
    row |= {"topic": "orders", "partition": 0, "offset": 1, "visibility": "committed"}
    numbered.append("input", pa.RecordBatch.from_pylist([row, {**row, "txn_end_offset": 2}], TABLES["input"]))
    spans = {"partition": 0, "start_offset": 0, "stable_offset": 4, "end_offset": 5}
    numbered.append("partitions", [{"topic": "orders", **spans}, {"topic": "out", **spans}])
    (_, batch), (_, partitions) = written
    assert batch.schema == TABLES["input"]
    assert batch.column("offset").to_pylist() == [4, 4] and batch.column("txn_end_offset").to_pylist() == [None, 5]
    assert [(row["start_offset"], row["stable_offset"], row["end_offset"]) for row in partitions] == [
        (3, 7, 8),
        (0, 4, 5),
    ]
