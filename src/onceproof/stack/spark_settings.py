"""The settings by which a driver uses a standalone Spark cluster, and the variables that any job inherits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

    def settings(self, scratch: Path, executor_env: Mapping[str, str]) -> dict[str, str]:
        options = [*driver_archive.options(self.archive), "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}"]
        return {
            "spark.authenticate": "true",
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": shlex.join(options),
            # In local mode, tasks find these in the driver's environment.
            **{f"spark.executorEnv.{name}": value for name, value in executor_env.items()},
        }


def inherited() -> dict[str, str]:
    """The environment variables that any job inherits from the harness: only those that programs need to run."""
    return {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
