"""A job in a container of an image, with the faults of a driver. `tox -e compose` runs these tests, see `test_compose_real`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.waiting import wait_until
from onceproof.cli.app import app
from onceproof.run import run
from onceproof.scenario_files.load import load_file
from onceproof.stack.compose.daemon import client
from onceproof.stack.compose.images import local_images
from onceproof.stack.compose.profile import ComposeProfile
from onceproof.stack.compose.project import RUN
from onceproof.stack.external.profile import StackProfile

from ...gate import assert_as_expected

pytestmark = [
    *(pytest.mark.real, pytest.mark.full, pytest.mark.timeout(600)),
    pytest.mark.usefixtures("built"),
]


def in_an_image(base: str, folder: Path) -> Path:
    path = folder / "mine.yaml"
    image = local_images()["ONCEPROOF_SPARK_IMAGE"]
    path.write_text(f"base: {base}\nabout: In an image.\npipeline: {{image: '{image}'}}\n")
    return path


def drivers() -> list[str]:
    """Containers that runs started and that belong to no compose project."""
    return [one.name for one in client().containers.list(all=True, filters={"label": RUN}) if "-driver-" in one.name]


@pytest.mark.parametrize(
    ("base", "stack"),
    [
        ("effectively-once", None),  # killed at exact points, and restarted
        ("zombie-driver-unfenced", None),  # stopped, resumed, and two at a time
        ("stopped-in-batch-naive", None),  # asked to end by SIGTERM
        ("staged-sink", ComposeProfile.planned()),  # everything is in containers
    ],
)
def test_a_driver_in_a_container_is_struck_like_any_other(
    base: str, stack: StackProfile | None, tmp_path: Path
) -> None:
    done = run(load_file(in_an_image(base, tmp_path), stack), runs_dir=tmp_path)
    assert_as_expected(base, done.verdict, done.run_dir)
    wait_until("the daemon to remove the containers", lambda: not drivers(), deadline_s=10)


def test_an_image_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: naive-append\nabout: No image.\npipeline: {image: 'no/such-image:1'}\n")
    done = CliRunner().invoke(app, ["run", str(path), "--runs", str(tmp_path)])
    said = " ".join(done.output.split())
    assert done.exit_code == 4 and "daemon of this machine does not have 'no/such-image:1'" in said, done.output
    assert "docker pull no/such-image:1" in said and "setting up the services" not in said


def test_cleanup_removes_the_driver_of_a_killed_run(tmp_path: Path) -> None:
    path = in_an_image("naive-append", tmp_path)
    command = [sys.executable, "-m", "onceproof"]
    with (tmp_path / "out").open("w") as out:
        killed = subprocess.Popen([*command, "run", str(path), "--runs", str(tmp_path)], stdout=out, stderr=out)
        try:
            wait_until("the job to start", lambda: "job started" in (tmp_path / "out").read_text(), deadline_s=120)
            assert len(drivers()) == 1
        finally:
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
    assert len(drivers()) == 1, "nobody was there to remove it"
    subprocess.run([*command, "cleanup"], capture_output=True, check=True)
    wait_until("the daemon to remove the container", lambda: not drivers(), deadline_s=10)
