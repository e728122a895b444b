"""Stall, poison, retention, rewind and a death without return: when each is refused beforehand, and what proves that it hit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.poison import Poison, PoisonSpec
from onceproof.chaos.consumers.retention import Retention, RetentionSpec
from onceproof.chaos.consumers.rewind import Rewind, RewindSpec
from onceproof.chaos.consumers.stall import Stall, StallSpec
from onceproof.consumers.faults import StepDone
from onceproof.consumers.schedule import WholeConsumers
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.faults.contract import Proof
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find


def event(
    kind: Kind, message: int, tick: int = 0, *, of: str = "c1", group: str = "", queue: str = "orders"
) -> TraceEvent:
    return TraceEvent(kind, tick, 0.0, of, message, queue, group=group)


def proof_of(fault: Any, before: list[TraceEvent], after: list[TraceEvent]) -> Proof:
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("fan-out-slow-reader", "until: 5", "until: 2", r"until: 2 is not after message 2.*\n.*use 3 or more"),
        ("fan-out-slow-reader", "until: 5", "until: 5, after: 1", "unknown key 'after'"),
        ("fan-out-slow-reader", "message: 2", "message: 2, after: effect", r"stopped at its work.*\n.*use take"),
        ("fan-out-slow-reader", "until: 5", "until: 6", "there is no message 6: they are numbered from 1 to 5"),
        ("poison-blocks", "fault: poison", "fault: reject", r"c1 writes to table '.*', and this fault refuses records of a Kafka topic"),
        ("poison-blocks", "message: 3", "message: 3, after: effect", r"shows only after its take"),
        ("poison-blocks", "names: [c1]", "names: [c1], acknowledge: with-effect", "a refused effect ends its transaction"),
        ("poison-skipped", "on_refusal: skip", "on_refusal: dead-letter", r"must be used together\n.*dead_letter: \{topic: NAME\}"),
        ("poison-dead-letter", "dead_letter: {topic: orders-refused}", "dead_letter: {topic: others}", r"0 outputs are the topic 'others'"),
        ("poison-dead-letter", "on_refusal: dead-letter", "on_refusal: skip", "must be used together"),
        ("retention-skips", "oldest: 4", "oldest: 3", r"no message after 2 is deleted\n.*use 4 or more"),
        ("retention-skips", "oldest: 4", "oldest: 7", "there is no message 7: they are numbered from 1 to 6"),
        ("retention-skips", "partitions: 1", "partitions: 2", r"the input has 2 partitions"),
        ("retention-skips", "broker: kafka-group", "broker: share-group", r"only a log deletes what was not read|only static members"),
        ("retention-stops", "broker: kafka-group", "broker: kafka-group, static: false", "offset_reset: error applies to static members"),
        ("rewind-duplicates", "to: 2", "to: 4", r"message 4 comes after message 3.*\n.*use 3 or less"),
        ("rewind-duplicates", "after: acknowledge", "after: effect", r"once c1 has acknowledged message 3\n.*use acknowledge"),
        ("rewind-duplicates", "restart_after: 2", "every: 1", r"it is never restarted\n.*restart_after"),
        ("rewind-duplicates", "names: [c1]", "names: [c1, c2]", r"several members or partitions"),
        ("member-dies-duplicates", "names: [c1, c2]", "names: [c1, c2], restart_after: 3", r"cannot come back yet\n.*leave out"),
        ("member-dies-duplicates", "names: [c1, c2]", "names: [c2]", r"c2 is alone"),
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


@pytest.mark.parametrize(
    ("name", "proof"),
    [
        ("fan-out-slow-reader", "every other group acknowledged message 5 while shipper was stopped"),
        ("poison-blocks", "the output refused message 3 each time"),
        ("retention-skips", "the log began after the next record of c1"),
        ("rewind-duplicates", "messages 2 to 3 were given out again"),
    ],
)
def test_the_plan_says_what_will_prove_the_hit(name: str, proof: str) -> None:
    (fault,) = plan(load(find(name))).faults
    assert fault.placement.exactness == "exact" and proof in fault.placement.proof


STALL = StallSpec.model_validate({"fault": "stall", "target": "s", "at": {"message": 2}, "until": 4})


def stall() -> Stall:
    fault = Stall(STALL)
    fault._others = {"b": "billing"}
    return fault


def test_a_stall_hit_if_the_other_groups_were_done_while_it_was_stopped() -> None:
    stop, resume = event("stop", 2, 1, of="s"), event("resume", 2, 5, of="s")
    other, own = event("acknowledge", 4, 4, of="b", group="billing"), event("effect", 2, 5, of="s", group="shipping")
    proof = proof_of(stall(), [event("take", 2, 1, of="s")], [stop, other, resume, own])
    assert proof.hit and "b of group billing acknowledged message 4, at tick 4" in proof.evidence[1]
    assert proof.evidence[-1] == "s continued after that, and wrote messages 2"
    assert not proof_of(stall(), [], [stop, resume, other, own]).hit, "the other group was done only later"
    assert not proof_of(stall(), [], [stop, own, other, resume]).hit, "it was not stopped"
    assert stall().is_over([other]) and not stall().is_over([event("acknowledge", 3, 4, of="b", group="billing")])


POISON = Poison(PoisonSpec.model_validate({"fault": "poison", "target": "c1", "at": {"message": 3}}))


def test_a_poison_hit_if_the_output_refused_it_each_time_and_took_others() -> None:
    others, refused = [event("effect", 1), event("effect", 2)], [event("refuse", 3, 3), event("refuse", 3, 5)]
    proof = proof_of(POISON, others, refused)
    assert proof.hit and proof.evidence[1:] == ("it took messages 1, 2",)
    aside = proof_of(POISON, others, [*refused, event("dead-letter", 3, 6, queue="letters")])
    assert aside.evidence[-1] == "c1 put message 3 into letters at tick 6"
    assert proof_of(POISON, others, []).evidence == ("the output never refused message 3",)
    assert not proof_of(POISON, others, [*refused, event("effect", 3, 6)]).hit, "the output took it in the end"
    assert not proof_of(POISON, [], refused).hit, "the output refuses everything"


def test_a_poison_is_proven_by_the_group_of_its_consumer_alone() -> None:
    own = [event("take", 3, 3, group="billing"), event("effect", 1, 1, group="billing"), event("start", 0)]
    refused = [event("refuse", 3, 3, group="billing")]
    taken = event("effect", 3, 4, of="c2", group="shipping")
    aside = event("dead-letter", 3, 5, of="c2", group="shipping", queue="letters")
    proof = proof_of(POISON, own, [*refused, taken, aside])
    assert proof.hit and "letters" not in str(proof.evidence), "its own group never took it, nor put it aside"
    elsewhere = event("refuse", 3, 4, of="c2", group="shipping")
    assert not proof_of(POISON, own, [elsewhere]).hit, "only another group's output refused it"
    others = event("effect", 2, 4, of="c2", group="shipping")
    assert not proof_of(POISON, own[:1], [*refused, others]).hit, "its own output took nothing else"


RETENTION = RetentionSpec.model_validate({"fault": "retention", "target": "c1", "at": {"message": 2}, "oldest": 5})


def retention(begins_at: int | None) -> Retention:
    fault = Retention(RETENTION)
    fault._begins_at = begins_at
    return fault


def test_a_retention_hit_if_the_log_began_after_the_next_record() -> None:
    gone, following = [event("delete", 3, 4), event("delete", 4, 4)], event("take", 5, 5)
    proof = proof_of(retention(4), [event("take", 2, 1)], [*gone, event("resume", 2, 4), following])
    assert proof.hit and proof.evidence[2:] == (
        "of what it had not read, message 3, message 4 was gone",
        "c1 took message 5 next, at tick 5",
    )
    ended = proof_of(retention(4), [], [*gone, event("end", 0, 5)])
    assert ended.hit and ended.evidence[-1] == "c1 ended by itself at its next take"
    assert not proof_of(retention(2), [], [following]).hit, "the log still had its next record"
    assert not proof_of(retention(None), [], []).hit, "nothing was deleted"
    early = proof_of(retention(4), [], [*gone, event("take", 3, 5)])
    assert not early.hit and early.evidence[-1] == "c1 had already fetched a message that was deleted"
    assert retention(None).is_over([event("publish", 5)]) and not retention(None).is_over([event("publish", 4)])


REWIND = RewindSpec.model_validate(
    {"fault": "rewind", "target": "c1", "at": {"message": 3, "after": "acknowledge"}, "to": 2}
)


def rewind(was: int | None, now: int | None) -> Rewind:
    fault = Rewind(REWIND)
    fault._was, fault._is = was, now
    return fault


def test_a_rewind_hit_if_the_messages_were_given_out_again() -> None:
    again = [event("take", 2, 5), event("take", 3, 6)]
    proof = proof_of(rewind(3, 1), [], again)
    assert proof.hit and proof.evidence[-1] == "c1 was given messages 2, 3 again"
    assert not proof_of(rewind(3, 1), [], again[:1]).hit
    assert not proof_of(rewind(3, 3), [], again).hit, "the offsets are the same"
    assert not proof_of(rewind(None, None), [], []).hit
    assert list(rewind(3, 1).rewound()) == [2, 3]


def test_shrinking_renumbers_every_message_that_a_fault_names(tmp_path: Path) -> None:
    whole = WholeConsumers(load(find("retention-skips")))
    left = whole.schedule.only([2, 3, 4])
    (fault,) = whole.of(left, tmp_path / "records").faults(RetentionSpec)
    assert (fault.at.message, fault.oldest) == (1, 3)
    assert whole.schedule.only([2, 3]).faults == (), "the oldest message is gone"
    (without,) = (removal for removal in left.smaller() if removal.without == "message 4")
    assert [way.faults for way in without.ways] == [()]
