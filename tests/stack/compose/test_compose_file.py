"""``compose/compose.yaml``: the settings of the embedded stack, loopback only, and nothing that needs a registry to be read."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from onceproof.base.errors import UsageError
from onceproof.cli.app import app
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.compose.profile import NAME, PORTS, ComposeProfile
from onceproof.stack.compose.project import Project, compose_file
from onceproof.stack.external import journal
from onceproof.stack.external.journal import Created, ObjectJournal
from onceproof.stack.external.profile import load_profile
from onceproof.stack.kafka import settings
from onceproof.stack.profiles import profile_of

NODES = {"one": ("kafka",), "three": ("controller", "broker-1", "broker-2", "broker-3")}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    document = YAML(typ="safe").load(compose_file().read_text(encoding="utf-8"))
    assert "version" not in document, "it is obsolete, and newer compose commands warn about it"
    found: dict[str, Any] = document["services"]
    return found


def variable(setting: str) -> str:
    """The variable from which the images read a setting of ``server.properties``."""
    return "KAFKA_" + setting.upper().replace("_", "__").replace("-", "___").replace(".", "_")


@pytest.mark.parametrize(("profile", "nodes"), NODES.items())
def test_the_brokers_have_the_settings_of_the_embedded_stack(
    services: dict[str, Any], profile: str, nodes: tuple[str, ...]
) -> None:
    assert tuple(name for name, each in services.items() if profile in each["profiles"] and name != "postgres") == nodes
    node = settings.Node(1, ("broker",), {}, "1@127.0.0.1:1")
    embedded = settings.server_properties(node, brokers=1 if profile == "one" else 3, data=compose_file())
    wanted = dict(line.split("=", 1) for line in embedded.splitlines())
    own = ("listener", "advertised", "controller.quorum.voters", "log.dirs", "node.id", "process.roles", "inter.broker")
    shared = {key for key in wanted if not key.startswith(own) and "listener" not in key}
    of_share_groups = {key for key in shared if "share" in key}
    for name in nodes:
        environment = services[name]["environment"]
        assert {key: environment.get(variable(key)) for key in shared - of_share_groups} == {
            key: wanted[key] for key in shared - of_share_groups
        }


def test_every_published_port_is_on_loopback_and_can_be_chosen(services: dict[str, Any]) -> None:
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_0-9]+:-\d+\}:\d+", port) for port in ports), ports
    assert {name for port in ports for name in re.findall(r"\$\{([A-Z_0-9]+)", port)} == set(PORTS)


def test_every_image_can_be_replaced_and_every_service_has_a_health_check(services: dict[str, Any]) -> None:
    for each in services.values():
        assert re.fullmatch(r"\$\{ONCEPROOF_[A-Z]+_IMAGE:-[a-z/-]+:[\d.]+\}", each["image"])
        assert each["healthcheck"]["test"]


def test_the_nodes_of_kafka_know_each_other_in_their_own_network_alone(services: dict[str, Any]) -> None:
    """Otherwise a broker that was disconnected from it would find another way to the others."""
    names = {"controller"}
    for broker in NODES["three"][1:]:
        networks = services[broker]["networks"]
        assert networks["clients"] == {}, "without a name there"
        names.update(networks["cluster"]["aliases"])
    assert services["controller"]["networks"] == ["cluster"]
    texts = [text for name in NODES["three"] for text in services[name]["environment"].values()]
    used = {host for text in texts for host in re.findall(r"(?:INTERNAL://|9@)([a-z][a-z0-9-]*)", text)}
    assert used == names


def test_faults_may_kill_and_disconnect_the_containers() -> None:
    profile = profile_of("compose")
    assert isinstance(profile, ComposeProfile)
    for name in ("broker-crash", "postgres-crash", "naive-append", "broker-partition"):
        load_file(find(name), profile)


def test_faults_that_need_more_are_refused(tmp_path: Path) -> None:
    one_way = tmp_path / "one-way.yaml"
    fault = "{fault: partition, target: leader, leader_of: departures/0, from: cluster, lost: to-leader, at: {batch: 2, point: after-offset-log}}"
    one_way.write_text(f"base: broker-partition\nabout: One way.\nchaos:\n  - {fault}\n")
    for path, needs in (
        (one_way, "each direction of the links between brokers"),
        (find("unclean-election"), "the brokers' files"),
    ):
        with pytest.raises(UsageError, match=f"n/a on stack compose: it needs control of {needs}"):
            load_file(path, profile_of("compose"))


@pytest.mark.parametrize("by_hand", [False, True])
def test_cleanup_forgets_what_went_with_its_containers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_hand: bool
) -> None:
    """At first the daemon has the containers of the killed run. ``by_hand``: it also has those of `onceproof up`, elsewhere."""
    profile = SimpleNamespace(name=NAME, kafka=SimpleNamespace(bootstrap="127.0.0.1:39092"), postgres=None)
    monkeypatch.setattr("onceproof.stack.compose.cleanup.profile_of", lambda _project: profile)
    running = [SimpleNamespace(addresses=lambda: ["127.0.0.1:29092"])]
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(Project, "containers", lambda _project: [profile] if by_hand else [])
    monkeypatch.setattr("onceproof.stack.compose.cleanup.of_runs", lambda: running)
    monkeypatch.setattr(journal.Entry, "harness_is_alive", lambda _entry: False)
    killed = ObjectJournal("killed", NAME, "127.0.0.1:29092", "127.0.0.1:25432/postgres")
    others = ObjectJournal("elsewhere", "staging", "127.0.0.1:29092", "")
    for each in (killed, others):
        each.will_create(Created("topic", "onceproof-0123-orders"))
    words = ["cleanup", "--stack", "compose"]
    assert "`onceproof cleanup` removes them" in CliRunner().invoke(app, words).output and killed.path.exists()
    running.clear()
    said = "run killed left nothing: its containers, with Kafka at 127.0.0.1:29092, are gone\n"
    assert CliRunner().invoke(app, [*words, "--dry-run"]).output == said and killed.path.exists()
    assert CliRunner().invoke(app, words).output == said and not killed.path.exists()
    assert others.path.exists()


def test_the_name_is_not_for_a_profile(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onceproof.toml").write_text('[stack.compose]\nprovider = "compose"\nchaos = "allowed"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"\[stack\.compose\]: provider"):
        load_profile("compose")
    assert isinstance(profile_of("compose"), ComposeProfile), "the containers, whatever the file says"
