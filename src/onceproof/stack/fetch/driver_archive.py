"""Spark's classes in the form that the JVM maps into memory (AppCDS, JEP 350): halves the time of a driver's start.

Made once, like the brokers' (`onceproof.stack.fetch.class_archive`), by a small program that does what most pipelines do. It
fits only the very Java and class path that it was made with, or one that goes on after it; with any other the JVM starts
as if there were none. The JVM archives no class path with a folder that holds files, such as ``SPARK_CONF_DIR``, and of a
jar whose path has a space no class.
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

#: C1 only: a driver under test lives for seconds, in which C2 would take a core from it without paying back.
FLAGS = ("-XX:TieredStopAtLevel=1",)

#: The JVM prints on its standard output, the job's log, why it leaves a class out or an archive unused.
_SILENT = "-Xlog:cds*=off"

#: 35 s on two idle cores, a third of them the JVM's writing of it; on a first run others build and fetch beside it.
_DEADLINE_S = 300.0

#: What a JVM and a Python need to run; none of the user's Spark settings, which would change the class path.
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "JAVA_HOME", "SPARK_HOME", "PYTHONPATH")


def options(archive: Path | None) -> tuple[str, ...]:
    """JVM options of a driver that starts quickly, each one word. None of them chooses a collector: the job may."""
    return FLAGS if archive is None else (*FLAGS, f"-XX:SharedArchiveFile={archive}", _SILENT)


def class_path(jars: tuple[Path, ...]) -> str:
    """``SPARK_DIST_CLASSPATH`` with these jars; Spark puts it after its own jars."""
    return os.pathsep.join(str(jar) for jar in jars)


def is_useless(env: Mapping[str, str]) -> bool:
    """Whether no archive could serve: no Spark where SPARK_HOME says, or a folder with files on its class path."""
    if not (spark_home(env) / "jars").is_dir():
        return True
    conf = env.get("SPARK_CONF_DIR") or spark_home(env) / "conf"
    folders = [conf, env.get("HADOOP_CONF_DIR"), env.get("YARN_CONF_DIR")]
    return any(folder and Path(folder).is_dir() and any(Path(folder).iterdir()) for folder in folders)


def recipe(java: Java, connector: str, env: Mapping[str, str]) -> str:
    """What the archive depends on, as text. ``connector`` identifies its jars and where they lie.

    The JVM compares name, size and time of each jar, in the order in which the folder lists them: so does this.
    """
    jars = spark_home(env) / "jars"
    with os.scandir(jars) as entries:
        listed = [(entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries]
    program = Path(__file__).with_name("warm_driver.py").read_text(encoding="utf-8")
    return f"{java.path.resolve()} {java.version} {connector} {FLAGS} {jars} {listed} {program}"


def spark_home(env: Mapping[str, str]) -> Path:
    """As PySpark finds it: ``SPARK_HOME``, else the package itself."""
    if env.get("SPARK_HOME"):
        return Path(env["SPARK_HOME"])
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None, "onceproof depends on pyspark"
    return Path(found.origin).resolve().parent


def maker(java: Java, connector: tuple[Path, ...]) -> Callable[[Path, Progress], None]:
    """A function that leaves `FILE` in a folder."""

    def make(folder: Path, progress: Progress) -> None:
        if not (java.home / "lib" / "server" / "classes.jsa").is_file():
            # The archive is a layer on top of it. Asked first, because the JVM would tell only after all the work.
            raise EnvironmentProblem(f"{java.home} has no class archive of its own to build on (java -Xshare:dump)")
        what = "preparing Spark's classes for a quick start"
        progress.begin(what, steps=1)
        with Owner() as owner:
            _run(owner, folder / FILE, connector, progress)
            progress.step(what)
        progress.end(what)

    return make


def _run(owner: Owner, archive: Path, connector: tuple[Path, ...], progress: Progress) -> None:
    work = owner.temporary_folder()
    words = (*FLAGS, f"-XX:ArchiveClassesAtExit={archive}", _SILENT)
    env = {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "SPARK_DIST_CLASSPATH": class_path(connector),
        "SPARK_SUBMIT_OPTS": shlex.join(words),
        "TMPDIR": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    program = owner.start(
        "spark-classes",
        # -P: the folder of our modules must not hide other packages of the same names.
        [sys.executable, "-P", "-m", "onceproof.stack.fetch.warm_driver", work, *connector],
        log=owner.scratch / "driver.log",
        env=env,
        cwd=work,
        stop_signal=signal.SIGKILL,  # asked politely, the JVM would write its archive first
    )

    def ended() -> bool:
        return not program.is_running()

    wait_until(
        "Spark's classes to be archived",
        ended,
        deadline_s=_DEADLINE_S,
        abandon=progress.check,
        explain=program.log_tail,
    )
    if program.returncode != 0 or not archive.is_file():
        raise EnvironmentProblem(f"the JVM left no archive of Spark's classes; it said: {program.log_tail(5)}")
