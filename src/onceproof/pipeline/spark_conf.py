"""What a Spark job gets from outside: the Kafka connector and a few defaults, in a narrow environment.

Environment variables reach a job started as plain ``python job.py`` as well as one started by ``spark-submit``.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.stack.fetch import driver_archive
from onceproof.stack.spark_settings import Cluster, inherited

#: What a task needs of a job's environment, beside what its worker has: where the password is, and who watches sinks.
_FOR_TASKS = ("PGPASSFILE", "ONCEPROOF_FAILPOINTS")


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoint file system as a job gets it: its jar, and the socket of `onceproof.instruments.checkpoint_gate`."""

    jar: Path
    socket: Path

    def settings(self) -> dict[str, str]:
        return {
            FILE_MANAGER: "onceproof.CheckpointFiles",
            "spark.hadoop.onceproof.checkpoint.socket": str(self.socket),
        }


def event_log(folder: Path) -> dict[str, str]:
    """Settings with which Spark tells in ``folder`` what became of each attempt of each task (`onceproof.pipeline.spark_events`)."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.absolute().as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def spark_environment(
    users: Mapping[str, str],
    *,
    class_path: tuple[Path, ...],
    archive: Path | None,
    scratch: Path,
    checkpoint: CheckpointFiles | None = None,
    cluster: Cluster | None = None,
    events: Path | None = None,
) -> dict[str, str]:
    """The Spark variables of a job whose environment would otherwise be ``users``: only those that ours change.

    - ``SPARK_DIST_CLASSPATH``: the Kafka connector and the checkpoint file system, after the user's own value.
      (``spark.driver.extraClassPath`` comes before Spark's own jars, and would be lost to a job that sets it.)
    - ``SPARK_SUBMIT_OPTS``: a driver that starts quickly, everything bound to loopback, no web UI, checkpoint files
      written through ours. As system properties Spark's settings are defaults: over them wins what is in the user's
      ``spark-defaults.conf``, over that ``PYSPARK_SUBMIT_ARGS`` and the job's builder. The user's own value comes last,
      so it wins over ours too.

    - ``MASTER``, where there is a ``cluster``: spark-submit would overwrite a ``spark.master`` among the system properties,
      and looks here last of all. ``events``: the folder of `event_log`.

    ``SPARK_CONF_DIR`` is left alone: each run's own would be on the class path, and keep the class archive from use.
    """
    # Last, because a class archive made without it still fits a class path that goes on after the archive's own.
    jars = driver_archive.class_path((*class_path, *([checkpoint.jar] if checkpoint is not None else [])))
    settings = {
        "spark.executor.extraClassPath": jars,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(scratch),
        "java.io.tmpdir": str(scratch),  # a killed JVM leaves files there, temporary checkpoints among them
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(checkpoint.settings() if checkpoint is not None else {}),
        **(event_log(events) if events is not None else {}),
    }
    secret = []
    if cluster is not None:
        tasks = {name: users[name] for name in _FOR_TASKS if name in users}
        settings |= cluster.settings(scratch, tasks)
        del settings["spark.executor.extraClassPath"]  # its workers have them, after Spark's own, as archived
        secret = [f"@{cluster.arguments}"]
    words = [*driver_archive.options(archive), *secret, *(f"-D{key}={value}" for key, value in settings.items())]
    # Spark's launcher splits like a shell: paths with spaces need their quotes.
    return {
        "SPARK_DIST_CLASSPATH": os.pathsep.join(filter(None, [users.get("SPARK_DIST_CLASSPATH"), jars])),
        "SPARK_SUBMIT_OPTS": " ".join(filter(None, [shlex.join(words), users.get("SPARK_SUBMIT_OPTS")])),
        **({"MASTER": users.get("MASTER", cluster.master)} if cluster is not None else {}),
    }


def job_environment(
    *,
    class_path: tuple[Path, ...],
    archive: Path | None,
    scratch: Path,
    passfile: Path | None,
    failpoints: Path | None,
    own: Mapping[str, str],
    secrets: Sequence[str],
    checkpoint: CheckpointFiles | None = None,
    cluster: Cluster | None = None,
    events: Path | None = None,
) -> dict[str, str]:
    """The whole environment of the job.

    Only what programs need to run is inherited, so that a run does not depend on whatever the shell happened to hold, and
    a secret reaches the job only if the scenario names it. For the first three see `spark_environment`.
    """
    users = {
        **inherited(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers otherwise take whatever python3 is first on PATH.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),  # PySpark makes a folder there while it starts, and leaves it if it is killed then
        **({"ONCEPROOF_FAILPOINTS": str(failpoints)} if failpoints is not None else {}),
        **({"PGPASSFILE": str(passfile)} if passfile is not None else {}),
        **{name: os.environ[name] for name in secrets if name in os.environ},
        **own,
    }
    sparks = spark_environment(
        users,
        class_path=class_path,
        archive=archive,
        scratch=scratch,
        checkpoint=checkpoint,
        cluster=cluster,
        events=events,
    )
    return {**users, **sparks}
