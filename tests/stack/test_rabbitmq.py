"""Finding RabbitMQ; brokers that are missing give exit code 4 and a hint how to get them. Starts nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import EnvironmentProblem
from onceproof.cli.app import app
from onceproof.scenario_files.shipped import find
from onceproof.stack.amqp import rabbitmq
from onceproof.stack.doctor import examine
from onceproof.stack.fetch import maven

SHIPPED = find("amqp-redelivery-reorders")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the only one on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(rabbitmq, "_DEBIAN", tmp_path / "no" / "rabbitmq-server")
    return folder


def test_it_is_found_on_the_path_with_its_version(nowhere: Path, tmp_path: Path) -> None:
    server = executable(tmp_path / "rabbitmq_server-4.1.2" / "sbin" / "rabbitmq-server")
    (nowhere / "rabbitmq-server").symlink_to(server)
    executable(nowhere / "erl")
    executable(nowhere / "epmd")
    found = rabbitmq.find()
    assert (found.version, found.server, found.epmd) == ("4.1.2", nowhere / "rabbitmq-server", nowhere / "epmd")


def test_debians_wrapper_which_changes_the_user_is_not_used(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = executable(tmp_path / "rabbitmq-script-wrapper")
    (nowhere / "rabbitmq-server").symlink_to(wrapper)
    with pytest.raises(EnvironmentProblem, match="not installed"):
        rabbitmq.find()
    monkeypatch.setattr(rabbitmq, "_DEBIAN", executable(tmp_path / "rabbitmq_server-3.10.8" / "rabbitmq-server"))
    executable(nowhere / "erl")
    with pytest.raises(EnvironmentProblem, match=r"Erlang's epmd is not on the PATH"):
        rabbitmq.find()
    executable(nowhere / "epmd")
    assert rabbitmq.find().version == "3.10.8"


def test_its_settings_are_private_and_it_listens_only_on_loopback(tmp_path: Path) -> None:
    rabbitmq._write_settings(tmp_path, 20001, "secret")
    settings = tmp_path / "rabbitmq.conf"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert "listeners.tcp.1 = 127.0.0.1:20001" in settings.read_text()
    found = rabbitmq.RabbitMq(Path("/s"), Path("/e"), Path("/bin/erl"), "1")
    given = rabbitmq._environment(tmp_path, found, 20001, 20002, 20003)
    assert not [value for value in given.values() if "secret" in value]
    assert given["ERL_EPMD_ADDRESS"] == "127.0.0.1" and "{127,0,0,1}" in given["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    assert all(str(tmp_path) in given[name] for name in given if name.endswith(("FILE", "BASE", "DIR", "HOME")))


def ran(tmp_path: Path, stack: str = "{amqp: {}}") -> tuple[int, str]:
    path = tmp_path / SHIPPED.name
    path.write_text(f"base: {SHIPPED}\nstack: {stack}\n")
    done = CliRunner().invoke(app, ["run", str(path), "--runs", str(tmp_path / "runs")])
    return done.exit_code, " ".join(done.output.split())


def test_a_run_on_rabbitmq_that_is_not_installed_says_how_to_get_it(nowhere: Path, tmp_path: Path) -> None:
    code, output = ran(tmp_path, "{amqp: {broker: rabbitmq}}")
    assert code == 4 and "RabbitMQ is not installed" in output and "apt-get install rabbitmq-server" in output, output
    (check,) = [check for check in examine() if check.name.startswith("RabbitMQ")]
    assert check.ok and "not installed" in check.found, "RabbitMQ is optional"


def test_a_run_without_java_says_how_to_get_it(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, output = ran(tmp_path)
    assert code == 4 and "no Java found" in output and "install Java 17 or 21" in output, output


def test_a_run_whose_broker_cannot_be_fetched_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program listens at that address, as if there were no network."""
    monkeypatch.setenv("ONCEPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))  # jgo's own settings are there
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(maven, "DEFAULT_REMOTE_REPOS", {"central": "http://127.0.0.1:9/maven2"})
    code, output = ran(tmp_path)
    assert code == 4, output
    assert "fetching qpid-broker" in output and "cannot fetch" in output and "check the network" in output, output
    assert not list((tmp_path / "cache").glob("qpid-broker-*")), "nothing that looks finished"
