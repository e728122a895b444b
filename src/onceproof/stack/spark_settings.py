"""The settings by which a driver uses a Spark cluster, and the variables that any job inherits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from onceproof.scenario.stack import LOOPBACK
from onceproof.stack.fetch import driver_archive

_PASSED_ON = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
)


_PASSED_ON_PREFIXES = ("LC_", "JAVA_", "SPARK_", "PYSPARK_", "HADOOP_", "PYTHON")


@dataclass(frozen=True)
class Cluster:
    """A standalone Spark as seen by a job: a job that sets no master runs its tasks there."""

    master: str
    """``spark://host:port``."""
    arguments: Path
    """File with arguments for the driver's JVM. It holds the cluster's secret, which no process list may show."""
    memory_mb: int
    """Heap of an executor: all the memory of its worker."""
    archive: Path | None
    """Class archive of Spark, so that executors start quickly."""
    host: ClassVar[str] = LOOPBACK
    gate_host: ClassVar[str | None] = None
    """The address of the checkpoint gate's port; None: executors can open its Unix socket."""
    python: ClassVar[str | None] = None
    """What starts the Python of tasks; None: the driver's own."""

    def settings(self, scratch: Path, jars: Sequence[Path]) -> dict[str, str]:
        """Settings of the driver. Its workers have the ``jars``, after Spark's own, as in the archive."""
        options = [*driver_archive.options(self.archive), "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}"]
        return {
            "spark.authenticate": "true",
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": shlex.join(options),
        }


@dataclass(frozen=True)
class ContainerCluster:
    """A standalone Spark in containers, as seen by a job."""

    master: str
    """``spark://host:port``."""
    arguments: Path
    """As in `Cluster`."""
    memory_mb: int
    """Heap of an executor: all the memory of its worker."""
    host: str
    """The address of this machine at which executors reach the driver."""
    python: ClassVar[str | None] = "python3"

    @property
    def gate_host(self) -> str:
        return self.host

    def settings(self, scratch: Path, jars: Sequence[Path]) -> dict[str, str]:
        """Settings of the driver, which serves the ``jars`` to its executors."""
        return {
            "spark.authenticate": "true",
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.jars": _served(jars),
        }


@dataclass(frozen=True)
class ExternalCluster:
    """An external Spark cluster, as seen by a job. Its workers know nothing of onceproof."""

    master: str
    """``spark://host:port``."""
    host: str = LOOPBACK
    """The address of this machine at which executors reach the driver."""
    arguments: ClassVar[None] = None
    python: ClassVar[str | None] = None

    @property
    def gate_host(self) -> str:
        return self.host

    def settings(self, scratch: Path, jars: Sequence[Path]) -> dict[str, str]:
        """Settings of the driver, which serves the ``jars`` to its executors."""
        return {"spark.jars": _served(jars)}


def _served(jars: Sequence[Path]) -> str:
    return ",".join(jar.absolute().as_uri() for jar in jars)


AnyCluster = Cluster | ContainerCluster | ExternalCluster


def inherited() -> dict[str, str]:
    """The environment variables that any job inherits from the harness: only those that programs need to run."""
    return {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
