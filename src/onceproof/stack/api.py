"""What a stack offers, whichever provider runs it. Faults, the feed and the collectors see only this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from onceproof.instruments.proxy.frames import Reply
    from onceproof.instruments.proxy.rules import Rule
    from onceproof.stack.spark_settings import Cluster

Stream = Literal["upstream", "downstream"]


@dataclass(frozen=True)
class Leadership:
    """Who leads a partition, as the cluster (not the old leader) sees it."""

    broker: int
    epoch: int


@dataclass(frozen=True)
class Replicas:
    """Of a partition, as the cluster sees it at a moment."""

    leader: int
    """-1: nobody leads it, it is offline."""
    in_sync: frozenset[int]


class Proxy(Protocol):
    """One Toxiproxy proxy in front of one listener. Every call has an HTTP time-out and recovers from a wedged proxy by recreating it."""

    name: str
    listen: str
    """``127.0.0.1:port`` that clients are told."""
    upstream: str
    """``127.0.0.1:port`` of the real listener."""

    def cut(self) -> None:
        """Close every connection and refuse new ones."""

    def turn_away(self) -> None:
        """As `cut`; but a protocol proxy resets only who connects or uses a connection that stands, and tells of it."""

    def add_toxic(self, kind: str, stream: Stream, **attributes: int) -> None:
        """Put a toxic (``timeout``, ``limit_data``, ``bandwidth``, ...) on one direction; its name is ``kind_stream``."""

    def heal(self) -> None:
        """Enabled, and no toxics. Idempotent."""


class Kafka(Protocol):
    client_bootstrap: str
    """Addresses of the proxied listeners: what the pipeline is given."""
    harness_bootstrap: str
    """Addresses of the listeners that no fault cuts: what the feed and the collectors use."""
    brokers: tuple[int, ...]

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None: ...

    def alter_topic(self, name: str, config: Mapping[str, str]) -> Mapping[str, str | None]:
        """Set these topic settings; returns what they were before (None: not set)."""

    def restore_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Put back what `alter_topic` returned. Idempotent."""

    def leader(self, topic: str, partition: int, *, asking_not: int | None = None) -> Leadership:
        """Current leader; with ``asking_not`` the question goes to another broker than that one."""

    def replicas(self, topic: str, partition: int, *, asking_not: int | None = None) -> Replicas | None:
        """Who leads it now, if anybody, and who is in sync; None while nobody answers."""

    def log_folders(self, topic: str) -> Mapping[int, Path]:
        """Partition -> folder of the leader's log of it, readable from here; without those whose files are out of reach."""

    def client_proxy(self, broker: int) -> Proxy: ...

    def replication_proxy(self, broker: int) -> Proxy:
        """In front of the broker's replication listener (three brokers only)."""

    def controller_proxy(self, broker: int) -> Proxy:
        """On the broker's own link to the controller (three brokers only)."""

    def kill_broker(self, broker: int) -> None:
        """SIGKILL, and wait until the process is gone."""

    def restart_broker(self, broker: int) -> None:
        """Start it again on its old directory, and wait until it answers and is back in every ISR."""

    def is_running(self, broker: int) -> bool: ...

    @property
    def controller(self) -> int:
        """Its node, which kill, restart, pause and resume take too; a single node is its own."""

    def pid(self, broker: int) -> int: ...

    def pause_broker(self, broker: int) -> None:
        """SIGSTOP."""

    def resume_broker(self, broker: int) -> None:
        """SIGCONT, and wait until it is back in every ISR. Idempotent."""

    def quorum_epoch(self) -> int:
        """Epoch in which the controller leads the metadata quorum, from its own files."""


class Postgres(Protocol):
    client_uri: str
    """libpq URI through the proxy, without the password: that is in ``passfile``, named by PGPASSFILE."""
    jdbc_url: str
    passfile: Path
    user: str
    database: str
    password: str
    """Of the pipeline's user. It goes into the job's environment where the scenario says so, and is never written down."""
    harness_conninfo: str
    """libpq conninfo of the superuser, straight to the server: for the harness only. Never written down."""
    proxy: Proxy

    def kill(self) -> None:
        """SIGKILL the postmaster and every backend at once: the server crashes."""

    def stop(self) -> None:
        """A fast shutdown, as by an administrator; backends are told (57P01)."""

    def restart(self) -> None:
        """Start it again on its folder, after recovery if it crashed, and wait until it takes connections. Idempotent."""

    def is_running(self) -> bool: ...


class Spark(Protocol):
    """A standalone Spark (`onceproof.stack.spark`)."""

    conf: Cluster

    @property
    def master_url(self) -> str: ...

    def pids(self) -> list[int]:
        """Every process below the workers: executors, and the Python workers of their tasks."""


class FrameRules(Protocol):
    """The protocol proxies of the pipeline's routes (`onceproof.stack.toxiproxy.framed`)."""

    def arm(self, service: Literal["kafka", "postgres"], rule: Rule) -> None: ...

    def disarm(self, service: Literal["kafka", "postgres"], rule: Rule) -> None:
        """It stops nothing more, and lets go what it holds. Idempotent."""

    def listen(self, service: Literal["kafka", "postgres"], ear: list[Reply]) -> None:
        """From now on errors of that service, and its answers to Produce, are added to ``ear``."""

    def unlisten(self, service: Literal["kafka", "postgres"], ear: list[Reply]) -> None:
        """Idempotent."""


class Stack(Protocol):
    # Properties, so that a provider may declare its own, narrower types.
    @property
    def kafka(self) -> Kafka: ...

    @property
    def postgres(self) -> Postgres | None: ...

    @property
    def frames(self) -> FrameRules | None:
        """None in a run in which no fault reads frames."""

    @property
    def spark(self) -> Spark | None:
        """None where the job's tasks run in its driver."""

    spark_class_path: tuple[Path, ...]
    """Jars of Spark's Kafka connector, for ``SPARK_DIST_CLASSPATH``."""

    files: Path
    """Folder of the outputs that are files: each has a folder of its own in it."""

    postgres_driver: Path
    """Jar of Postgres' JDBC driver, for jobs that name it (`{postgres.driver}`)."""

    spark_archive: Path | None
    """Spark's and the connector's classes (AppCDS), for a driver that starts quickly; None where there is none."""

    checkpoint_jar: Path | None
    """The checkpoint file system, for the job's class path; None where it does not fit the Spark in use."""

    def versions(self) -> dict[str, Any]:
        """Component -> version, hashes where a component was built here."""

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a service died that no fault killed."""

    def check_bypass(self, pids: list[int]) -> list[str]:
        """Established connections of these processes to a listener behind a proxy that do not go through it, as sentences."""
