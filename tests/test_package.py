"""Files and metadata that an installed onceproof must have. Runs against the sources and, in tox, against the wheel."""

from __future__ import annotations

from importlib.metadata import entry_points, files, metadata
from importlib.resources import files as resources

import pytest

import onceproof
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import names

ELEVEN = {
    *("effectively-once", "naive-append", "naive-kafka-sink", "driver-crash-postgres", "driver-crash-kafka"),
    *("lost-ack-postgres", "lost-ack-kafka", "broker-partition", "broker-crash", "postgres-unavailable", "foreign-job"),
}


def test_all_scenarios_are_shipped_and_load() -> None:
    assert set(names()) >= ELEVEN
    for name in names():
        assert load(resources("onceproof") / "scenarios" / f"{name}.yaml").name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        "py.typed",
        "chaos/crash/driver.py",
        "instruments/jvm/onceproof/CheckpointFiles.java",
        "checkers/duplicate.py",
        "reports/junit.py",
        "reports/html/templates/run.html",
        "reports/html/templates/runs.js",
        "reports/html/templates/script.js",
        "reports/html/templates/style.css",
        "sinks/postgres.py",
        "stack/fetch/components.json",
        "scenarios/base/flights.yaml",
        "scenarios/jobs/foreign/jdbc_append.py",
        "scenarios/jobs/windows/hopping.py",
        "scenarios/schemas/order-1.avsc",
        "stack/toxiproxy/go/go.mod",
        "stack/toxiproxy/go/go.sum",
        "stack/toxiproxy/go/requirements.txt",
    ],
)
def test_files_that_the_code_reads_are_shipped(path: str) -> None:
    assert resources("onceproof").joinpath(path).read_bytes() or path == "py.typed"


def test_the_metadata_name_the_command_and_the_licence() -> None:
    assert [e.value for e in entry_points(group="console_scripts", name="onceproof")] == ["onceproof.__main__:main"]
    assert metadata("onceproof")["License-Expression"] == "Apache-2.0"
    assert any(path.name == "LICENSE" for path in files("onceproof") or [])
    assert onceproof.__version__ == metadata("onceproof")["Version"]
