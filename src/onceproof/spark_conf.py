"""What a Spark job gets from outside: a configuration folder merged with the user's own, and a narrow environment.

``SPARK_CONF_DIR`` reaches a job started as plain ``python job.py``; what the job's own builder sets wins over it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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

_DEFAULT = re.compile(r"([^#\s=:][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*)")

_JOINED_BY = {
    "spark.driver.extraClassPath": ":",
    "spark.executor.extraClassPath": ":",
    "spark.driver.extraJavaOptions": " ",
    "spark.driver.defaultJavaOptions": " ",
}


def write_spark_conf(folder: Path, class_path: Sequence[Path], scratch: Path) -> Path:
    """Fill ``folder`` with the user's Spark configuration (from ``SPARK_CONF_DIR``, if set) plus ours; return it.

    Ours: the Kafka connector on the class path, everything bound to loopback, no web UI, and a JVM that starts fast
    (C1 and the serial collector halved the CPU of a cold start; ``defaultJavaOptions`` leaves the job's own options be).
    Of a setting that lists things the user's value is kept and ours added; of any other the user's wins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    users = os.environ.get("SPARK_CONF_DIR")
    if users and Path(users).is_dir():
        shutil.copytree(users, folder, dirs_exist_ok=True)
    defaults = folder / "spark-defaults.conf"
    settings = read_spark_defaults(defaults.read_text()) if defaults.exists() else {}
    jars = ":".join(str(jar) for jar in class_path)
    ours = {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    for key, value in ours.items():
        if key in settings and key in _JOINED_BY:
            settings[key] = f"{settings[key]}{_JOINED_BY[key]}{value}"
        else:
            settings.setdefault(key, value)
    defaults.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return folder


def read_spark_defaults(text: str) -> dict[str, str]:
    """Parse ``spark-defaults.conf``: ``key value`` or ``key=value`` a line, ``#`` comments."""
    settings = {}
    for line in text.splitlines():
        found = _DEFAULT.match(line.strip())
        if found:
            settings[found.group(1)] = found.group(2)
    return settings


def job_environment(
    *, spark_conf: Path, passfile: Path | None, failpoints: Path, own: Mapping[str, str], secrets: Sequence[str]
) -> dict[str, str]:
    """The whole environment of the job.

    Only what programs need to run is inherited, so that a run does not depend on whatever the shell happened to hold, and
    a secret reaches the job only if the scenario names it.
    """
    inherited = {
        name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    return {
        **inherited,
        "SPARK_CONF_DIR": str(spark_conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Workers otherwise take whatever python3 is first on PATH.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYTHONUNBUFFERED": "1",
        "ONCEPROOF_FAILPOINTS": str(failpoints),
        **({"PGPASSFILE": str(passfile)} if passfile is not None else {}),
        **{name: os.environ[name] for name in secrets if name in os.environ},
        **own,
    }
