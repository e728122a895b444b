"""If a service dies and no fault killed it, the harness reports an error and gives no verdict about the pipeline."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from onceproof.base.errors import ServiceFailed
from onceproof.base.timeline import Event
from onceproof.base.waiting import wait_until
from onceproof.run import run
from onceproof.scenario_files.load import load_file

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Three brokers, a job without Spark, and no fault."""
    path = tmp_path / "three-brokers.yaml"
    base = Path(__file__).parent / "scenarios" / "broker-cut-off.yaml"
    flights = "{topic: flights, dataset: flights, rows: 400, partitions: 2, chunks: 2}"
    path.write_text(f"base: {base}\ninput: [{flights}]\nchaos: []\n")
    return path


def kill_a_broker() -> None:
    """SIGKILL from outside the harness, as by the kernel when memory is short."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    brokers = [one for one in children if one.name() == "java" and one.cwd().endswith("/kafka/2")]
    # The newest: this process may have an older stack, which other tests share.
    broker = max(brokers, key=psutil.Process.create_time)
    broker.send_signal(signal.SIGKILL)
    wait_until(
        "broker 2 to end", lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE, deadline_s=10
    )


@pytest.mark.parametrize(
    ("kind", "data"),
    [pytest.param("batch.planned", {"batch": 1}, marks=pytest.mark.full), ("phase", {"name": "collect"})],
    ids=["while a batch is open", "while outputs are collected"],
)
def test_a_broker_that_no_fault_killed_is_an_error(
    scenario: Path, tmp_path: Path, kind: str, data: dict[str, object]
) -> None:
    killed: list[str] = []

    def strike(event: Event) -> None:
        if event.kind == kind and not killed and data.items() <= event.data.items():
            killed.append(event.kind)
            kill_a_broker()

    with pytest.raises(ServiceFailed, match=r"kafka-2 ended with exit code -9 \(Killed\)") as failed:
        run(load_file(scenario), runs_dir=tmp_path, listeners=[strike])
    assert killed and failed.value.exit_code == 4
    assert "no fault of the run did this" in str(failed.value.hint)
    assert failed.value.run_dir is not None
    verdict = json.loads((failed.value.run_dir / "verdict.json").read_text())
    assert verdict["verdict"] == "error" and "kafka-2 ended" in verdict["reasons"][0]
