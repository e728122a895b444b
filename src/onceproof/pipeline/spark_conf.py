"""The environment of a Spark job: the Kafka connector, default settings, and few of the shell's variables.

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
from onceproof.scenario.stack import LOOPBACK
from onceproof.stack.fetch import driver_archive
from onceproof.stack.spark_settings import AnyCluster, inherited

#: Variables of the job that its tasks need, and workers do not have: the password file, and the failpoints' socket.
_FOR_TASKS = ("PGPASSFILE", "ONCEPROOF_FAILPOINTS")

MOST_WAIT_MS = 100
"""The longest wait for a trigger with ``pipeline: {trigger: fast}``: short next to a batch, and no busy loop."""


def _python(cluster: AnyCluster | None, *, image: bool) -> dict[str, str]:
    """Which Python runs the driver's program and the tasks. Without it, Spark's workers use the first python3 on PATH."""
    here = os.environ.get("PYSPARK_PYTHON", sys.executable)
    tasks = here if cluster is None else cluster.python or here
    if image:
        return {"PYSPARK_DRIVER_PYTHON": "python3", **({"PYSPARK_PYTHON": tasks} if cluster is not None else {})}
    return {"PYSPARK_PYTHON": tasks, **({"PYSPARK_DRIVER_PYTHON": sys.executable} if tasks != here else {})}


@dataclass(frozen=True)
class CheckpointFiles:
    """The checkpoint file system: its jar, and the socket of `onceproof.instruments.checkpoint_gate`."""

    jar: Path
    socket: str
    """A path, or HOST:PORT."""
    secret: str | None = None
    """What the port asks for."""
    hurried: bool = False
    """Whether queries wait at most `MOST_WAIT_MS` for their next trigger, whatever interval the job sets."""

    def settings(self) -> dict[str, str]:
        return {
            **({"spark.hadoop.onceproof.trigger.most.ms": str(MOST_WAIT_MS)} if self.hurried else {}),
            FILE_MANAGER: "onceproof.CheckpointFiles",
            "spark.hadoop.onceproof.checkpoint.socket": self.socket,
        }

    def arguments(self, folder: Path) -> list[str]:
        """Words for the driver's JVM that lead it to the secret, in a file: any user can read the words."""
        if self.secret is None:
            return []
        file = folder / "checkpoint.args"
        file.touch(0o600)
        file.write_text(f"-Dspark.hadoop.onceproof.checkpoint.secret={self.secret}\n", encoding="utf-8")
        return [f"@{file}"]


def event_log(folder: Path) -> dict[str, str]:
    """Settings that make Spark log every task attempt to ``folder``, for `onceproof.pipeline.spark_events`."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.absolute().as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
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
    cluster: AnyCluster | None = None,
    events: Path | None = None,
    defaults: Mapping[str, str] | None = None,
    image: bool = False,
) -> dict[str, str]:
    """The whole environment of the job.

    It inherits only the variables that programs need to run. So a run does not depend on the shell, and a secret reaches the
    job only if the scenario names it. Spark's variables are:

    - ``SPARK_DIST_CLASSPATH``: the Kafka connector and the checkpoint file system, after the user's own value.
      (``spark.driver.extraClassPath`` would come before Spark's own jars, and a job that sets it would override ours.)
    - ``SPARK_SUBMIT_OPTS``: a driver that starts quickly, everything bound to loopback (or to the address that executors of an
      external cluster reach), no web UI, checkpoint files written through our manager. Spark takes settings among the system
      properties as defaults: the user's ``spark-defaults.conf`` overrides them, ``PYSPARK_SUBMIT_ARGS`` and the job's builder
      override that. The user's own value comes last, so it overrides ours too.
    - ``MASTER``, if there is a ``cluster``: spark-submit would overwrite ``spark.master`` among the system properties, and
      reads this variable last of all.

    With ``image`` the job runs in a container, and its image sets the variables that programs need: none is inherited.

    ``events`` is the folder for `event_log`; ``defaults`` are further settings. ``SPARK_CONF_DIR`` is not changed: a folder per run would be on the class path,
    and the class archive could not be used.
    """
    host = LOOPBACK if cluster is None else cluster.host
    users = {
        **({} if image else inherited()),
        "SPARK_LOCAL_IP": host,
        **_python(cluster, image=image),
        "PYTHONUNBUFFERED": "1",
        # PySpark creates a folder there while it starts, and leaves it behind if it is killed then.
        "TMPDIR": str(scratch),
        **({"ONCEPROOF_FAILPOINTS": str(failpoints)} if failpoints is not None else {}),
        **({"PGPASSFILE": str(passfile)} if passfile is not None else {}),
        **{name: os.environ[name] for name in secrets if name in os.environ},
        **own,
    }
    # The jar comes last: a class archive made without it still fits a class path that continues after the archive's own.
    files = (*class_path, *([checkpoint.jar] if checkpoint is not None else []))
    jars = driver_archive.class_path(files)
    settings = {
        "spark.executor.extraClassPath": jars,
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(scratch),
        "java.io.tmpdir": str(scratch),  # a killed JVM leaves files there, temporary checkpoints among them
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **(checkpoint.settings() if checkpoint is not None else {}),
        **(event_log(events) if events is not None else {}),
        **(defaults or {}),
    }
    secret = checkpoint.arguments(scratch) if checkpoint is not None else []
    if cluster is not None:
        tasks = {name: users[name] for name in _FOR_TASKS if name in users}
        # In local mode, tasks find these in the driver's environment.
        settings |= {f"spark.executorEnv.{name}": value for name, value in tasks.items()}
        settings |= cluster.settings(scratch, files)
        del settings["spark.executor.extraClassPath"]  # paths of this machine; the cluster gets the jars in its own way
        secret += [f"@{cluster.arguments}"] if cluster.arguments is not None else []
    words = [*driver_archive.options(archive), *secret, *(f"-D{key}={value}" for key, value in settings.items())]
    # Spark's launcher splits the value like a shell: paths with spaces need quotes.
    return {
        **users,
        "SPARK_DIST_CLASSPATH": os.pathsep.join(filter(None, [users.get("SPARK_DIST_CLASSPATH"), jars])),
        "SPARK_SUBMIT_OPTS": " ".join(filter(None, [shlex.join(words), users.get("SPARK_SUBMIT_OPTS")])),
        **({"MASTER": users.get("MASTER", cluster.master)} if cluster is not None else {}),
    }
