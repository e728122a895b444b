"""Runs with Spark that write to MariaDB: a naive append, and its idempotent twin, under the same crash of the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.judge.findings import Verdict
from onceproof.judge.verdict import check
from onceproof.run import run
from onceproof.scenario_files.load import load_file

from .mariadb.server import MariaDb, mariadb

pytestmark = [pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)]

SCENARIOS = Path(__file__).parent / "mariadb"
TABLE = """(order_id BIGINT NOT NULL{key}, serial BIGINT NOT NULL, customer VARCHAR(20) NOT NULL,
            price DECIMAL(30, 10) NOT NULL, ordered_at DATETIME(6) NOT NULL)"""


@pytest.fixture(scope="module")
def database() -> Iterator[MariaDb]:
    with mariadb() as found:
        found.execute(
            f"CREATE TABLE booked {TABLE.format(key='')}",
            f"CREATE TABLE booked_once {TABLE.format(key=' PRIMARY KEY')}",
        )
        yield found


@pytest.fixture(autouse=True)
def url(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DATABASE", database.url)


def of_run(name: str, database: MariaDb, tmp_path: Path) -> Verdict:
    """The verdict of the scenario. The password must be in no file of the run."""
    result = run(load_file(SCENARIOS / f"{name}.yaml"), runs_dir=tmp_path / "runs")
    verdict = result.verdict
    assert all(fault.hit for fault in verdict.faults) and len(verdict.faults) == 1, verdict
    assert check(result.run_dir).anomalies() == verdict.anomalies()
    files = [path for path in result.run_dir.rglob("*") if path.is_file()]
    assert [path for path in files if database.password.encode() in path.read_bytes()] == []
    return verdict


def test_an_append_writes_the_replayed_batch_twice(database: MariaDb, tmp_path: Path) -> None:
    verdict = of_run("append", database, tmp_path)
    assert verdict.outcome.value == "violated", verdict.reasons
    assert list(verdict.anomalies()) == ["duplicate"]
    assert database.execute("SELECT count(*) - count(DISTINCT order_id) FROM booked") == [
        (verdict.anomalies()["duplicate"],)
    ]


def test_its_idempotent_twin_holds_and_says_what_was_not_judged(database: MariaDb, tmp_path: Path) -> None:
    verdict = of_run("upsert", database, tmp_path)
    assert verdict.outcome.value == "held", verdict.reasons
    why = "its store gives a final snapshot only, so its commits are unknown"
    assert {n: w for n, w in verdict.not_evaluated.items() if w == why}.keys() >= {
        "zombie-write@booked",
        "reordered@booked",
    }
