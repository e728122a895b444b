"""The files that give the job's Kafka clients its login and TLS: Java's properties, and librdkafka's.

They are for Kafka what a password file is for Postgres: no process has the password among its arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from onceproof.instruments.proxy.authority import TRUSTSTORE_PASSWORD
from onceproof.stack.external.profile import KafkaProfile

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def write_client_files(folder: Path, kafka: KafkaProfile, ca: str, truststore: str) -> tuple[str, str]:
    """Write both files into ``folder``, for this user only; returns their paths, empty texts if no setting is needed.

    ``ca`` and ``truststore`` are files of the authority that issued the proxies' certificates; empty without TLS.
    """
    java, librdkafka = java_settings(kafka, truststore), librdkafka_settings(kafka, ca)
    if kafka.sasl is None and not kafka.encrypted:
        return "", ""
    return (
        _write(folder / "kafka.properties", {name: escaped(value) for name, value in java.items()}),
        _write(folder / "librdkafka.properties", librdkafka),
    )


def java_settings(kafka: KafkaProfile, truststore: str) -> dict[str, str]:
    """Settings of a Java client that connects to the proxies as the job, without ``bootstrap.servers``."""
    settings: dict[str, str] = {"security.protocol": kafka.security}
    if (login := kafka.job or kafka.sasl) is not None:
        user, password = (quoted(text) for text in (login.username, login.password.get_secret_value()))
        settings |= {
            "sasl.mechanism": login.mechanism,
            "sasl.jaas.config": f"{_MODULES[login.mechanism]} required username={user} password={password};",
        }
    if kafka.encrypted:
        settings |= {
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": truststore,
            "ssl.truststore.password": TRUSTSTORE_PASSWORD,
        }
    return settings


def librdkafka_settings(kafka: KafkaProfile, ca: str) -> dict[str, str]:
    """The same for a client of librdkafka (confluent-kafka)."""
    return kafka.login_settings(kafka.job or kafka.sasl) | ({"ssl.ca.location": ca} if kafka.encrypted else {})


def quoted(text: str) -> str:
    """A quoted value of a JAAS configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def escaped(value: str) -> str:
    """A value of a Java properties file, in which a backslash escapes and only Latin-1 can be written as it is."""
    return "".join("\\\\" if c == "\\" else c if c.isascii() else json.dumps(c)[1:-1] for c in value)


def _write(path: Path, settings: Mapping[str, str]) -> str:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    return str(path)
