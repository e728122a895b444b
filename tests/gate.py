"""The shipped scenarios that the gate (`tox`) runs; `tox -e full` runs them all.

Those of consumers take only seconds: the gate runs them all (`tests/consumers/test_scenarios_real.py`), except `WITH_DATABASES` and `ON_A_CLUSTER`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from onceproof.faults.contract import reads_frames
from onceproof.judge.findings import Verdict
from onceproof.scenario.model import WORKER, Scenario
from onceproof.scenario_files.load import load_file, read
from onceproof.scenario_files.shipped import find, names

#: Scenarios with Spark: each kind of fault at least once. The fast tests show each anomaly.
SCENARIOS = frozenset(
    {
        "aborted-input-uncommitted",  # aborted-input; aborted-read
        "checkpoint-metadata-lost-query-id",  # checkpoint-damage
        "effectively-once",  # crash, partition, lost-ack and reject, and it is held
        "executor-crash",  # crash of an executor, on a cluster
        "late-commit-uncommitted",  # late-commit; precommitted-read
        "late-endtxn",  # late-request
        "naive-append",  # duplicate
        "postgres-crash",  # crash of Postgres, and of one session
        "producer-retries-naive",  # lost-ack and lost-request at Kafka; reordered
        "retention-skips-batch",  # retention; lost-write
        "sink-refuses-swallowed",  # reject in three forms; an error that the job hides
        "stopped-in-batch-naive",  # stop (SIGTERM); lost-write
        "torn-batch-autocommit",  # crash-at-frame; torn-batch
        "two-drivers-fenced",  # fence
        "upgraded-sum-continued",  # upgrade
        "zombie-driver-unfenced",  # stall of the driver; zombie-write
    }
)
#: What `complaints` shows of a log: at most so many lines, of at most so many characters.
_LAST, _WIDTH = 10, 300
_COMPLAINT = re.compile("WARN|ERROR|FATAL|PANIC|Exception|Fencing broker|partition leader")


@cache
def loaded(name: str) -> Scenario:
    """The shipped scenario of that name. Each process of pytest collects all tests, so it loads no more of them than it has to."""
    return load_file(find(name), runs=False).scenario


#: Scenarios without Spark. To validate all of them would take half of the time of collecting.
OF_CONSUMERS = frozenset(name for name in names() if read(find(name)).data["pipeline"].get("consumers"))
#: Those among them that the full set runs (`tests/consumers/test_databases_real.py`): they have a command of their own.
WITH_DATABASES = frozenset(name for name in OF_CONSUMERS if loaded(name).pipeline.command != WORKER)
#: Those on three brokers, which take longer to start (`tests/consumers/test_cluster_real.py`).
ON_A_CLUSTER = frozenset(name for name in OF_CONSUMERS if loaded(name).stack.kafka.brokers > 1)
#: Among them: a naive pipeline, its remedy under the same fault, and the anomaly that the naive one has once.
TWINS = (
    ("ack-lost-duplicates", "ack-lost-transactional", "duplicate"),
    ("amqp-ack-lost-duplicates", "amqp-ack-lost-transactional", "duplicate"),
    ("amqp-cut-reorders", "amqp-cut-queue-per-consumer", "reordered"),
    ("crash-before-offset-duplicates", "crash-before-offset-transactional", "duplicate"),
    ("crash-before-position-duplicates", "position-with-row", "duplicate"),
    ("member-dies-duplicates", "member-dies-idempotent", "duplicate"),
    ("offset-before-effect-loses", "offset-before-effect-transactional", "lost-write"),
    ("poison-skipped", "poison-dead-letter", "lost-write"),
    ("retention-skips", "retention-stops", "lost-write"),
    ("row-too-large-skipped", "row-too-large-dead-letter", "lost-write"),
)


def gate(*scenarios: str) -> list[object]:
    """``scenarios`` as test parameters; those that are not in `SCENARIOS` get the marker ``full``."""
    return [name if name in SCENARIOS else pytest.param(name, marks=pytest.mark.full) for name in scenarios]


def by_stack(chosen: Iterable[str]) -> list[str]:
    """The scenarios in an order in which those with equal stacks follow each other, so that they share services.

    Those that need the protocol proxy come first: their stack serves the others too.
    """

    def key(name: str) -> tuple[str, bool, str]:
        scenario = loaded(name)
        services = scenario.stack.model_dump_json(exclude={"registry"})
        return services, not reads_frames(scenario.chaos), name

    return sorted(chosen, key=key)


def assert_as_expected(name: str, verdict: Verdict, run_dir: Path | None = None) -> None:
    """The scenario's run has the verdict and the anomalies that it expects, and each of its faults hit.

    If not, the message also has the problems that the logs in ``run_dir`` report: CI keeps nothing else of a run.
    """

    def story() -> str:
        return "\n".join([summary(verdict), *(complaints(run_dir / "logs") if run_dir else [])])

    expect = loaded(name).expect
    assert verdict.outcome.value == expect.verdict, story()
    assert sorted(verdict.anomalies()) == sorted(expect.anomalies), story()
    assert verdict.faults, "a scenario without a fault shows nothing"
    assert all(f.armed and f.fired and f.hit for f in verdict.faults), story()
    assert all(f.evidence for f in verdict.faults)


def summary(verdict: Verdict) -> str:
    return "\n".join([verdict.outcome, *verdict.reasons, *(f"{f.fault}: {f.evidence}" for f in verdict.faults)])


def complaints(logs: Path) -> list[str]:
    """The last lines of each log that report a problem, or that another broker leads."""
    said: list[str] = []
    for log in sorted(logs.glob("*.log")):
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if _COMPLAINT.search(line)]
        said += [f"{log.name}: {line[:_WIDTH]}" for line in lines[-_LAST:]]
    return said
