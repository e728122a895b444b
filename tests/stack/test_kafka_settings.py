"""The settings and the command line of a Kafka node."""

from __future__ import annotations

from pathlib import Path

from onceproof.stack.kafka.settings import (
    CONTROLLER_NAME,
    ListenerName,
    Node,
    hosts,
    jvm_argv,
    server_properties,
)

BROKER = Node(
    2,
    ("broker",),
    {ListenerName.CLIENT: 21001, ListenerName.INTERNAL: 21002, ListenerName.HARNESS: 21003},
    voter=f"9@{CONTROLLER_NAME}:21009",
    advertised={ListenerName.CLIENT: 22001, ListenerName.INTERNAL: 22002},
    controller_address="127.0.1.2",
)
CONTROLLER = Node(9, ("controller",), {ListenerName.CONTROLLER: 21009}, voter=f"9@{CONTROLLER_NAME}:21009")
SINGLE = Node(
    1,
    ("broker", "controller"),
    dict(zip(ListenerName, range(21001, 21005), strict=True)),
    voter="1@127.0.0.1:21004",
    advertised={ListenerName.CLIENT: 22001},
)


def settings_of(node: Node, brokers: int) -> dict[str, str]:
    text = server_properties(node, brokers=brokers, data=Path("/data"))
    return dict(line.split("=", 1) for line in text.splitlines())


def test_a_broker_advertises_its_proxies_and_its_own_harness_listener() -> None:
    settings = settings_of(BROKER, 3)
    assert settings["listeners"] == "CLIENT://127.0.0.1:21001,INTERNAL://127.0.0.1:21002,HARNESS://127.0.0.1:21003"
    assert (
        settings["advertised.listeners"]
        == "CLIENT://127.0.0.1:22001,INTERNAL://127.0.0.1:22002,HARNESS://127.0.0.1:21003"
    )
    assert settings["inter.broker.listener.name"] == "INTERNAL"


def test_a_broker_finds_the_controller_at_its_own_proxy_only() -> None:
    assert settings_of(BROKER, 3)["controller.quorum.voters"] == f"9@{CONTROLLER_NAME}:21009"
    assert f"127.0.1.2 {CONTROLLER_NAME}\n" in hosts(BROKER)
    # The controller must advertise the name too, not an address: brokers would connect to that and bypass the proxies.
    assert settings_of(CONTROLLER, 3)["advertised.listeners"] == f"CONTROLLER://{CONTROLLER_NAME}:21009"
    assert f"127.0.0.1 {CONTROLLER_NAME}\n" in hosts(CONTROLLER)


def test_the_replication_factor_is_three_with_three_brokers_and_one_with_one() -> None:
    for brokers, node, copies, in_sync in ((3, BROKER, "3", "2"), (1, SINGLE, "1", "1")):
        settings = settings_of(node, brokers)
        for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            assert settings[f"{topic}.replication.factor"] == copies
        assert settings["min.insync.replicas"] == settings["transaction.state.log.min.isr"] == in_sync
        assert settings["unclean.leader.election.enable"] == "false"


def test_a_single_node_does_not_advertise_its_controller() -> None:
    settings = settings_of(SINGLE, 1)
    assert settings["process.roles"] == "broker,controller"
    assert "CONTROLLER" not in settings["advertised.listeners"]
    assert settings["advertised.listeners"].startswith("CLIENT://127.0.0.1:22001,INTERNAL://127.0.0.1:21002")


def test_each_timeout_is_longer_than_what_it_supervises() -> None:
    settings = {name: int(value) for name, value in settings_of(BROKER, 3).items() if value.isdigit()}
    assert 3 * settings["broker.heartbeat.interval.ms"] < settings["broker.session.timeout.ms"]
    assert 3 * settings["replica.fetch.wait.max.ms"] < settings["replica.lag.time.max.ms"]
    assert settings["controller.quorum.request.timeout.ms"] <= settings["controller.quorum.fetch.timeout.ms"]


def test_every_listener_is_on_loopback() -> None:
    for node, brokers in ((BROKER, 3), (CONTROLLER, 3), (SINGLE, 1)):
        listeners = settings_of(node, brokers)["listeners"].split(",")
        assert all("://127.0.0.1:" in listener for listener in listeners)


def test_the_class_path_keeps_its_order() -> None:
    argv = jvm_argv(Path("/java"), [Path("/b.jar"), Path("/a.jar")], ["-Xlog:cds"], ["kafka.Kafka", Path("/conf")])
    assert argv[argv.index("-cp") + 1] == "/b.jar:/a.jar"
    assert argv[argv.index("-cp") + 2 :] == ["kafka.Kafka", "/conf"]
    assert "-Xlog:cds" in argv[: argv.index("-cp")]
