"""What the name of an option or a variable suggests about its value: part of Postgres' address, Kafka's, a checkpoint, a topic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_DATABASE = ("postgresql", "postgres", "database", "jdbc", "pg", "db")
_PARTS = {
    **dict.fromkeys(("host", "hostname", "hostaddr", "server", "address", "addr"), "host"),
    "port": "port",
    **dict.fromkeys(("user", "username", "login"), "user"),
    **dict.fromkeys(("password", "passwd", "pass", "pwd"), "password"),
    **dict.fromkeys(("database", "dbname", "db", "name"), "database"),
    **dict.fromkeys(("url", "uri", "dsn", "conninfo"), "url"),
}
_KAFKA = {"bootstrap", "broker", "brokers", "kafka"}
_OF_AN_ADDRESS = {
    "server",
    "servers",
    "list",
    "url",
    "urls",
    "host",
    "hosts",
    "address",
    "addresses",
    "addr",
    "endpoints",
}
_READS = {"input", "source", "in", "from", "read", "subscribe", "consume"}
_WRITES = {
    *("output", "out", "sink", "target", "to", "write", "destination", "dest", "produce", "publish"),
    *("dlq", "dead", "deadletter", "error", "errors", "rejected", "rejects", "invalid"),
}
_TIMES = {"interval", "seconds", "s", "ms", "every", "period", "timeout", "enabled", "name"}
_PATH = re.compile(r"(?:file:/{1,3}|~|/).*")
_ELSEWHERE = re.compile(r"(?:s3[an]?|gs|abfss?|wasbs?|hdfs|dbfs|oss)://.+")
#: Packages that are on a job's class path already, in any version.
_PROVIDED = re.compile(
    r"org\.apache\.spark:spark-(?:sql|token-provider)-kafka-0-10_[\d.]+:.+|org\.postgresql:postgresql:.+"
    r"|org\.apache\.kafka:kafka-clients:.+"
)
PACKAGES = "spark.jars.packages"


def tokens(name: str) -> list[str]:
    """The words of a name, however it is written: ``--pgHost``, ``PG_HOST`` and ``PGHOST`` are all pg and host."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower())
    return [part for word in words if word for part in _unglued(word)]


def _unglued(word: str) -> Sequence[str]:
    for prefix in _DATABASE:
        rest = word.removeprefix(prefix)
        if rest != word and rest in _PARTS:
            return prefix, rest
    return (word,)


def postgres_part(name: str) -> str | None:
    """``host``, ``port``, ``user``, ``password``, ``database`` or ``url`` of Postgres, if the name suggests one."""
    words = tokens(name)
    if not words or not set(words) & set(_DATABASE):
        return None
    if words[-1] in ("database", "db") and len(words) == 1:
        return "database"
    before = set(words[:-1])
    return _PARTS.get(words[-1]) if before & set(_DATABASE) else None


def is_kafka_address(name: str) -> bool:
    words = set(tokens(name))
    return bool(words & _KAFKA) and words <= _KAFKA | _OF_AN_ADDRESS


def is_checkpoint(name: str) -> bool:
    words = tokens(name)
    return any(word.startswith(("checkpoint", "ckpt")) for word in words) and not set(words) & _TIMES


def is_topic(name: str) -> bool:
    words = tokens(name)
    return bool({"topic", "topics", "subscribe"} & set(words)) and words[-1] not in ("partitions", "pattern", "count")


def reads(name: str) -> bool:
    return bool(_READS & set(tokens(name)))


def writes(name: str) -> bool:
    return bool(_WRITES & set(tokens(name)))


def is_outside(value: str) -> bool:
    """Whether a path leads out of the run directory: to another place on this machine, or to a remote store."""
    return bool(_PATH.fullmatch(value) or _ELSEWHERE.fullmatch(value))


def needless_packages(listed: str) -> list[str]:
    """Of comma-separated Maven coordinates, those that are on a job's class path anyway."""
    return [name for name in listed.split(",") if _PROVIDED.fullmatch(name.strip())]


def needed_packages(listed: str) -> list[str]:
    return [name for name in listed.split(",") if name.strip() and not _PROVIDED.fullmatch(name.strip())]


def packages(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Each word of a command that asks for packages: its index, and the packages."""
    for index, word in enumerate(words):
        if word == "--packages" and index + 1 < len(words):
            yield index + 1, words[index + 1]
        elif word.startswith("--packages="):
            yield index, word.partition("=")[2]
        elif f"{PACKAGES}=" in word:
            yield index, word.partition(f"{PACKAGES}=")[2]


def named_values(command: Sequence[str], env: dict[str, str]) -> Iterator[tuple[tuple[str, str | int], str, str]]:
    """Each option of a command and each variable: its path below ``pipeline``, its name and its value."""
    option = ""
    for index, word in enumerate(command[1:], start=1):
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if equals:
                yield ("command", index), name, value
            option = "" if equals else word
        else:
            yield ("command", index), option, word
            option = ""
    for name, value in env.items():
        yield ("env", name), name, value
