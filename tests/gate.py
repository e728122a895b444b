"""The shipped scenarios that the gate (`tox`) runs; `tox -e full` runs them all."""

from __future__ import annotations

import pytest

from onceproof.scenario_files.load import find, load, names

#: Each kind of fault at least once, and all scenarios of consumers, which take only seconds. The fast tests show each anomaly.
SCENARIOS = frozenset(
    {
        "aborted-input-uncommitted",  # aborted-input; aborted-read
        "checkpoint-metadata-lost-query-id",  # checkpoint-damage
        "effectively-once",  # crash, partition, lost-ack and reject, and it is held
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
        "unclean-election",  # crash of all brokers in sync; loss of records that only the leader had
        "zombie-driver-unfenced",  # stall of the driver; zombie-write
    }
    | {name for name in names() if load(find(name)).pipeline.consumers}
)


def gate(*scenarios: str) -> list[object]:
    """``scenarios`` as test parameters; those that are not in `SCENARIOS` get the marker ``full``."""
    return [name if name in SCENARIOS else pytest.param(name, marks=pytest.mark.full) for name in scenarios]
