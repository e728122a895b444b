"""``--stack NAME``, ``up`` and ``down`` with bad input: the exit code, the cause and the fix, and nothing is left behind."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import EnvironmentProblem
from onceproof.cli.app import app
from onceproof.qualify import session
from onceproof.qualify.cells import Cell
from onceproof.qualify.page import page
from onceproof.scenario.points import Point
from onceproof.scenario_files.shipped import find
from onceproof.stack.compose import daemon
from onceproof.stack.profiles import profile_of

PROFILE = """
[stack.staging]
provider = "external"
chaos = "allowed"
kafka = {bootstrap = "127.0.0.1:1"}
postgres = {uri = "postgresql://tester@127.0.0.1:1/shop", password = "${TEST_PG_PASSWORD}"}
"""
COMMANDS = (["run", "naive-append"], ["qualify", "naive-append"], ["plan", "naive-append"])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, a state folder of its own, and no container daemon."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("TEST_PG_PASSWORD", "postgres-secret")
    daemon.compose_command.cache_clear()
    yield work
    daemon.compose_command.cache_clear()


def refused(words: list[str], code: int) -> str:
    """What the command prints, on one line. It must end with this exit code, and neither crash nor wait."""
    began = time.monotonic()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    assert "onceproof itself failed" not in done.output and "Traceback" not in done.output
    assert time.monotonic() - began < 30
    return re.sub(r"\s+", " ", done.output)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "--stack needs a file onceproof.toml"),
        (PROFILE.replace("staging", "stagingg"), "there is no [stack.staging]"),
        (PROFILE.replace('chaos = "allowed"', ""), "chaos is missing"),
        (PROFILE.replace("TEST_PG_PASSWORD", "TEST_UNSET"), "the environment variable TEST_UNSET is not set"),
        (PROFILE.replace('"${TEST_PG_PASSWORD}"', '"written-here"'), "postgres.password is written in the file"),
        (PROFILE.replace("127.0.0.1:1/", "127.0.0.1:1/a?b=c&d"), "postgres"),
    ],
)
def test_a_wrong_profile_is_a_mistake_of_the_user_and_nothing_starts(
    here: Path, words: list[str], text: str | None, said: str
) -> None:
    if text is not None:
        (here / "onceproof.toml").write_text(text)
    output = refused([*words, "--stack", "staging"], 2)
    assert said in output and "written-here" not in output
    assert [path.name for path in here.iterdir()] == ([] if text is None else ["onceproof.toml"])


def test_cleanup_of_an_unknown_stack(here: Path) -> None:
    (here / "onceproof.toml").write_text(PROFILE)
    assert "did you mean 'staging'?" in refused(["cleanup", "--stack", "stagin"], 2)


def test_a_continued_qualification_keeps_its_stack(here: Path) -> None:
    (here / "onceproof.toml").write_text(PROFILE)
    directory, progress = session.begin(
        find("foreign-jdbc-append"), runs_dir=here, seed=None, profile=profile_of("staging")
    )
    assert progress.stack == "staging" and "postgres-secret" not in (directory.path / "qualification.json").read_text()
    assert "staging" in page(directory, progress)
    command = directory.command_of(Cell("crash-driver", "crash", Point.AFTER_SINK_COMMIT), "my stack")
    assert command == f"onceproof run {directory.cells}/crash-driver.yaml --stack 'my stack'"
    output = refused(["qualify", "--continue", str(directory.path), "--stack", "compose"], 2)
    assert "it began on staging" in output


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("unix:///nowhere/docker.sock", "no container daemon answers"),
        ("tcp://127.0.0.1:1", "no container daemon answers"),
        ("nonsense://x", "DOCKER_HOST"),
        ("tcp://", "DOCKER_HOST"),
    ],
)
@pytest.mark.parametrize(
    "words", [["run", "naive-append", "--stack", "compose"], ["up"], ["down"]], ids=lambda words: words[0]
)
def test_a_daemon_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, words: list[str], address: str, said: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    output = refused(words, 4)
    assert said in output and "DOCKER_HOST" in output


def test_a_daemon_that_this_user_may_not_use(tmp_path: Path) -> None:
    """A socket of another user. Root may use any, unless it is without that capability."""
    root = os.geteuid() == 0
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if root else []
    if root and shutil.which(without[0]) is None:
        pytest.skip("setpriv is missing: root may use every socket")
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:  # tmp_path is too long for a socket
        path = Path(folder) / "docker.sock"
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600 if root else 0o000)
        if root:
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        variables = {**os.environ, "DOCKER_HOST": f"unix://{path}"}
        command = [*without, sys.executable, "-m", "onceproof", "run", "naive-append", "--stack", "compose"]
        done = subprocess.run(
            command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 4, done.stderr
    assert "this user may not use the container daemon" in done.stderr and "usermod -aG docker" in done.stderr


def test_no_compose_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="there is no compose command") as error:
        daemon.compose_command()
    assert "docker-compose-plugin" in str(error.value.hint) and error.value.exit_code == 4


@pytest.mark.parametrize(
    ("was", "now", "said", "setting"),
    [
        ("127.0.0.1:1\"}", "127.0.0.1:{silent}\"}", "cannot be reached within 2 s", "kafka.bootstrap"),
        ("", "", "cannot be reached within 2 s", "kafka.bootstrap"),
        ("127.0.0.1:1\"}", "no-such-host.invalid:9092\"}", "cannot be resolved", "kafka.bootstrap"),
    ],
    ids=["silent", "closed", "name"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["run", "qualify"])
def test_a_cluster_that_cannot_be_reached(
    here: Path, tmp_path: Path, command: str, was: str, now: str, said: str, setting: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        text = PROFILE.replace(was, now.replace("{silent}", str(silent.getsockname()[1])))
        (here / "onceproof.toml").write_text(text.replace('"allowed"', '"allowed"\nconnect_s = 2'))
        output = refused([command, "foreign-jdbc-append", "--stack", "staging"], 4)
    assert said in output and setting in output
    assert [*(tmp_path / "state" / "external").glob("*")] == [], "no journal remains"
