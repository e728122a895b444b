"""What is fetched at run time: jars of Kafka, connectors and brokers, toxiproxy-server; and what is made of it.

Everything lies in one cache folder, one sub-folder a component, pinned by version and SHA-256 and checked at each use.
A component comes into being by a rename, so that an interrupted fetch leaves nothing that looks finished, and a file
lock lets two processes that start at once fetch it once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from multiprocessing.pool import AsyncResult, ThreadPool
from pathlib import Path
from typing import Any, Literal

import platformdirs
from filelock import FileLock, Timeout

from onceproof import __version__
from onceproof.base.errors import EnvironmentProblem, OnceproofError
from onceproof.stack.fetch import checkpoint_jar, class_archive, driver_archive, jars
from onceproof.stack.fetch.java import Java, find_java
from onceproof.stack.fetch.progress import FetchStopped, Progress
from onceproof.stack.toxiproxy import build as toxiproxy_build

#: Longer than any fetch should take (a cold build of toxiproxy-server on two slow cores: about a minute).
_LOCK_TIMEOUT_S = 900.0

#: After an interrupt: how long the fetching threads get to stop what they run (10 s are promised in all).
_STOP_TIMEOUT_S = 5.0

#: Written into the folder of a component that is built here, in the format of ``sha256sum``.
_RECORD = "SHA256SUMS"


@dataclass(frozen=True)
class Components:
    """Where everything that was fetched lies, after its hashes were found right."""

    kafka_jars: tuple[Path, ...]
    spark_jars: tuple[Path, ...]
    postgres_driver: Path
    """Jar of Postgres' JDBC driver. On no class path: a job that wants it, and not its own, is given its path."""
    toxiproxy_server: Path
    java: Java
    kafka_archive: Path | None
    """Kafka's classes for a quick start; None where it could not be made (a start is a second slower then)."""
    spark_archive: Path | None
    """Spark's and its Kafka connector's, likewise; None also where the JVM could not use it."""
    checkpoint_jar: Path | None
    """The checkpoint file system; None where it does not fit the Spark in use: points are then found by watching."""
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    """File name -> SHA-256, of the jars and of the binary built here."""


@dataclass(frozen=True)
class AmqpComponents:
    """What a run of consumers needs where an AMQP broker is all that it starts."""

    java: Java
    broker_jars: tuple[Path, ...]
    versions: Mapping[str, str]


#: Fetched when a scenario asks for them: most never do.
ON_DEMAND = frozenset({"qpid-broker", "delta"})


@dataclass(frozen=True)
class Component:
    """One folder of the cache. ``sha256`` maps file names to pins; None: built here, the hash is recorded instead."""

    name: str
    version: str
    key: str
    """Changes with the pins, so that an upgraded onceproof never meets the folder of an older one."""
    sha256: Mapping[str, str] | None
    fetch: Callable[[Path, Progress], None]
    """Put the files into the (empty) folder; calls `Progress` between steps. Raises `EnvironmentProblem`."""

    def folder(self, cache_folder: Path) -> Path:
        return cache_folder / f"{self.name}-{self.version}-{self.key}"


@dataclass(frozen=True)
class ComponentStatus:
    name: str
    version: str
    folder: Path
    state: Literal["present", "missing", "damaged"]
    problem: str | None = None


def cache_folder() -> Path:
    """The folder that holds the components: ``ONCEPROOF_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("ONCEPROOF_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("onceproof")


def ensure(progress: bool = True) -> Components:
    """Fetch what is missing, check every hash, and say where it all lies.

    ``progress`` shows bars on a terminal and lines elsewhere, on standard error.
    Raises `EnvironmentProblem`: no fitting Java, no network, a read-only or full cache, a file whose hash differs.
    """
    java = find_java()  # first: nobody should fetch for a minute to be told that there is no Java
    folder = cache_folder()
    with Progress(show=progress) as shown:
        hashes, made = _obtain_all([c for c in shipped() if c.name not in ON_DEMAND], folder, shown, java)
    paths = {component.name: component.folder(folder) for component in shipped()}
    return Components(
        kafka_jars=_jars_in(paths["kafka"], hashes["kafka"]),
        spark_jars=_jars_in(paths["spark-kafka-connector"], hashes["spark-kafka-connector"]),
        postgres_driver=_jars_in(paths["postgres-driver"], hashes["postgres-driver"])[0],
        toxiproxy_server=paths["toxiproxy-server"] / toxiproxy_build.BINARY,
        java=java,
        kafka_archive=made["kafka-classes"],
        spark_archive=made["spark-classes"],
        checkpoint_jar=made["checkpoint-files"],
        versions={component.name: component.version for component in shipped()},
        hashes={name: digest for found in hashes.values() for name, digest in found.items()},
    )


def ensure_amqp(progress: bool = True) -> AmqpComponents:
    """The AMQP broker alone: nobody should fetch Kafka and build Toxiproxy for a queue. Raises as `ensure`."""
    java = find_java()
    jars = ensure_jars("qpid-broker", progress)
    version = next(component.version for component in shipped() if component.name == "qpid-broker")
    return AmqpComponents(java, jars, {"qpid-broker": version})


def ensure_jars(name: str, progress: bool = True) -> tuple[Path, ...]:
    """The jars of one component that most runs do without (`ON_DEMAND`). Raises as `ensure`."""
    (component,) = (component for component in shipped() if component.name == name)
    with Progress(show=progress) as shown:
        hashes = obtain(component, cache_folder(), shown)
    return _jars_in(component.folder(cache_folder()), hashes)


def status() -> list[ComponentStatus]:
    """What the cache holds, without fetching anything."""
    return [_status_of(component, cache_folder()) for component in shipped()]


@cache
def shipped() -> tuple[Component, ...]:
    """The components that this version of onceproof wants."""
    text = (files("onceproof.stack.fetch") / "components.json").read_text(encoding="utf-8")
    pins = json.loads(text)
    found = [
        Component(
            name=name,
            version=pin["version"],
            key=_key(json.dumps(pin, sort_keys=True)),
            sha256={jar["file"]: jar["sha256"] for jar in pin["jars"]},
            fetch=jars.fetcher(name, [jar["coordinate"] for jar in pin["jars"]]),
        )
        for name, pin in pins.items()
    ]
    built = Component(
        name="toxiproxy-server",
        version=toxiproxy_build.VERSION,
        key=_key(toxiproxy_build.recipe()),
        sha256=None,
        fetch=toxiproxy_build.build,
    )
    return (*found, built)


def obtain(component: Component, folder: Path, progress: Progress) -> dict[str, str]:
    """Make sure that the component is in ``folder`` (the cache) and right; return its files' SHA-256."""
    target = component.folder(folder)
    if not target.is_dir():
        with _explained(folder), _exclusive(component, folder, progress):
            # Another process may have fetched it while this one waited for the lock.
            if not target.is_dir():
                _fetch_into(target, component, progress)
    return verify(component, target)


def verify(component: Component, target: Path) -> dict[str, str]:
    """Hash the component's files and compare. Raises `EnvironmentProblem` naming the file and both hashes."""
    mend = f"delete {target} and run again"
    expected = component.sha256 if component.sha256 is not None else _recorded(component, target, mend)
    for name, wanted in expected.items():
        path = target / name
        if not path.is_file():
            raise EnvironmentProblem(f"{path} is missing from {component.name} {component.version}", hint=mend)
        found = _sha256(path)
        if found != wanted:
            raise EnvironmentProblem(
                f"{path} is not what onceproof wants: its SHA-256 is {found}, expected {wanted}", hint=mend
            )
    return dict(expected)


def _obtain_all(
    wanted: Sequence[Component], folder: Path, progress: Progress, java: Java
) -> tuple[dict[str, dict[str, str]], dict[str, Path | None]]:
    # A ThreadPool because its threads are daemons: an interrupted fetch must not hold up the exit of the program.
    with ThreadPool(len(wanted) + 3) as pool:
        pending = {c.name: pool.apply_async(obtain, (c, folder, progress)) for c in wanted}
        paths = {c.name: c.folder(folder) for c in wanted}

        def kafka() -> Path | None:
            found = _jars_in(paths["kafka"], pending["kafka"].get())
            slower = "brokers will start more slowly"
            return _obtain_made(_kafka_archive(java, paths["kafka"], found), slower, folder, progress)

        def spark() -> Path | None:
            connector = paths["spark-kafka-connector"]
            found = _jars_in(connector, pending["spark-kafka-connector"].get())
            if driver_archive.is_useless(os.environ):
                return None
            slower = "drivers will start more slowly"
            return _obtain_made(_spark_archive(java, connector, found), slower, folder, progress)

        def checkpoint() -> Path | None:
            (compiler,) = _jars_in(paths["java-compiler"], pending["java-compiler"].get())
            watched = "faults at checkpoint writes will be placed by watching, approximately"
            return _obtain_made(_checkpoint_files(java, compiler), watched, folder, progress)

        # Each needs only its own jars, so they are made while toxiproxy-server is still being built.
        makers = {"kafka-classes": kafka, "spark-classes": spark, "checkpoint-files": checkpoint}
        made = {name: pool.apply_async(maker) for name, maker in makers.items()}
        try:
            hashes = {name: result.get() for name, result in pending.items()}
            return hashes, {name: result.get() for name, result in made.items()}
        except BaseException:
            _stop([*pending.values(), *made.values()], progress.stopped)
            raise


def _kafka_archive(java: Java, kafka: Path, found: tuple[Path, ...]) -> Component:
    key = _key(class_archive.recipe(java, str(kafka)))
    return Component("kafka-classes", java.version, key, None, class_archive.maker(java, found))


def _spark_archive(java: Java, connector: Path, found: tuple[Path, ...]) -> Component:
    key = _key(driver_archive.recipe(java, str(connector), os.environ))
    return Component("spark-classes", java.version, key, None, driver_archive.maker(java, found))


def _checkpoint_files(java: Java, compiler: Path) -> Component:
    key = _key(checkpoint_jar.recipe(str(compiler.parent.name), os.environ))
    fetch = checkpoint_jar.maker(java, compiler, os.environ)
    return Component("checkpoint-files", __version__, key, None, fetch)


def _obtain_made(component: Component, without: str, folder: Path, progress: Progress) -> Path | None:
    """The one file of what is made here; None, and a line about what that means, if it could not be made."""
    try:
        (name,) = obtain(component, folder, progress)
    except FetchStopped:
        raise
    except OnceproofError as problem:
        progress.say(f"{without}: {problem}")
        return None
    return component.folder(folder) / name


def _stop(pending: Sequence[AsyncResult[Any]], stopped: threading.Event) -> None:
    stopped.set()
    for result in pending:
        # Wait, so that a running `go build` is killed and half-filled folders are removed before the program leaves.
        result.wait(_STOP_TIMEOUT_S)


def _fetch_into(target: Path, component: Component, progress: Progress) -> None:
    # The lock is held: whatever half-filled folder lies there is left over from a fetch that was killed.
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        component.fetch(part, progress)
        if component.sha256 is None:
            _record(part)
        verify(component, part)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _exclusive(component: Component, folder: Path, progress: Progress) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{component.name}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        progress.say(f"waiting: another process is fetching {component.name} {component.version}")
        _wait_for(lock, component, progress)
    try:
        yield
    finally:
        lock.release()


def _wait_for(lock: FileLock, component: Component, progress: Progress) -> None:
    try:
        lock.acquire(timeout=_LOCK_TIMEOUT_S, cancel_check=progress.stopped.is_set)
    except Timeout:
        progress.check()
        raise EnvironmentProblem(
            f"another process has been fetching {component.name} for {_LOCK_TIMEOUT_S:.0f} s",
            hint=f"end it (it holds {lock.lock_file}) and run again",
        ) from None


@contextlib.contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say what an error of the file system means for the cache."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR):
            raise
        raise EnvironmentProblem(
            f"cannot write the component cache {folder}: {error.strerror}",
            hint="name a folder on a writable disk with 1 GiB free in ONCEPROOF_CACHE",
        ) from error


def _status_of(component: Component, folder: Path) -> ComponentStatus:
    target = component.folder(folder)
    if not target.is_dir():
        return ComponentStatus(component.name, component.version, target, "missing")
    try:
        verify(component, target)
    except EnvironmentProblem as problem:
        return ComponentStatus(component.name, component.version, target, "damaged", str(problem))
    return ComponentStatus(component.name, component.version, target, "present")


def _record(part: Path) -> None:
    lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(part.iterdir())]
    (part / _RECORD).write_text("".join(lines), encoding="utf-8")


def _recorded(component: Component, target: Path, mend: str) -> dict[str, str]:
    try:
        lines = (target / _RECORD).read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    except (OSError, ValueError):
        raise EnvironmentProblem(
            f"{target / _RECORD}, the recorded hash of {component.name}, cannot be read", hint=mend
        ) from None


def _jars_in(folder: Path, names: Mapping[str, str]) -> tuple[Path, ...]:
    # Sorted: an AppCDS archive is valid only for the very class path that it was made with, order included.
    return tuple(folder / name for name in sorted(names))


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
