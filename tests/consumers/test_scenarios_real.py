"""Every shipped scenario of the consumers of onceproof on a real broker: it has the expected verdict, and what a claim allows of its findings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from onceproof.consumers.trace import read_trace
from onceproof.judge.findings import Finding, Outcome
from onceproof.judge.verdict import judge
from onceproof.run import Result
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

from ..gate import OF_CONSUMERS, ON_A_CLUSTER, TWINS, WITH_DATABASES, assert_as_expected

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

RunOnce = Callable[[str | Path], Result]


@pytest.mark.parametrize("name", [*sorted(OF_CONSUMERS - WITH_DATABASES - ON_A_CLUSTER), "unclean-election-of-input"])
def test_a_scenario_has_the_expected_verdict_and_every_fault_hits(run_once: RunOnce, name: str) -> None:
    result = run_once(name)
    assert_as_expected(name, result.verdict, result.run_dir)


@pytest.mark.parametrize(("naive", "remedy", "anomaly"), TWINS)
def test_the_naive_pipeline_is_violated_and_its_remedy_holds_under_the_same_fault(
    run_once: RunOnce, naive: str, remedy: str, anomaly: str
) -> None:
    assert load(find(naive)).chaos == load(find(remedy)).chaos
    bad, good = run_once(naive).verdict, run_once(remedy).verdict
    assert bad.outcome is Outcome.VIOLATED and bad.anomalies() == {anomaly: 1}
    assert good.outcome is Outcome.HELD, good.reasons
    assert [fault.hit for fault in (*bad.faults, *good.faults)] == [True, True]


@pytest.mark.parametrize(
    "name",
    [
        "added-partition-unread",
        "late-answer-duplicates",
        "replica-lags",
        "failover-loses-commit",
        "failover-keeps-commit",
    ],
)
def test_a_fault_that_needs_a_consumer_of_its_own_hits(run_once: RunOnce, name: str) -> None:
    result = run_once(name)
    assert_as_expected(name, result.verdict, result.run_dir)


def test_the_history_has_the_records_of_a_deleted_topic_and_of_the_new_one(run_once: RunOnce) -> None:
    """Without the group's offsets, which Kafka deletes with the topic, c1 would continue at offset 3 of the new one."""
    result = run_once("recreated-topic-group-offsets")
    places = pq.read_table(result.run_dir / "history" / "input.parquet").column("offset").to_pylist()
    assert places == list(range(8)) and result.verdict.counts["effects.processed"] == 8


def test_a_lost_acknowledgement_is_proved_by_its_frames_and_by_the_redelivery(run_once: RunOnce) -> None:
    for name, frame in (("ack-lost-duplicates", "OffsetCommit"), ("ack-lost-transactional", "TxnOffsetCommit")):
        (fault,) = run_once(name).verdict.faults
        assert f"c1 sent the {frame} of message 3 " in fault.evidence[0], fault.evidence
        assert (
            "none of them reached the broker" in fault.evidence[0] and "the broker gave it to c1" in fault.evidence[-1]
        )


def test_a_slow_reader_delays_no_other_group(run_once: RunOnce, tmp_path: Path) -> None:
    """The other groups do the same steps at the same ticks as without the fault."""
    control = tmp_path / "control.yaml"
    control.write_text("base: fan-out-slow-reader\nchaos: []\n")
    steps = []
    for scenario in ("fan-out-slow-reader", control):
        trace = read_trace(run_once(scenario).run_dir)
        steps.append([(e.kind, e.tick, e.consumer, e.message) for e in trace if e.consumer in ("biller", "auditor")])
    assert steps[0] == steps[1] and len(steps[0]) > 20


def test_what_retention_deleted_is_in_the_history(run_once: RunOnce) -> None:
    result = run_once("retention-skips")
    (finding,) = result.verdict.findings
    assert "Input orders/0@2 is committed" in finding.witnesses[0].argument
    assert result.verdict.counts["input"] == 6


def test_a_rewound_group_writes_what_it_is_given_again(run_once: RunOnce) -> None:
    assert run_once("rewind-duplicates").verdict.anomalies() == {"duplicate": 2}
    assert run_once("rewind-idempotent").verdict.counts["effects.processed"] == 4


def test_a_dead_letter_has_the_place_of_its_message_and_the_reason(run_once: RunOnce) -> None:
    run = run_once("poison-dead-letter").run_dir
    output = pq.read_table(run / "history" / "output.parquet").to_pylist()
    (letter,) = [json.loads(row["content"]) for row in output if row["output"] == "refused"]
    assert (letter["partition"], letter["offset"]) == (0, 2)
    assert json.loads(letter["message"]) == {"id": 3, "key": ""}
    assert "violates check constraint" in letter["reason"]


def judged_as(run: Path, to: Path, **claim: str) -> Finding:
    """The only finding of a stored run, judged against another claim."""
    shutil.copytree(run, to, symlinks=True)
    document = json.loads((to / "run.json").read_text())
    document["scenario"]["claim"] |= claim
    (to / "run.json").write_text(json.dumps(document))
    (finding,) = judge(to).findings
    return finding


@pytest.mark.parametrize(
    ("scenario", "claim", "allowed"),
    [
        ("ack-lost-duplicates", {"delivery": "at-least-once"}, "a duplicate whose cause is known: fault"),
        ("crash-before-offset-duplicates", {"delivery": "at-least-once"}, "a duplicate whose cause is known: fault"),
        ("crash-before-offset-duplicates", {"delivery": "at-most-once"}, None),
        ("offset-before-effect-loses", {"delivery": "at-most-once"}, "a loss in a batch that a fault struck"),
        ("offset-before-effect-loses", {"delivery": "at-least-once"}, None),
        ("amqp-redelivery-reorders", {"order": "none"}, "no order is claimed"),
        ("amqp-redelivery-reorders", {"order": "per-key"}, "order is claimed per key, not between keys"),
        ("amqp-redelivery-reorders", {"order": "per-partition"}, None),
    ],
)
def test_an_allowed_finding_is_shown_with_the_reason(
    run_once: RunOnce, tmp_path: Path, scenario: str, claim: dict[str, str], allowed: str | None
) -> None:
    finding = judged_as(run_once(scenario).run_dir, tmp_path / "run", **claim)
    assert (finding.allowed is None) if allowed is None else (allowed in (finding.allowed or ""))


def test_order_is_promised_for_a_queue_or_for_a_key_within_it(run_once: RunOnce, tmp_path: Path) -> None:
    """m4 overtook m3 in their queue; they have different keys, so no key is out of order."""
    run = run_once("amqp-redelivery-reorders").run_dir
    finding = judged_as(run, tmp_path / "queue", order="per-partition")
    assert finding.anomaly == "reordered" and "offset 2 comes before offset 3" in finding.witnesses[0].argument
    judged_as(run, tmp_path / "key", order="per-key")
    verdict = judge(tmp_path / "key")
    assert verdict.outcome is Outcome.HELD, verdict.reasons
