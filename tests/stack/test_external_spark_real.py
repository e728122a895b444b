"""Whole runs on an external Spark: started by spark-submit, with the verdicts of local mode."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.judge.findings import Outcome
from onceproof.run import run
from onceproof.scenario_files.load import load_all
from onceproof.stack.external.spark import CONNECT_S
from onceproof.stack.processes.owner import Owner

from ..external_spark import QUICK, ExternalSparkServices

pytestmark = [pytest.mark.real, pytest.mark.timeout(580)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalSparkServices]:
    with Owner() as owner:
        yield ExternalSparkServices(owner, tmp_path_factory.mktemp("external-spark"))


BIND = "127.0.0.9"
"""As an address of this machine that executors elsewhere reach, but safe: nobody else reaches it."""


def scenario(
    folder: Path, base: str, cluster: ExternalSparkServices, *, bind: str = "127.0.0.1", more: str = ""
) -> Path:
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    path = folder / "mine.yaml"
    quick = f"--driver-java-options, '{QUICK}', --conf, 'spark.executor.extraJavaOptions={QUICK}'"
    spark = f"{{master: '{cluster.master}', submit: ['{submit}', --verbose, {quick}], bind: {bind}}}"
    path.write_text(f"base: {base}\nstack: {{spark: {spark}}}\n{more}", encoding="utf-8")
    return path


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "application", "outcome", "anomalies"),
    [
        ("naive-append", "naive-append", Outcome.VIOLATED, ["duplicate"]),
        ("effectively-once", "flights-to-both", Outcome.HELD, []),
    ],
)
def test_a_job_started_by_spark_submit_has_the_same_verdict(
    cluster: ExternalSparkServices, name: str, application: str, outcome: Outcome, anomalies: list[str], tmp_path: Path
) -> None:
    (loaded,) = load_all([str(scenario(tmp_path, name, cluster, bind=BIND))])
    before = len(cluster.applications())
    done = run(loaded, runs_dir=tmp_path / "runs")
    assert done.verdict.outcome is outcome, done.verdict.reasons
    assert [finding.anomaly for finding in done.verdict.findings] == anomalies
    used = cluster.applications()
    assert used.count(application) >= 2, "the driver was killed, and the next one was a client of the cluster too"
    assert len(used) > before and cluster.status()["aliveworkers"] == 2
    tasks = [text for log in cluster.tasks_logs() if "Running task" in (text := log.read_text())]
    assert any(f"bootstrap.servers = [{BIND}:" in text for text in tasks)


@pytest.mark.full
def test_a_driver_is_killed_between_the_state_files_of_executors_that_share_no_socket_with_it(
    cluster: ExternalSparkServices, tmp_path: Path
) -> None:
    base = Path(__file__).parent.parent / "scenarios" / "state-partly-committed.yaml"
    (loaded,) = load_all([str(scenario(tmp_path, str(base), cluster, bind=BIND))])
    done = run(loaded, runs_dir=tmp_path / "runs")
    assert done.verdict.outcome is Outcome.HELD, done.verdict.reasons
    (fault,) = done.verdict.faults
    assert fault.hit and "state of batch 3 in 1 of " in " ".join(fault.evidence), fault.evidence
    logs = [*cluster.tasks_logs(), *done.run_dir.glob("logs/driver*")]
    texts = [log.read_text() for log in logs]
    assert not [text for text in texts if "no harness answers" in text]
    secrets = [word for text in texts for word in re.findall(r"checkpoint\.secret\W+([\w-]{20,})", text)]
    assert secrets == [], "Spark prints its settings with --verbose, but not their secrets"


@pytest.mark.full
def test_a_job_that_sets_another_master_is_an_error_not_a_verdict(
    cluster: ExternalSparkServices, tmp_path: Path
) -> None:
    more = "pipeline: {env: {MASTER: 'local[2]'}}\n"
    (loaded,) = load_all([str(scenario(tmp_path, "naive-append", cluster, more=more))])
    with pytest.raises(EnvironmentProblem, match="its driver is not connected to spark://") as problem:
        run(loaded, runs_dir=tmp_path / "runs")
    assert problem.value.exit_code == 4 and "{spark.master}" in (problem.value.hint or "")


def test_an_unreachable_master_ends_the_run_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: naive-append\nstack: {spark: {master: 'spark://127.0.0.1:1'}}\n", encoding="utf-8")
    (loaded,) = load_all([str(path)])
    began = time.monotonic()
    with pytest.raises(EnvironmentProblem, match=r"stack\.spark\.master: Spark spark://127\.0\.0\.1:1 .*refused") as it:
        run(loaded, runs_dir=tmp_path / "runs")
    assert it.value.exit_code == 4 and time.monotonic() - began < CONNECT_S
    (events,) = {path.resolve() for path in tmp_path.glob("runs/*/events.jsonl")}  # a link leads to the latest run
    assert "stack.starting" not in events.read_text(), "no service was started"
