"""A copy of Spark's folder in which only ``bin/spark-submit`` is another program. Everything else is a link."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which

SUBMIT = Path("bin", "spark-submit")

#: ``exec`` of a program that does not exist would end the shell: hence the tests. SPARK_HOME is ours, the user has set none.
_SCRIPT = """#!/bin/sh
if [ -x {python} ] && [ -r {shim} ]; then
  exec {python} -I -S {shim} {real} {socket} "$@"
fi
unset SPARK_HOME
exec {real} "$@"
"""


def why_not(command: list[str], env: Mapping[str, str], folder: Path) -> str | None:
    """Why the starts of this job's JVM are left to Spark's scripts; None if it gets a SPARK_HOME that `make` makes in ``folder``.

    Another Python may have another Spark, and a user's own SPARK_HOME must win.
    """
    if "SPARK_HOME" in env:
        return "the job's environment sets SPARK_HOME"
    if which(command[0], path=env.get("PATH")) != which(sys.executable):
        return f"{Path(command[0]).name} is not the Python that runs onceproof, so its Spark is not known"
    if not (pyspark() / SUBMIT).is_file() or not Path("/bin/sh").exists():
        return f"there is no {SUBMIT} in the package pyspark"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return f"{folder} is on a file system without programs (noexec)"
    return None


def pyspark() -> Path:
    """The Spark that PySpark finds without SPARK_HOME: its own package."""
    found = find_spec("pyspark")
    assert found is not None and found.origin is not None, "onceproof depends on pyspark"
    return Path(found.origin).absolute().parent


def make(folder: Path, socket: Path) -> Path:
    """Create ``folder``, a SPARK_HOME whose ``bin/spark-submit`` asks the harness at ``socket``. Returns ``folder``."""
    home = pyspark()
    (folder / "bin").mkdir(parents=True)
    for entry in (*home.iterdir(), *(home / "bin").iterdir()):
        below = entry.relative_to(home)
        if below not in (SUBMIT.parent, SUBMIT):
            (folder / below).symlink_to(entry)
    words = {
        "python": sys.executable,
        "shim": str(Path(__file__).with_name("shim.py")),
        "real": str(home / SUBMIT),
        "socket": str(socket),
    }
    script = folder / SUBMIT
    script.write_text(_SCRIPT.format(**{name: shlex.quote(word) for name, word in words.items()}), encoding="utf-8")
    script.chmod(0o700)
    return folder
