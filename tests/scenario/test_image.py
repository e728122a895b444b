"""A job that runs in a container: what it cannot be combined with, and what its command shows."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.pipeline.image import JobImage
from onceproof.pipeline.program import Program
from onceproof.pipeline.spark_conf import job_environment
from onceproof.scenario_files.load import load_file
from onceproof.stack.compose import daemon
from onceproof.stack.spark_settings import ContainerCluster


@pytest.mark.parametrize(
    ("base", "more", "says"),
    [
        ("callable-append", "", r"pipeline\.callable starts programs of this machine"),
        ("ack-lost-duplicates", "", "image is for a Spark job"),
        ("naive-append", ", connect: {}", r"pipeline\.connect starts programs of this machine"),
        ("upgraded-sum-continued", "", "the proof of an upgrade compares processes of this machine"),
    ],
)
def test_what_does_not_start_the_command_is_refused_at_its_line(
    base: str, more: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"base: {base}\nabout: in an image\npipeline: {{image: mine:1{more}}}\n")
    with pytest.raises(ScenarioError, match=rf"mine\.yaml:3:.*{says}"):
        load_file(path)


def test_submit_and_an_image_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    stack = f"{{spark: {{master: 'spark://h:7077', submit: ['{sys.executable}']}}}}"
    path.write_text(f"base: naive-kafka-sink\nabout: in an image\nstack: {stack}\npipeline: {{image: mine:1}}\n")
    with pytest.raises(ScenarioError, match=r"stack\.spark\.submit starts programs of this machine"):
        load_file(path)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon.shutil, "which", lambda name: f"/usr/bin/{name}")
    daemon.docker_command.cache_clear()


@pytest.mark.usefixtures("docker")
def test_the_words_of_the_container_name_variables_and_hold_no_value(tmp_path: Path) -> None:
    code = tmp_path / "code, old"
    code.mkdir()
    image = JobImage("mine:1", "abc", [tmp_path / "run"], [code, tmp_path / "gone"])
    program = image.in_container(2, Program(["python3", "job.py"], {"DB_PASSWORD": "secret", "PATH": "/image/bin"}))
    words = list(program.command)
    assert words[0] == "/usr/bin/docker" and words[-3:] == ["mine:1", "python3", "job.py"]
    assert "DB_PASSWORD" in words and "secret" not in " ".join(words)
    assert program.env["DB_PASSWORD"] == "secret" and program.env["PATH"] == "/image/bin"
    assert words[words.index("--name") + 1] == "onceproof-abc-driver-2"
    mounted = {word for before, word in pairwise(words) if before == "--mount"}
    assert f'type=bind,"source={code}","target={code}",readonly' in mounted, (
        "a comma separates fields, unless it is quoted"
    )
    assert f'type=bind,"source={tmp_path}/run","target={tmp_path}/run"' in mounted
    assert not any("gone" in word for word in mounted)


def test_the_image_and_not_the_shell_sets_what_programs_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/java/of/this/machine")

    def made(**more: object) -> dict[str, str]:
        folder = Path("/tmp/scratch")
        return job_environment(
            class_path=(),
            archive=None,
            scratch=folder,
            passfile=None,
            failpoints=None,
            own={},
            **{"secrets": [], **more},
        )  # type: ignore[arg-type]

    inherited = {"PATH", "HOME", "JAVA_HOME", "PYSPARK_PYTHON"}
    assert inherited <= made().keys()
    assert not inherited & made(image=True).keys()
    assert made(image=True)["PYSPARK_DRIVER_PYTHON"] == "python3", "spark-submit starts the program with it"
    cluster = ContainerCluster("spark://127.0.0.1:7077", Path("/tmp/spark.args"), 512, "127.0.0.2")
    on_cluster = made(image=True, cluster=cluster)
    assert on_cluster["PYSPARK_DRIVER_PYTHON"] == on_cluster["PYSPARK_PYTHON"] == "python3"
    assert on_cluster["SPARK_LOCAL_IP"] == "127.0.0.2"
