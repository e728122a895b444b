"""A consumer that is slower than its broker waits: what proves it, where it can be, and who is let do what meanwhile."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from onceproof.base.errors import ScenarioError
from onceproof.chaos.consumers.slow import Slow, SlowSpec
from onceproof.consumers import layout as layouts
from onceproof.consumers.brokers.kafka import GroupQueues
from onceproof.consumers.clients import kafka_group as kafka_client
from onceproof.consumers.clients.contract import Client, Fenced, Lost
from onceproof.consumers.faults import StepDone
from onceproof.consumers.layout import Message, in_ranges
from onceproof.consumers.state import Hand
from onceproof.consumers.takeover import Takeover
from onceproof.consumers.trace import Kind, Move
from onceproof.consumers.worker import Worker
from onceproof.faults.contract import Proof
from onceproof.scenario_files.load import find, load, resolved


def proof_of(fault: Any, before: list[Move], after: list[Move]) -> Proof:
    """From all moves, at the place between these two."""
    proof: Proof = fault.prove(None, StepDone([*before, *after], len(before)))
    return proof


SLOW = Slow(SlowSpec.model_validate({"fault": "slow", "target": "c2", "at": {"message": 3}}))


def move(kind: Kind, consumer: str, tick: int, message: int = 3, *, redelivered: bool = False, group: str = "") -> Move:
    return Move(kind, tick, 0.0, consumer, message, "q", redelivered, group)


TAKEN = [move("take", "c2", 2)]
GIVEN = [move("lapse", "c2", 3), move("take", "c1", 3, redelivered=True)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("acknowledge", "answered its late acknowledgement without an error"),
        ("fenced", "refused its late acknowledgement: the message was another's"),
    ],
)
def test_it_hit_if_two_were_at_the_same_message_and_both_finished(answer: Kind, said: str) -> None:
    proof = proof_of(SLOW, TAKEN, [*GIVEN, move("effect", "c2", 4), move(answer, "c2", 4)])
    assert proof.hit and said in proof.evidence[-1]
    assert "for the second time to c1 at tick 3, while c2 lived and had it" in proof.evidence[1]


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([], "to nobody else meanwhile"),
        ([move("take", "c2", 3)], "to nobody else meanwhile"),
        ([move("take", "c1", 3, group="another")], "to nobody else meanwhile"),
        (GIVEN, "acknowledgement was not seen"),
        ([*GIVEN, move("effect", "c2", 4)], "acknowledgement was not seen"),
        ([*GIVEN, move("effect", "c2", 4), move("lost", "c2", 4)], "got no answer of the broker"),
        ([*GIVEN, move("lost", "c2", 4), move("take", "c2", 5), move("acknowledge", "c2", 6)], "got no answer"),
    ],
)
def test_it_missed_if_anything_of_it_was_not_seen(after: list[Move], why: str) -> None:
    proof = proof_of(SLOW, TAKEN, after)
    assert not proof.hit and why in proof.evidence[-1]


def test_an_acknowledgement_that_is_refused_before_the_effect_is_proof_as_well() -> None:
    proof = proof_of(SLOW, TAKEN, [*GIVEN, move("fenced", "c2", 4)])
    assert proof.hit and "c2 went on and did no effect" in proof.evidence


def test_it_is_over_when_another_was_given_the_message() -> None:
    assert not SLOW.is_over([move("effect", "c1", 2, message=2)])
    assert SLOW.is_over(GIVEN)


def refusal(name: str, changes: dict[str, str], tmp_path: Path) -> str:
    text = resolved(find(name))
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("slow-member-duplicates", {", static: false": ""}, r"c2 is a static member.*\n.*static: false"),
        ("slow-member-duplicates", {"names: [c1, c2]": "names: [c2]"}, r"c2 is alone: .* message 3"),
        ("slow-member-duplicates", {"{message: 3}": "{message: 3, after: effect}"}, r"slow at its work.*\n.*use take"),
        ("share-group-lock-timeout-duplicates", {"chaos:\n": "chaos:\n  - {fault: crash, target: c2, at: {message: 3, after: effect}}\n"}, r"crash strikes c2 over message 3 as well.*\n.*another message"),
        ("slow-member-duplicates", {"fault: slow": "fault: crash"}, r"crash is not supported yet for members that are not static"),
        ("slow-member-duplicates", {"kafka-group": "share-group", "partitions: 2": "partitions: 1"}, r"static applies to members.*share-group"),
        ("slow-member-duplicates", {"static: false": "static: false, on_refusal: release"}, r"static: false is supported only for one consumer group"),
        ("amqp-redelivery-reorders", {"fault: crash": "fault: slow"}, r"waits for a consumer as long as its connection lives"),
        ("position-with-row", {"names: [c1]": "names: [c1], static: false"}, r"positions in Postgres do not follow the group"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_is_told_with_what_to_do(
    name: str, changes: dict[str, str], expected: str, tmp_path: Path
) -> None:
    said = refusal(name, changes, tmp_path)
    assert re.search(expected, said), said


@pytest.mark.parametrize("name", ["share-group-lock-timeout", "slow-member"])
def test_the_twins_differ_in_the_remedy_alone(name: str) -> None:
    naive = load(find(f"{name}-duplicates"))
    remedy = load(find(f"{name}-{'idempotent' if name.startswith('share') else 'transactional'}"))
    assert (naive.chaos, naive.input, naive.oracle, naive.claim) == (
        remedy.chaos,
        remedy.input,
        remedy.oracle,
        remedy.claim,
    )
    one, other = naive.pipeline.consumers, remedy.pipeline.consumers
    assert one is not None and other is not None
    if name == "slow-member":
        assert other.model_copy(update={"acknowledge": one.acknowledge}) == one and one != other
    else:
        assert one == other
        assert naive.pipeline.prepare.sql == remedy.pipeline.prepare.sql.replace(" PRIMARY KEY", "")


def test_only_who_is_to_be_slow_is_given_up_soon() -> None:
    layout = layouts.of_scenario(load(find("slow-member-duplicates")))
    assert not layout.static and layout.outlasted == {"c2"}
    queues = object.__new__(GroupQueues)
    queues._layout, queues._tables = layout, None
    stack: Any = SimpleNamespace(kafka=SimpleNamespace(client_bootstrap="127.0.0.1:1"))
    queues._stack = stack
    given = {name: queues.environment(name, "mark") for name in ("c1", "c2")}
    assert {name: env["ONCEPROOF_POLL_INTERVAL_MS"] for name, env in given.items()} == {"c1": "600000", "c2": "1000"}
    assert [env["ONCEPROOF_MARK"] for env in given.values()] == ["000-c1", "001-c2"], "the assignor goes by these names"
    assert not any("ONCEPROOF_MEMBER" in env for env in given.values())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, {"lost": True, "fenced": True}),
        (KafkaError.ILLEGAL_GENERATION, {"lost": True, "fenced": True}),
        (KafkaError._TIMED_OUT, {"lost": True}),
    ],
)
def test_a_refused_acknowledgement_is_told_apart_from_one_without_an_answer(code: int, told: dict[str, bool]) -> None:
    failed = kafka_client.lost(KafkaException(KafkaError(code)))
    assert isinstance(failed, Fenced) is ("fenced" in told) and isinstance(failed, Lost)

    class Source:
        def acknowledge(self, _taken: object) -> None:
            raise failed

    source: Any = Source()
    effect: Any = None
    taken: Any = SimpleNamespace(message="m3")
    did = Worker(Client(source, effect), "after-effect", "again").do("acknowledge", taken)
    assert did == {"step": "acknowledge", "message": "m3", **told}


class Dealer:
    """Queues that a broker deals out, as the range assignor does, and what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def settled(self, members: list[str]) -> dict[str, tuple[str, ...]]:
        self.asked.append(list(members))
        return in_ranges(("q0", "q1"), members)


def test_nobody_takes_until_what_the_slow_one_has_is_dealt_out_and_again_when_it_is_back() -> None:
    one, slow, dealer = Hand("c1", "g", ("q0",)), Hand("c2", "g", ("q1",), holds=Message(3, "q1")), Dealer()
    queues: Any = dealer
    takeover = Takeover([one, slow], queues)
    assert takeover.may_take(one) and not takeover.waits and not takeover.comes
    takeover.keep(slow)
    assert takeover.waits and takeover.comes and not takeover.may_take(one)
    one.holds = Message(2, "q0")
    takeover.settle()
    assert dealer.asked == [], "a member with a message answers no rebalance"
    one.holds = None
    takeover.settle()
    assert (dealer.asked, one.queues, slow.queues) == ([["c1"]], ("q0", "q1"), ()) and takeover.may_take(one)
    assert takeover.loser("g", Message(3, "q1")) is slow and takeover.loser("g", Message(4, "q1")) is None
    slow.kept, slow.holds = False, None
    takeover.is_done(slow)
    assert not takeover.may_take(one), "it joins again, and its partition goes back"
    takeover.settle()
    assert (one.queues, slow.queues, dealer.asked[-1]) == (("q0",), ("q1",), ["c1", "c2"])


def test_in_a_share_group_whoever_is_free_takes_what_the_slow_one_has() -> None:
    one, slow = Hand("c1", "g", ("q",)), Hand("c2", "g", ("q",), holds=Message(3, "q"))
    queues: Any = object()
    takeover = Takeover([one, slow], queues)
    takeover.keep(slow)
    assert takeover.waits and takeover.may_take(one) and not takeover.comes
