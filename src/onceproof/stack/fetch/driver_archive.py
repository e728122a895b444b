"""Makes the class archive of Spark, which the JVM maps into memory (AppCDS, JEP 350): halves the time of a driver's start.

Like that of Kafka (`onceproof.stack.fetch.class_archive`) it is made once, by a small program that does what most pipelines
do. It fits only exactly the Java and class path that it was made with, or a class path that begins with that one; with any
other the JVM ignores it. The JVM makes no archive for a class path with a folder that contains files, such as
``SPARK_CONF_DIR``, and archives no class from a jar whose path contains a space.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.stack.fetch.java import Java
from onceproof.stack.fetch.progress import Progress
from onceproof.stack.processes.owner import Owner

FILE = "spark.jsa"

#: C1 only: a driver under test lives for seconds, too short for the work of the C2 compiler to pay off.
FLAGS = ("-XX:TieredStopAtLevel=1",)

#: Otherwise the JVM prints to its standard output, the job's log, why it omits a class or ignores an archive.
_SILENT = "-Xlog:cds*=off"

#: It takes 35 s on two idle cores, a third of them for writing; on a first run other components are made at the same time.
_DEADLINE_S = 300.0

#: Variables that a JVM and Python need; none of the user's Spark settings, which would change the class path.
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "JAVA_HOME", "SPARK_HOME", "PYTHONPATH")


def options(archive: Path | None) -> tuple[str, ...]:
    """JVM options for a driver that starts quickly. None of them chooses a garbage collector: that is up to the job."""
    return FLAGS if archive is None else (*FLAGS, f"-XX:SharedArchiveFile={archive}", _SILENT)


def class_path(jars: tuple[Path, ...]) -> str:
    """The value of ``SPARK_DIST_CLASSPATH`` for these jars; Spark puts them after its own jars."""
    return os.pathsep.join(str(jar) for jar in jars)


def is_useless(env: Mapping[str, str]) -> bool:
    """Whether no archive could be used: SPARK_HOME has no Spark, or a folder with files is on the class path."""
    if not (spark_home(env) / "jars").is_dir():
        return True
    conf = env.get("SPARK_CONF_DIR") or spark_home(env) / "conf"
    folders = [conf, env.get("HADOOP_CONF_DIR"), env.get("YARN_CONF_DIR")]
    return any(folder and Path(folder).is_dir() and any(Path(folder).iterdir()) for folder in folders)


def recipe(java: Java, connector: str, env: Mapping[str, str]) -> str:
    """Everything that the archive depends on, as text. ``connector`` identifies its jars and their folder.

    The JVM compares name, size and time of each jar in the order of the directory listing, so the text has them too.
    """
    jars = spark_home(env) / "jars"
    with os.scandir(jars) as entries:
        listed = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries]
    program = Path(__file__).with_name("warm_driver.py").read_text(encoding="utf-8")
    return f"{java.path.resolve()} {java.version} {connector} {FLAGS} {jars} {listed} {program}"


def spark_home(env: Mapping[str, str]) -> Path:
    """Spark's folder, as PySpark finds it: ``SPARK_HOME``, else the package itself."""
    if env.get("SPARK_HOME"):
        return Path(env["SPARK_HOME"])
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None, "onceproof depends on pyspark"
    return Path(found.origin).resolve().parent


def maker(java: Java, connector: tuple[Path, ...]) -> Callable[[Path, Progress], None]:
    """A function that writes `FILE` into a folder."""

    def make(folder: Path, progress: Progress) -> None:
        if not (java.home / "lib" / "server" / "classes.jsa").is_file():
            # The archive is a layer on top of it. Checked first, because the JVM would report it only after all the work.
            raise EnvironmentProblem(f"{java.home} has no class archive of its own to build on (java -Xshare:dump)")
        with progress.doing("preparing Spark's classes for a quick start", steps=1) as step, Owner() as owner:
            _run(owner, folder / FILE, connector, progress)
            step()

    return make


def _run(owner: Owner, archive: Path, connector: tuple[Path, ...], progress: Progress) -> None:
    work = owner.temporary_folder()
    jvm_options = (*FLAGS, f"-XX:ArchiveClassesAtExit={archive}", _SILENT)
    env = {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "SPARK_DIST_CLASSPATH": class_path(connector),
        "SPARK_SUBMIT_OPTS": shlex.join(jvm_options),
        "TMPDIR": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    program = owner.start(
        "spark-classes",
        # -P: the folder of onceproof's modules must not hide other packages of the same names.
        [sys.executable, "-P", "-m", "onceproof.stack.fetch.warm_driver", work, *connector],
        log=owner.scratch / "driver.log",
        env=env,
        cwd=work,
        stop_signal=signal.SIGKILL,  # on SIGTERM the JVM would write its archive first
    )
    wait_until(
        "Spark's classes to be archived",
        lambda: not program.is_running(),
        deadline_s=_DEADLINE_S,
        abandon=progress.check,
        explain=program.log_tail,
    )
    if program.returncode != 0 or not archive.is_file():
        raise EnvironmentProblem(f"the JVM wrote no archive of Spark's classes; its last output: {program.log_tail(5)}")
