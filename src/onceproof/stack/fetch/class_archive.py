"""Makes the class archive of Kafka, which the JVM maps into memory (AppCDS, JEP 350): halves the CPU time of a broker's start.

The archive is made once, by a temporary broker that serves one transactional producer and then exits normally. It fits only
exactly this Java and class path; a JVM ignores an archive that does not fit, so the worst that can happen is a slower start.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.java import Java
from onceproof.stack.fetch.progress import Progress
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.kafka.node import KafkaNode, KafkaProgram
from onceproof.stack.kafka.settings import HOST, ListenerName, Node
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease

FILE = "kafka.jsa"

_START_DEADLINE_S = 120.0
#: Writing the archive of 50 MB at exit took 2 s.
_DUMP_DEADLINE_S = 60.0
_TRANSACTION_TIMEOUT_S = 20.0


def recipe(java: Java, kafka: str) -> str:
    """Everything that the archive depends on, as text. ``kafka`` identifies the jars and their folder."""
    return f"{java.path.resolve()} {java.version} {kafka}"


def maker(java: Java, jars: tuple[Path, ...]) -> Callable[[Path, Progress], None]:
    """A function that writes `FILE` into a folder."""

    def make(folder: Path, progress: Progress) -> None:
        with progress.doing("preparing Kafka's classes for a quick start", steps=2) as step, Owner() as owner:
            node = _node(owner, KafkaProgram(java, jars))
            node.format()
            node.start(f"-XX:ArchiveClassesAtExit={folder / FILE}")
            step()
            _init_a_transactional_producer(node, progress)
            _stop(node, folder / FILE)
            step()

    return make


def _node(owner: Owner, program: KafkaProgram) -> KafkaNode:
    ports = dict(zip(ListenerName, lease(owner, len(ListenerName)), strict=True))
    voter = f"1@{HOST}:{ports[ListenerName.CONTROLLER]}"
    node = Node(1, ("broker", "controller"), ports, voter)
    folder = owner.scratch / "kafka"
    return KafkaNode(node, brokers=1, folder=folder, log=owner.scratch / "kafka.log", owner=owner, program=program)


def _init_a_transactional_producer(node: KafkaNode, progress: Progress) -> None:
    """So that the archive has the classes of the transaction coordinator too, and not only those of a broker's start."""
    address = f"{HOST}:{node.node.ports[ListenerName.HARNESS]}"
    admin = AdminClient(client_config(address))

    def abandon() -> None:
        node.service.check_running()
        progress.check()

    wait_until(
        "the archiving broker to answer",
        lambda: admin.list_topics(timeout=1.0).brokers,
        deadline_s=_START_DEADLINE_S,
        ignoring=KafkaException,
        abandon=abandon,
    )
    producer = Producer({**producer_config(address), "transactional.id": "onceproof-archive"})
    try:
        producer.init_transactions(_TRANSACTION_TIMEOUT_S)
    except KafkaException as error:
        raise EnvironmentProblem(f"the archiving broker refused a transaction: {error}") from error


def _stop(node: KafkaNode, archive: Path) -> None:
    # SIGTERM, not the SIGKILL that ends a run's brokers: the JVM writes the archive when it exits.
    os.kill(node.service.pid, signal.SIGTERM)
    node.service.wait(_DUMP_DEADLINE_S)
    if not archive.is_file():
        raise EnvironmentProblem(f"the JVM wrote no class archive; its last output: {node.service.log_tail(5)}")
