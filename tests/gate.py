"""Which shipped scenarios the gate (`tox`) runs; `tox -e full` runs them all."""

from __future__ import annotations

import pytest

from onceproof.scenario_files.load import find, load, names

#: Together each kind of fault once. The fast tests show each anomaly; those of the consumers take seconds each: all of them.
SCENARIOS = frozenset(
    {
        "aborted-input-uncommitted",  # aborted-input; aborted-read
        "checkpoint-metadata-lost-query-id",  # checkpoint-damage
        "effectively-once",  # crash, partition, lost-ack and reject against the sinks that hold
        "files-append",  # duplicate in a folder of files
        "executor-crash",  # crash of an executor, on a cluster
        "late-endtxn",  # late-request
        "naive-append",  # duplicate
        "postgres-crash",  # crash of Postgres, and of one session
        "producer-retries-naive",  # lost-ack and lost-request at Kafka; reordered
        "replay-diverges",  # diverged-replay, wrong-value
        "sink-refuses-swallowed",  # reject in three forms; an error that the job hides
        "torn-batch-autocommit",  # crash-at-frame; torn-batch
        "two-drivers-fenced",  # fence
        "unclean-election",  # crash of all brokers in sync; what a lone leader acknowledged
        "zombie-driver-unfenced",  # stall of the driver; zombie-write
    }
    | {name for name in names() if load(find(name)).pipeline.consumers}
)


def gate(*scenarios: str) -> list[object]:
    """``scenarios`` as parameters of a test that the gate runs for those of `SCENARIOS`."""
    return [name if name in SCENARIOS else pytest.param(name, marks=pytest.mark.full) for name in scenarios]
