"""Apicurio Registry, a real schema registry from Maven Central, on loopback and in memory, for as long as a test needs it."""

from __future__ import annotations

import hashlib
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
from filelock import FileLock
from jgo.maven import MavenContext

from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.components import cache_folder
from onceproof.stack.fetch.java import find_java

VERSION = "3.0.9"
_SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
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
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / ".apicurio-registry.lock"):
        maven = MavenContext(repo_cache=cache / f"apicurio-registry-{VERSION}-for-tests", timeout=60)
        artifact = maven.project("io.apicurio", "apicurio-registry-app").at_version(VERSION).artifact("all", "tar.gz")
        try:
            found = Path(artifact.resolve())
        except (requests.RequestException, RuntimeError) as error:
            pytest.skip(f"Apicurio Registry cannot be fetched: {error}")
    with found.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    assert digest == _SHA256, f"{found} is damaged: delete it"
    return found


def _wait(process: subprocess.Popen[bytes], made: Apicurio, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, f"Apicurio ended:\n{log.read_text()[-2000:]}"
        try:
            return requests.get(f"{made.url}/subjects", auth=(made.user, made.password), timeout=5).ok
        except requests.RequestException:
            return False

    wait_until("Apicurio to answer", answers, deadline_s=_START_S, every_s=0.5, explain=lambda: log.read_text()[-2000:])
