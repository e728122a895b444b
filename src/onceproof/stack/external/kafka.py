"""The Kafka of an external stack: whether it can be reached, what this user may do there, and the topics that a run creates."""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, ThrottleEvent, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AclOperation,
    AdminClient,
    OffsetSpec,
    TopicDescription,
)

from onceproof.base.errors import EnvironmentProblem, ServiceFailed
from onceproof.base.waiting import wait_until
from onceproof.scenario.model import TopicSpec
from onceproof.stack.api import KafkaSecurity, Lost, Proxy
from onceproof.stack.external.journal import Created, ObjectJournal
from onceproof.stack.external.names import RunNames
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.external.trust import upstream_context
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.fetched_log import copy_log
from onceproof.stack.kafka.requests import Connection, Login
from onceproof.stack.kafka.topics import ASK_TIMEOUT_S, TOPIC_DEADLINE_S, Topics

#: The data sets' records carry event times that are years ago: with a limited retention a broker would remove them at once.
_KEEP = {"retention.ms": "-1"}

#: Rights on its own topics that the harness needs, and what for.
_RIGHTS = {
    AclOperation.READ: "read them back",
    AclOperation.WRITE: "feed the input",
    AclOperation.DESCRIBE: "find their leaders",
    AclOperation.DELETE: "delete them at the end",
}
_SLICE_S = 0.5
_COPY_S = 10.0
"""For each answer to a Fetch. The broker waits half a second at most."""
_REMOVE_S = 4.0

Addresses = Mapping[int, tuple[str, int]]
"""Broker id -> the address that the cluster advertises."""


def harness_client(profile: StackProfile, names: RunNames | None = None) -> dict[str, Any]:
    """Settings of a client that connects straight to the cluster. They hold the password: never stored."""
    group = {} if names is None else {"group.id": f"{names.prefix}harness"}
    return {**client_config(profile.kafka.bootstrap), **group, **profile.kafka.client_settings()}


def check(profile: StackProfile) -> Addresses:
    """The cluster's brokers. Raises `EnvironmentProblem` with cause, setting and fix within ``connect_s``. Creates nothing."""
    said: list[KafkaError] = []
    settings = {**harness_client(profile), "error_cb": said.append}
    admin = AdminClient(settings)
    deadline = time.monotonic() + profile.connect_s
    while time.monotonic() < deadline and not any(error.code() in _FINAL for error in said):
        try:
            brokers = admin.list_topics(timeout=_SLICE_S).brokers
        except KafkaException as refused:
            said.append(refused.args[0])
            admin.poll(0)  # calls error_cb, which says why
        else:
            return {id: (str(broker.host), broker.port) for id, broker in brokers.items()}
    raise _unreachable(profile, said)


#: After one of these there is no point in trying again.
_FINAL = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})


def _described(admin: AdminClient, name: str) -> TopicDescription | None:
    """The topic with our rights on it; None while the broker that is asked does not know it yet: another one has created it."""
    asked = admin.describe_topics(
        TopicCollection([name]), include_authorized_operations=True, request_timeout=TOPIC_DEADLINE_S
    )
    try:
        found: TopicDescription = asked[name].result()
        return found
    except KafkaException as refused:
        if refused.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def _where(profile: StackProfile) -> str:
    return f"Kafka {profile.kafka.bootstrap} of [stack.{profile.name}]"


def _unreachable(profile: StackProfile, said: Sequence[KafkaError]) -> EnvironmentProblem:
    codes = {error.code() for error in said}
    by_code = {error.code(): " ".join(error.str().split()) for error in said}
    words = " ".join(by_code.values())
    where = _where(profile)
    if KafkaError._AUTHENTICATION in codes or KafkaError.SASL_AUTHENTICATION_FAILED in codes:
        text = by_code.get(KafkaError._AUTHENTICATION, by_code.get(KafkaError.SASL_AUTHENTICATION_FAILED, ""))
        return EnvironmentProblem(
            f"{where} refused the login: {text}", hint="see kafka.sasl: mechanism, username, password"
        )
    if KafkaError._SSL in codes:
        text = _certificate_problem(profile) or by_code[KafkaError._SSL]
        cause, fix = _tls_cause(text)
        return EnvironmentProblem(f"{where}: {cause}: {text}", hint=fix)
    if KafkaError._RESOLVE in codes:
        return EnvironmentProblem(
            f"{where}: the host's name cannot be resolved: {by_code[KafkaError._RESOLVE]}", hint="see kafka.bootstrap"
        )
    hint = "see kafka.bootstrap (host and port) and the network between"
    if "Disconnected" in words:
        hint = f"the listener closes the connection: is kafka.security, {profile.kafka.security}, right for this port?"
    text = by_code.get(KafkaError._TRANSPORT) or words or "no answer"
    return EnvironmentProblem(f"{where} cannot be reached within {profile.connect_s:g} s: {text}", hint=hint)


def _certificate_problem(profile: StackProfile) -> str:
    """What is wrong with a broker's certificate, which librdkafka does not say; empty if nothing is found."""
    context = upstream_context(profile.kafka.tls)
    for host, port in profile.kafka.addresses():
        try:
            with (
                socket.create_connection((host, port), timeout=profile.connect_s) as connection,
                context.wrap_socket(connection, server_hostname=host),
            ):
                continue
        except ssl.SSLCertVerificationError as why:
            return f"{host}:{port}: {why.verify_message}"
        except OSError:  # any other error of TLS is one as well
            continue
    return ""


def _tls_cause(text: str) -> tuple[str, str]:
    """What OpenSSL's words mean, and the setting to change."""
    if "has expired" in text:
        return "its certificate has expired", "its administrator must renew it"
    if "wrong version number" in text or "PLAINTEXT broker" in text:
        return "the listener does not speak TLS", "set kafka.security to PLAINTEXT or SASL_PLAINTEXT, or see the port"
    if any(word in text.lower() for word in ("hostname", "ip address")):
        return "its certificate is for another name", "see kafka.bootstrap, or kafka.tls.check_hostname"
    if any(word in text for word in ("verify failed", "could not be verified", "issuer", "self-signed")):
        return "its certificate is not trusted", "set kafka.tls.ca to the certificate of its authority"
    if "certificate" in text and ("required" in text or "bad certificate" in text):
        return "it wants a certificate of the client", "set kafka.tls.certificate and kafka.tls.key"
    return "the TLS handshake failed", "see kafka.tls"


_DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def _refused(profile: StackProfile, topic: str, error: KafkaError) -> EnvironmentProblem:
    where, said = _where(profile), error.str()
    if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return EnvironmentProblem(
            f"{where} has a topic {topic} that this run did not create: it is left as it is",
            hint=f"it may be left from a killed run: `onceproof cleanup --stack {profile.name}`",
        )
    if error.code() in _DENIED:
        user = profile.kafka.sasl.username if profile.kafka.sasl is not None else "ANONYMOUS"
        return EnvironmentProblem(
            f"{where}: {user!r} may not create topic {topic}: {said}",
            hint="its administrator can allow Create, Describe, Read, Write, AlterConfigs, DescribeConfigs and Delete on topics "
            f"with the prefix onceproof-: kafka-acls --add --allow-principal User:{user} --operation All "
            "--topic onceproof- --resource-pattern-type prefixed",
        )
    hint = "see the scenario's partitions"
    if error.code() == KafkaError.POLICY_VIOLATION:
        hint = "its create.topic.policy refuses it: see the scenario's partitions and prepare.topics, or ask its administrator"
    return EnvironmentProblem(f"{where} would not create topic {topic}: {said}", hint=hint)


class Throttling:
    """How long Kafka has delayed the requests of the harness by quotas, over all of its clients. Thread-safe."""

    def __init__(self, profile: StackProfile) -> None:
        self._profile = profile
        self._seconds = 0.0
        self._lock = threading.Lock()

    def seen(self, event: ThrottleEvent) -> None:
        """``throttle_cb`` of a client: called for each answer that a broker delayed, and once when the delay is over."""
        with self._lock:
            self._seconds += event.throttle_time

    def check(self) -> None:
        """Raise `EnvironmentProblem` after ``connect_s`` seconds of delay: such a run shows nothing."""
        if self._seconds <= self._profile.connect_s:
            return
        user = self._profile.kafka.sasl.username if self._profile.kafka.sasl is not None else "ANONYMOUS"
        raise EnvironmentProblem(
            f"{_where(self._profile)} has a quota for {user!r} and has delayed its requests by {self._seconds:.0f} s so far",
            hint="its administrator can raise or remove it: kafka-configs --alter --entity-type users "
            f"--entity-name {user} --delete-config producer_byte_rate,consumer_byte_rate,request_percentage,"
            "controller_mutation_rate; or feed less: input.rows of the scenario",
        )


class ExternalKafka(Topics):
    """Implements `onceproof.stack.api.Kafka`. Its topics are in the journal, and deleted at the end of the run."""

    def __init__(
        self,
        profile: StackProfile,
        names: RunNames,
        journal: ObjectJournal,
        addresses: Addresses,
        proxies: Mapping[int, Proxy],
        client_bootstrap: str,
        client_security: KafkaSecurity | None = None,
        *,
        copies: Path,
    ) -> None:
        """``copies``: a private folder for copies of the brokers' logs."""
        self._copies = copies
        self._copied: dict[Path, int] = {}
        """Folder of a copy -> the offset up to which it was made."""
        self._profile = profile
        self._names = names
        self._journal = journal
        self._addresses = addresses
        self._proxies = proxies
        self.brokers = tuple(sorted(addresses))
        self.client_bootstrap = client_bootstrap
        self.client_security = client_security or KafkaSecurity()
        self.harness_bootstrap = profile.kafka.bootstrap
        self.throttling = Throttling(profile)

    def admin(self, *, asking_not: int | None = None) -> AdminClient:
        others = [f"{host}:{port}" for id, (host, port) in self._addresses.items() if id != asking_not]
        return AdminClient({**self.harness_client(), "bootstrap.servers": ",".join(others)})

    def harness_client(self) -> dict[str, Any]:
        return {**harness_client(self._profile, self._names), "throttle_cb": self.throttling.seen}

    def is_own(self, topic: str) -> bool:
        return topic.startswith(self._names.prefix)

    def check_topics(self, topics: Mapping[str, TopicSpec]) -> None:
        """Ask Kafka whether it would create these topics. Raises `EnvironmentProblem`. Creates nothing."""
        new = [self.new_topic(name, spec.partitions, {**_KEEP, **spec.config}) for name, spec in topics.items()]
        admin = self.admin()  # a name of its own: a client that nothing refers to is closed, with its requests
        asked = admin.create_topics(new, request_timeout=self._profile.connect_s, validate_only=True)
        for name, answer in asked.items():
            try:
                answer.result()
            except KafkaException as refused:
                raise _refused(self._profile, name, refused.args[0]) from None

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """As `Topics.create_topic`, and its records never expire. Raises `EnvironmentProblem`, also for a missing right."""
        made = Created("topic", name)
        self._journal.will_create(made)
        try:
            super().create_topic(name, partitions, {**_KEEP, **(config or {})})
        except EnvironmentProblem as problem:
            self.throttling.check()
            refused = problem.__cause__
            if not isinstance(refused, KafkaException):
                raise
            self._journal.forget(made)  # Kafka did not create it, or it belongs to another user
            raise _refused(self._profile, name, refused.args[0]) from None
        self._check_rights(name)

    def _check_rights(self, name: str) -> None:
        """Kafka reports rights only on a topic that exists. So without the right to delete, one topic remains."""
        described = wait_until(
            f"every broker to know the topic {name}",
            lambda: _described(self.admin(), name),
            deadline_s=TOPIC_DEADLINE_S,
        )
        if (allowed := described.authorized_operations) is None:
            return  # this cluster does not say
        for right, purpose in _RIGHTS.items():
            if right not in allowed:
                hint = f"its administrator can allow {right.name} on topics with the prefix onceproof-"
                if right is AclOperation.DELETE:
                    hint += f"; then remove {name}: onceproof cleanup --stack {self._profile.name}"
                raise EnvironmentProblem(
                    f"{_where(self._profile)}: the right {right.name} on topics {self._names.prefix}* is missing, "
                    f"which onceproof needs to {purpose}",
                    hint=hint,
                )

    def await_markers(self) -> None:
        """Does nothing: the coordinators of a cluster with a login cannot be asked over a plain socket."""

    def log_folders(self, topic: str) -> dict[int, Path]:
        """Partition -> folder with a copy of the headers in its leader's log as of now; without those that could not be copied."""
        found = {}
        for id, start in self._starts(topic).items():
            folder = Path(tempfile.mkdtemp(prefix=f"{topic}-{id}-", dir=self._copies))
            self._copied[folder] = start
            if self.update_log(topic, id, folder):
                found[id] = folder
        return found

    def update_log(self, topic: str, partition: int, folder: Path) -> bool:
        """Add to a copy what the log has got since. Returns whether it could: what is missing is then not evaluated."""
        with (
            suppress(OSError, ServiceFailed),
            self._connect(self.leader(topic, partition).broker) as broker,
        ):
            self._copied[folder] = copy_log(broker, topic, partition, self._copied[folder], folder / f"{0:020}.log")
            return True
        return False

    def _starts(self, topic: str) -> dict[int, int]:
        """Partition -> the first offset of its log."""
        admin = self.admin()
        partitions = admin.list_topics(topic, timeout=ASK_TIMEOUT_S).topics[topic].partitions
        first = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets(
            {TopicPartition(topic, id): first for id in partitions}, request_timeout=ASK_TIMEOUT_S
        )
        return {place.partition: answer.result().offset for place, answer in asked.items()}

    def _connect(self, broker: int) -> Connection:
        if broker not in self._addresses:
            raise ServiceFailed(f"broker {broker} was not in the cluster when the run began")
        host, port = self._addresses[broker]
        kafka = self._profile.kafka
        login = None
        if kafka.sasl is not None:
            login = Login(kafka.sasl.mechanism, kafka.sasl.username, kafka.sasl.password.get_secret_value())
        tls = upstream_context(kafka.tls) if kafka.encrypted else None
        return Connection(host, port, timeout_s=_COPY_S, tls=tls, login=login)

    def client_proxy(self, broker: int) -> Proxy:
        return self._proxies[broker]

    def replication_proxy(self, broker: int) -> Proxy:
        raise _not_ours("cut off from the other brokers")

    def controller_proxy(self, broker: int) -> Proxy:
        raise _not_ours("cut off from the controller")

    def isolate_broker(self, broker: int, lost: Lost = "both") -> str:
        raise _not_ours("cut off from the others")

    def rejoin_broker(self, broker: int) -> None:
        """Does nothing: it was never cut off."""

    def kill_broker(self, broker: int) -> None:
        raise _not_ours("killed")

    def restart_broker(self, broker: int) -> None:
        raise _not_ours("restarted")

    def is_running(self, broker: int) -> bool:
        return True

    @property
    def controller(self) -> int:
        raise _not_ours("chosen as the controller")

    def pid(self, broker: int) -> int:
        raise _not_ours("found by its process id")

    def pause_broker(self, broker: int) -> None:
        raise _not_ours("paused")

    def is_paused(self, broker: int) -> bool:
        return False

    def resume_broker(self, broker: int) -> None:
        raise _not_ours("resumed")

    def quorum_epoch(self) -> int:
        raise _not_ours("asked for the epoch of its quorum")

    def check_health(self) -> None:
        """Does nothing: an external service is asked, not watched."""


def _not_ours(what: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"a broker of an external Kafka cannot be {what}", hint="use the embedded stack")


def remove_topic(name: str, profile: StackProfile) -> None:
    """Delete a topic, and return when it is gone. Does nothing if there is none. Raises `KafkaException`, `WaitTimeout`."""
    admin = AdminClient(harness_client(profile))
    try:
        admin.delete_topics([name], request_timeout=_REMOVE_S, operation_timeout=_REMOVE_S)[name].result()
    except KafkaException as refused:
        if refused.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return
        raise
    wait_until(
        f"topic {name} to be gone", lambda: name not in admin.list_topics(timeout=1).topics, deadline_s=_REMOVE_S
    )
