"""What a driver is given of a standalone Spark cluster, and of the harness's own environment."""

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
    """A standalone Spark as a job gets it: a job that sets no master of its own runs its tasks there."""

    master: str
    """``spark://host:port``."""
    arguments: Path
    """Arguments for the driver's JVM that no list of processes may show: the secret of the cluster."""
    memory_mb: int
    """All that one executor's heap may take of its worker."""
    archive: Path | None
    """Spark's classes, for executors that start quickly."""

    def settings(self, scratch: Path, executor_env: Mapping[str, str]) -> dict[str, str]:
        options = [*driver_archive.options(self.archive), "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}"]
        return {
            "spark.authenticate": "true",
            "spark.executor.memory": f"{self.memory_mb}m",
            "spark.executor.extraJavaOptions": shlex.join(options),
            # In local mode tasks find these in the driver's own environment.
            **{f"spark.executorEnv.{name}": value for name, value in executor_env.items()},
        }


def inherited() -> dict[str, str]:
    """What any job gets of our own environment: what programs need to run, and no more."""
    return {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
