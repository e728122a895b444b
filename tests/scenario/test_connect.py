"""A scenario whose job is a client of Spark Connect: what starts it, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.scenario_files.load import LoadedScenario, load_file


def loaded(folder: Path, more: str, base: str = "naive-append") -> LoadedScenario:
    path = folder / "mine.yaml"
    path.write_text(f"base: {base}\n{more}", encoding="utf-8")
    return load_file(path)


def test_the_command_is_started_as_the_client_of_a_server_with_these_settings(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, "pipeline: {connect: {conf: {spark.sql.shuffle.partitions: '2'}}}\n").scenario
    words = scenario.job_command()
    assert words[:3] == ["{python}", "-m", "onceproof.pipeline.connect"]
    assert words[3:8] == ["--conf", "spark.master=local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--"]
    assert words[8:] == scenario.pipeline.command


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("pipeline: {connect: {conf: {spark.connect.grpc.binding.port: '15002'}}}", "set by onceproof"),
        ("pipeline: {connect: {conf: {spark.master: 'spark://h:7077'}}}", r"use local\[N\]"),
        ("pipeline: {connect: {}}\nstack: {spark: {}}", "not on the cluster of stack.spark"),
        ("chaos: [{fault: crash, target: client, at: {batch: 2, point: after-sink-commit}}]", "set pipeline.connect"),
        ("chaos: [{fault: crash, target: server, at: {batch: 2, point: after-sink-commit}}]", "set pipeline.connect"),
        (
            "pipeline: {connect: {}}\nchaos: [{fault: crash, target: client, at: {batch: 2, point: in-tasks}}]",
            "crash of client cannot be placed at 'in-tasks'",
        ),
    ],
)
def test_what_cannot_work_is_refused(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=says):
        loaded(tmp_path, f"{more}\n")


def test_a_function_cannot_be_a_client(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="callable is called in the driver"):
        loaded(tmp_path, "pipeline: {connect: {}}\n", base="callable-append")
