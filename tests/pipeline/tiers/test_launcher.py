"""How the JVM of a job is started: the program in the place of spark-submit, run as PySpark runs it, and the launcher's answers.

Spark's folder is a small one here, whose spark-submit prints what it was called with. That Spark starts is shown by
`test_tiers_real`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline, read_events
from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.pipeline.tiers import kept, spark_home
from onceproof.pipeline.tiers.launcher import CONNECTION_FILE, Launcher, Request, quick
from onceproof.stack.processes.owner import Owner, Service

#: Like Spark's scripts it becomes a process that has the main class among its words; and it prints how it was called.
#: It chooses a collector, so that it is started again with the same words: a shell knows no other.
#: For a while, a script named ``spark-class`` has that class among its words, as Spark's has: it is not the JVM.
SUBMIT = """#!/bin/sh
echo "scripts ${SPARK_HOME:-unset} $FLAVOUR $*"
export FROM_SCRIPTS=yes
exec /usr/bin/env sh FOLDER/spark-class org.apache.spark.deploy.SparkSubmit
"""
CLASS = """#!/usr/bin/env sh
sleep 0.3
exec FOLDER/java -c 'echo "jvm $FROM_SCRIPTS $FLAVOUR $_PYSPARK_DRIVER_CONN_INFO_PATH"; read line' org.apache.spark.deploy.SparkSubmit -XX:+UseG1GC
"""


class Job:
    """Calls ``spark-submit`` as PySpark does."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self._launcher = launcher
        self._folder = folder
        self.number = 0

    def submit(self, *words: str, **env: str) -> list[str]:
        """The printed lines of one start, which ends as soon as the harness knows its command line."""
        self.number += 1
        home = self._launcher.home
        process = subprocess.Popen(
            [f"{home}/./bin/spark-submit", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], "SPARK_HOME": str(home), CONNECTION_FILE: f"file-{self.number}", **env},
        )
        assert process.stdout is not None and process.stdin is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("jvm"):
                break
        if self.number == 1:
            wait_until("the command line", lambda: self._launcher._jvm, deadline_s=10)
        process.communicate("\n", timeout=10)
        return lines


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pyspark"
    (folder / "bin").mkdir(parents=True)
    (folder / "jars").mkdir()
    script = folder / spark_home.SUBMIT
    for file, text in ((script, SUBMIT), (folder / "bin" / "spark-class", CLASS)):
        file.write_text(text.replace("FOLDER", str(folder / "bin")))
        file.chmod(0o755)
    (folder / "bin" / "java").symlink_to("/bin/sh")
    monkeypatch.setattr(spark_home, "pyspark", lambda: folder)
    return folder


@pytest.fixture
def launcher(tmp_path: Path, home: Path) -> Iterator[Launcher]:
    timeline = Timeline(tmp_path / "events.jsonl")
    made = Launcher(tmp_path / "jvm", timeline, start_of_driver=lambda: len(made.starts))
    made.start()
    yield made
    made.close()
    timeline.close()


@pytest.fixture
def job(launcher: Launcher, tmp_path: Path) -> Job:
    return Job(launcher, tmp_path)


def test_an_equal_start_needs_no_scripts_and_has_the_first_ones_environment(
    job: Job, launcher: Launcher, tmp_path: Path
) -> None:
    first = job.submit("--conf", "spark.app.name=x", "pyspark-shell", FLAVOUR="plain")
    assert first == ["scripts unset plain --conf spark.app.name=x pyspark-shell", "jvm yes plain file-1"]
    assert job.submit("--conf", "spark.app.name=x", "pyspark-shell", FLAVOUR="plain") == ["jvm yes plain file-2"]
    assert [(one.start, one.tier, one.how, one.why) for one in launcher.starts] == [
        (0, "real", "scripts", None),
        (1, "real", "direct", None),
    ]
    assert [one.data["how"] for one in read_events(tmp_path) if one.kind == "driver.jvm"] == ["scripts", "direct"]


def test_a_start_that_differs_is_left_to_sparks_scripts_and_says_why(
    job: Job, launcher: Launcher, tmp_path: Path
) -> None:
    job.submit("pyspark-shell", FLAVOUR="plain")
    assert job.submit("--conf", "a=b", "pyspark-shell", FLAVOUR="plain")[0].startswith("scripts unset plain --conf a=b")
    assert job.submit("pyspark-shell", FLAVOUR="secret")[0].startswith("scripts unset secret")
    reasons = [one.why for one in launcher.starts[1:]]
    assert reasons == [
        "the job's Spark configuration is not that of its first start",
        "the job's environment is not that of its first start: FLAVOUR",
    ]
    assert "secret" not in (tmp_path / "events.jsonl").read_text()


def test_changed_configuration_files_are_left_to_sparks_scripts(job: Job, launcher: Launcher, home: Path) -> None:
    job.submit("pyspark-shell")
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    assert job.submit("pyspark-shell")[0].startswith("scripts")
    assert launcher.starts[-1].why == "Spark's configuration files are not those of the job's first start"


def test_without_a_harness_the_job_gets_sparks_scripts(job: Job, launcher: Launcher) -> None:
    job.submit("pyspark-shell")
    launcher.close()
    assert job.submit("pyspark-shell")[0] == "scripts unset  pyspark-shell"


def test_a_wrong_request_is_not_answered(launcher: Launcher, home: Path) -> None:
    for line in (b"", b"{}", b"[1]", json.dumps({"argv": 1, "cwd": "", "env": [], "pid": "x"}).encode()):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Request.parse(line)


def test_the_rest_of_sparks_folder_is_there(launcher: Launcher, home: Path) -> None:
    assert (launcher.home / "jars").resolve() == home / "jars"
    assert (launcher.home / spark_home.SUBMIT).read_text().startswith("#!/bin/sh")


@pytest.mark.parametrize(
    ("command", "env", "why"),
    [
        ([sys.executable, "job.py"], {}, None),
        ([sys.executable, "job.py"], {"SPARK_HOME": "/opt/spark"}, "sets SPARK_HOME"),
        (["spark-submit", "job.py"], {}, "is not the Python that runs onceproof"),
        (["/bin/sh", "-c", "python job.py"], {}, "is not the Python that runs onceproof"),
    ],
)
def test_only_a_job_in_our_python_without_a_spark_home_is_started_so(
    home: Path, command: list[str], env: dict[str, str], why: str | None
) -> None:
    found = spark_home.why_not(command, env, home)
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


@pytest.mark.parametrize(
    ("word", "env"),
    [
        ("-XX:+UseG1GC", {}),
        ("-XX:-UseParallelGC", {}),
        ("@/etc/options", {}),
        ("-XX:Flags=flags", {}),
        ("-Da=b", {"JAVA_TOOL_OPTIONS": "-XX:+UseZGC"}),
    ],
)
def test_a_collector_that_the_job_chooses_stays(word: str, env: dict[str, str]) -> None:
    assert quick(["/usr/bin/java", word, "Main"], env) == ["/usr/bin/java", word, "Main"]


def test_a_job_without_a_collector_gets_the_serial_one() -> None:
    assert quick(["/usr/bin/java", "-cp", "x", "Main"], {})[:2] == ["/usr/bin/java", "-XX:+UseSerialGC"]


@pytest.mark.parametrize(
    ("argv", "env", "why"),
    [
        (("pyspark-shell",), {}, None),
        (("--conf", "spark.app.name=x", "--master", "local[2]", "pyspark-shell"), {}, None),
        (("--packages", "a:b:1", "pyspark-shell"), {}, "brings files or jars of its own"),
        (("--jars=x.jar", "pyspark-shell"), {}, "brings files or jars of its own"),
        (("--conf", "spark.jars.packages=a:b:1", "pyspark-shell"), {}, "(spark.jars.packages)"),
        (("--conf", "spark.jars=x.jar", "pyspark-shell"), {}, "brings files or jars of its own (spark.jars)"),
        (("--master", "spark://a:1", "pyspark-shell"), {}, "run on a cluster (spark://a:1)"),
        (("--conf", "spark.master=yarn", "pyspark-shell"), {}, "run on a cluster (yarn)"),
        (("pyspark-shell",), {"MASTER": "spark://b:1"}, "run on a cluster (spark://b:1)"),
        (("job.py",), {}, "something else than a JVM for PySpark"),
    ],
)
def test_which_jobs_cannot_be_kept(argv: tuple[str, ...], env: dict[str, str], why: str | None) -> None:
    found = kept.cannot_be_kept(Request(argv, "/", env, 1, ()))
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


class WithoutJvms(Owner):
    """Refuses to start a JVM, as for a program that may not be executed."""

    def start(self, name: str, argv: Sequence[str | Path], **options: Any) -> Service:
        if name.startswith("jvm-"):
            raise EnvironmentProblem(f"cannot start {name}: Permission denied")
        return super().start(name, argv, **options)


@pytest.mark.parametrize(
    ("kind", "why"), [(WithoutJvms, "cannot start jvm-1: Permission denied"), (Owner, "waiting for the driver's JVM")]
)
def test_a_jvm_to_keep_that_does_not_start_is_recorded_and_leaves_no_pipe(
    kind: type[Owner], why: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_START_S", 0.3)
    timeline = Timeline(tmp_path / "events.jsonl")
    with kind() as owner:
        driver = owner.start("driver", ["sleep", "60"], log=tmp_path / "driver.log")
        keeper = kept.Keeper(
            tmp_path,
            owner,
            CheckpointGate.__new__(CheckpointGate),  # nothing is killed, so no write is fenced
            driver_of=lambda session: driver,
            start_of_driver=lambda: 0,
            log_of=lambda start: tmp_path / f"driver-{start}.log",
        )
        open_before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
        answer, start = keeper.join(Request(("pyspark-shell",), str(tmp_path), dict(os.environ), os.getpid(), ()))
        assert set(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208
        assert answer == {"do": "scripts"}
        assert (start.start, start.tier, start.how) == (0, "real", "scripts") and why in str(start.why)
        launcher = Launcher(tmp_path / "jvm", timeline, start_of_driver=lambda: 0, keeper=keeper)
        launcher.start()
        assert Job(launcher, tmp_path).submit("pyspark-shell")[0] == "scripts unset  pyspark-shell"
        assert [one.how for one in launcher.starts] == ["scripts"] and launcher.starts[0].why is not None
        launcher.close()
    timeline.close()
