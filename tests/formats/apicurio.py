"""Apicurio Registry, a real schema registry from Maven Central, on loopback and in memory, for as long as a test needs it."""

from __future__ import annotations

import secrets
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.components import ensure_registry
from onceproof.stack.fetch.java import find_java

VERSION = "3.0.9"
_START_S = 240.0
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class Apicurio:
    root: str
    """``http://127.0.0.1:PORT``, the address of the server, which is not that of its registry."""
    user: str
    password: str

    @property
    def url(self) -> str:
        """Where it speaks Confluent's REST interface."""
        return f"{self.root}/apis/ccompat/v7"


@contextmanager
def apicurio(folder: Path) -> Iterator[Apicurio]:
    """A registry without schemas, which refuses everybody but one user. Skips the test if it cannot be fetched."""
    with tarfile.open(_archive()) as archive:
        archive.extractall(folder, filter="data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Apicurio(f"http://127.0.0.1:{port}", "reader", secrets.token_urlsafe(18))
    settings = folder / "application.properties"
    settings.touch(mode=0o600)
    settings.write_text(
        f"quarkus.http.host=127.0.0.1\nquarkus.http.port={port}\n"
        "quarkus.security.users.embedded.plain-text=true\n"
        f"quarkus.security.users.embedded.users.{made.user}={made.password}\n"
        f"quarkus.security.users.embedded.roles.{made.user}=sr-admin\n"
        "quarkus.http.auth.basic=true\n"
        "quarkus.http.auth.permission.registry.paths=/apis/*\n"
        "quarkus.http.auth.permission.registry.policy=authenticated\n"
    )
    jar = folder / f"apicurio-registry-app-{VERSION}-runner.jar"
    argv = [find_java().path, *_JVM, f"-Dquarkus.config.locations={settings}", "-jar", jar]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log)
    try:
        _wait(process, made, folder / "log")
        yield made
    finally:
        process.kill()  # it stores nothing
        process.wait()


def _archive() -> Path:
    try:
        return ensure_registry(progress=False)
    except EnvironmentProblem as missing:
        pytest.skip(f"Apicurio Registry cannot be fetched: {missing}")


def _wait(process: subprocess.Popen[bytes], made: Apicurio, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"Apicurio ended:\n{log.read_text()[-2000:]}"
        try:
            return requests.get(f"{made.url}/subjects", auth=(made.user, made.password), timeout=5).ok
        except requests.RequestException:
            return False

    wait_until("Apicurio to answer", answers, deadline_s=_START_S, every_s=0.5, explain=lambda: log.read_text()[-2000:])
