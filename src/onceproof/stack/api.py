"""The interface of a stack, whichever provider runs it. Faults, the feed and the collectors see only this."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from obstore.store import S3Store

    from onceproof.instruments.proxy.rules import Board
    from onceproof.stack.processes.owner import Service
    from onceproof.stack.spark_settings import AnyCluster

Stream = Literal["upstream", "downstream"]
FramedService = Literal["kafka", "postgres", "object-store"]
"""A service whose connections can pass through the protocol proxy."""
Lost = Literal["both", "to-it", "from-it"]
"""Which packets of a service are lost while it is cut off."""


@dataclass(frozen=True)
class Leadership:
    """The leader of a partition, as the cluster (not the old leader) sees it."""

    broker: int
    epoch: int


@dataclass(frozen=True)
class Replicas:
    """The replicas of a partition, as the cluster sees them at one moment."""

    leader: int
    """-1: the partition has no leader, it is offline."""
    in_sync: frozenset[int]


class Proxy(Protocol):
    """One Toxiproxy proxy in front of one listener. Calls have an HTTP time-out, and recreate a proxy that is wedged."""

    name: str
    listen: str
    """``127.0.0.1:port`` that clients connect to."""
    upstream: str
    """``127.0.0.1:port`` of the real listener."""

    def cut(self) -> None:
        """Close every connection and refuse new ones."""

    def reject_clients(self) -> None:
        """Like `cut`, but a protocol proxy resets only new connections and those in use, and records each reset."""

    def add_toxic(self, kind: str, stream: Stream, **attributes: int) -> None:
        """Put a toxic (``timeout``, ``limit_data``, ``bandwidth``, ...) on one direction; its name is ``kind_stream``."""

    def heal(self) -> None:
        """Enable the proxy and remove its toxics. Idempotent."""

    def redirect(self, upstream: str) -> None:
        """From now on lead clients to another listener, ``127.0.0.1:port``. Open connections are closed."""


@runtime_checkable
class NotesRequests(Protocol):
    """A protocol proxy, which sees whether a client needs an answer."""

    def note_requests(self) -> None:
        """From now on collect the clients that send a request, or wait for an answer already."""

    def requesting(self) -> set[str]:
        """Their addresses, ``HOST:PORT``."""


@dataclass(frozen=True)
class KafkaSecurity:
    """How the pipeline must connect to Kafka's proxies."""

    protocol: str = "PLAINTEXT"
    """``security.protocol``."""
    ca: str = ""
    """PEM file of the authority that issued the proxies' certificates; empty without TLS."""
    truststore: str = ""
    """The same as a PKCS12 file, with the password ``changeit``; empty without TLS."""
    properties: str = ""
    """File with the settings of a Java client, one ``name=value`` per line; empty without login and TLS."""
    librdkafka: str = ""
    """The same with the names of librdkafka's settings."""


class Kafka(Protocol):
    client_bootstrap: str
    """Addresses of the proxied listeners, for the pipeline."""
    client_security: KafkaSecurity
    harness_bootstrap: str
    """Addresses of the listeners that no fault cuts, for the feed and the collectors."""
    brokers: tuple[int, ...]

    def harness_client(self) -> dict[str, Any]:
        """librdkafka settings of a client of the harness, on those listeners: addresses, time-outs and credentials."""

    def is_own(self, topic: str) -> bool:
        """Whether a topic is the run's: neither the brokers' own nor another user's."""

    def await_markers(self) -> None:
        """Wait until the partitions have the markers of all transactions that have ended. Raises `WaitTimeout`.

        On a cluster whose coordinators cannot be asked it returns at once.
        """

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None: ...

    def alter_topic(self, name: str, config: Mapping[str, str]) -> Mapping[str, str | None]:
        """Set these topic settings; return their values before (None: not set)."""

    def restore_topic(self, name: str, config: Mapping[str, str | None]) -> None:
        """Put back what `alter_topic` returned. Idempotent."""

    def leader(self, topic: str, partition: int, *, asking_not: int | None = None) -> Leadership:
        """The current leader; ``asking_not`` names a broker that must not be asked."""

    def replicas(self, topic: str, partition: int, *, asking_not: int | None = None) -> Replicas | None:
        """The leader now, if there is one, and the replicas in sync; None while no broker answers."""

    def log_folders(self, topic: str) -> Mapping[int, Path]:
        """Partition -> folder of its leader's log; without partitions whose files cannot be read from here."""

    def update_log(self, topic: str, partition: int, folder: Path) -> object:
        """Bring a folder of `log_folders` up to date, if it is a copy and the leader answers."""

    def client_proxy(self, broker: int) -> Proxy: ...

    def replication_proxy(self, broker: int) -> Proxy:
        """The proxy in front of the broker's replication listener (three brokers only)."""

    def controller_proxy(self, broker: int) -> Proxy:
        """The proxy on the broker's own link to the controller (three brokers only)."""

    def isolate_broker(self, broker: int, lost: Lost = "both") -> str:
        """Cut the broker off from the other brokers and the controller, but not from its clients (three brokers only).

        Returns how, as a clause of evidence.
        """

    def rejoin_broker(self, broker: int) -> None:
        """Undo `isolate_broker`. Idempotent."""

    def kill_broker(self, broker: int) -> None:
        """Kill the broker (SIGKILL), and wait until its process is gone."""

    def restart_broker(self, broker: int) -> None:
        """Start it again on its old directory, and wait until it answers and is back in every ISR."""

    def is_running(self, broker: int) -> bool: ...

    @property
    def controller(self) -> int:
        """Node id of the controller; kill, restart, pause and resume accept it too. A single node is its own controller."""

    def pid(self, broker: int) -> int: ...

    def pause_broker(self, broker: int) -> None:
        """Stop the broker's process (SIGSTOP)."""

    def is_paused(self, broker: int) -> bool:
        """Whether it is stopped and can be resumed."""

    def resume_broker(self, broker: int) -> None:
        """Resume the broker (SIGCONT), and wait until it is back in every ISR. Idempotent."""

    def quorum_epoch(self) -> int:
        """Epoch in which the controller leads the metadata quorum, read from the controller's files."""


class Replica(Protocol):
    """A streaming replica of the run's Postgres, for reading."""

    client_uri: str
    """libpq URI without the password, as `Postgres.client_uri`."""
    service: Service

    def stop_following(self) -> None:
        """From now on it applies nothing more of what the primary commits, and answers with what it has."""

    def follow(self) -> None:
        """Undo `stop_following` and `fail_over`, and return when it has applied all that is committed. Idempotent.

        After a `fail_over` it is a new server, a copy of the one that was promoted.
        """

    def lag_bytes(self) -> int:
        """How much of the primary's log it has not applied."""

    def waiting_commits(self) -> int:
        """How many commits wait at the primary until this replica has them."""

    def fail_over(self) -> None:
        """Kill the primary, promote the replica, and lead clients to it. What it had not received is lost."""


class Postgres(Protocol):
    client_uri: str
    """libpq URI through the proxy, without the password: that is in ``passfile``, named by PGPASSFILE."""
    jdbc_url: str
    passfile: Path
    user: str
    database: str
    password: str
    """Password of the pipeline's user. It enters the job's environment if the scenario asks for it, and is never stored."""
    harness_conninfo: str
    """libpq conninfo of the superuser (external: of the profile's user), straight to the server: for the harness only. Never
    stored."""
    proxy: Proxy
    schema: str | None
    """The schema that holds all tables of the run; None if the whole database is the run's."""
    capture_name: str
    """Name of the logical slot and of the publication through which the run's commits are read."""
    replica: Replica | None
    """None unless the scenario has one."""

    def capture(self, tables: Collection[str]) -> None:
        """From now on record the commits to these tables. Called once, after ``pipeline.prepare.sql`` and before the job."""

    def kill(self) -> None:
        """SIGKILL the postmaster and every backend at once: the server crashes."""

    def stop(self) -> None:
        """A fast shutdown, as by an administrator; backends send their clients error 57P01."""

    def restart(self) -> None:
        """Start it again on its folder, after recovery if it crashed, and wait until it accepts connections. Idempotent."""

    def is_running(self) -> bool: ...

    def isolate(self) -> str:
        """Cut the server off from its clients; it runs on. Returns how, as a clause of evidence."""

    def rejoin(self) -> None:
        """Undo `isolate`, and return when the server can be reached. Idempotent."""


class Spark(Protocol):
    """A standalone Spark (`onceproof.stack.spark`; in containers: `onceproof.stack.compose.spark`), or an external cluster
    (`onceproof.stack.external.spark`)."""

    @property
    def conf(self) -> AnyCluster: ...

    def pids(self) -> list[int]:
        """Every process below the run's own workers: executors, and the Python workers of their tasks."""

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a process of the run's own cluster ended."""

    def isolate(self, pid: int) -> str | None:
        """Cut the executor with this process off from everything; it runs on. Returns how, as a clause of evidence.

        None if the process has ended.
        """

    def rejoin(self) -> None:
        """Undo every `isolate`. Idempotent."""

    def check_used(self, pids: Iterable[int]) -> None:
        """Raise `EnvironmentProblem` if the driver with these processes demonstrably does not use the cluster."""


class ObjectStore(Protocol):
    """An S3-compatible object store with one bucket, which is the run's."""

    checkpoint: str
    """Address of the folder of the run's checkpoints, as Hadoop writes it: ``s3a://BUCKET/FOLDER``."""
    folder: str
    """The same folder, as the start of the keys in the bucket."""
    bucket: S3Store
    """The bucket for the harness, past the proxy."""
    proxy: Proxy
    environment: Mapping[str, str]
    """Variables with the credentials of the pipeline. They enter the job's environment, and are never stored."""

    def settings(self) -> dict[str, str]:
        """Spark's settings for clients: the proxy's address and the form of the URLs, without credentials."""

    def refuse_writes(self, folder: str) -> None:
        """From now on really refuse each PUT below ``folder`` of the bucket; return once one was refused."""

    def accept_writes(self) -> None:
        """Undo `refuse_writes`, and return once a PUT was accepted. Idempotent."""


class FrameRules(Protocol):
    """The protocol proxies between the pipeline and its services (`onceproof.stack.toxiproxy.framed`)."""

    def check(self) -> None:
        """Raise `EnvironmentProblem` if a proxy failed, or had to refuse a connection."""

    def board(self, service: FramedService) -> Board:
        """The rules for all connections to that service, open ones too, and the listeners to what it answers."""


class Stack(Protocol):
    # Properties, so that a provider may declare its own, narrower types.
    @property
    def kafka(self) -> Kafka: ...

    @property
    def postgres(self) -> Postgres | None: ...

    @property
    def frames(self) -> FrameRules | None:
        """None in a run that does not need the protocol proxy."""

    @property
    def spark(self) -> Spark | None:
        """None if the job's tasks run in its driver."""

    @property
    def object_store(self) -> ObjectStore | None:
        """None if checkpoints are in local folders."""

    spark_class_path: tuple[Path, ...]
    """Jars of Spark's Kafka connector, for ``SPARK_DIST_CLASSPATH``."""

    files: Path
    """Folder of the outputs that are files; each output has its own folder in it."""

    postgres_driver: Path
    """Jar of Postgres' JDBC driver, for jobs that name it (`{postgres.driver}`)."""

    spark_archive: Path | None
    """Class archive (AppCDS) of Spark and its connector, so that a driver starts quickly; None if there is none."""

    checkpoint_jar: Path | None
    """The checkpoint file system, for the job's class path; None if it does not fit the Spark in use."""

    def versions(self) -> dict[str, Any]:
        """Component -> version; for components built on this machine, version and hash."""

    def check_health(self) -> None:
        """Raise `ServiceFailed` if a service died without a fault having killed it."""

    def check_bypass(self, pids: list[int]) -> list[str]:
        """Connections of these processes straight to a listener that has a proxy, as sentences."""
