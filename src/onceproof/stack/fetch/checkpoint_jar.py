"""Compiles the checkpoint file system's jar, on first use, from the Java sources in ``src/onceproof/instruments/jvm``.

The compiler is pinned (Eclipse's, one jar, which needs no JDK), so that the same source gives the same jar everywhere.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.command import run
from onceproof.stack.fetch.driver_archive import spark_home
from onceproof.stack.fetch.java import FOREIGN_OPTIONS, Java
from onceproof.stack.fetch.progress import Progress

FILE = "onceproof-checkpoint.jar"

#: The oldest Java that Spark 4 runs on.
_RELEASE = "-17"

#: It takes 2.5 CPU seconds.
_TIMEOUT_S = 120.0

_SOURCES = files("onceproof.instruments") / "jvm" / "onceproof"


def sources() -> dict[str, str]:
    """File name -> text, sorted."""
    found = {s.name: s.read_text(encoding="utf-8") for s in _SOURCES.iterdir() if s.name.endswith(".java")}
    return dict(sorted(found.items()))


def recipe(compiler: str, env: Mapping[str, str]) -> str:
    """Everything that the jar depends on, as text. ``compiler`` identifies the compiler's jar."""
    return f"{compiler} {_RELEASE} {[jar.name for jar in _spark_jars(env)]} {sources()}"


def maker(java: Java, compiler: Path, env: Mapping[str, str]) -> Callable[[Path, Progress], None]:
    """A function that compiles `FILE` into a folder; ``env`` names the Spark to compile for, as in `spark_home`.

    It raises `EnvironmentProblem` with the compiler's output if that Spark lacks the classes that the sources use.
    """

    def make(folder: Path, progress: Progress) -> None:
        doing = progress.doing("compiling the checkpoint file system", steps=1)
        with doing as step, tempfile.TemporaryDirectory(prefix="work.", dir=folder) as name:
            work = Path(name)
            for source, text in sources().items():
                (work / source).write_text(text, encoding="utf-8")
            classes = work / "classes"
            class_path = ":".join(str(jar) for jar in _spark_jars(env))
            # Arguments in a file: the class path alone is longer than some systems allow for a command line.
            arguments = [_RELEASE, "-proc:none", "-nowarn", "-encoding", "UTF-8", "-classpath", class_path]
            arguments += ["-d", str(classes), *(str(work / source) for source in sources())]
            (work / "arguments").write_text("\n".join(f'"{word}"' for word in arguments), encoding="utf-8")
            _compile([str(java.path), "-jar", str(compiler), f"@{work / 'arguments'}"], work, progress)
            _pack(classes, folder / FILE)
            step()

    return make


def _spark_jars(env: Mapping[str, str]) -> list[Path]:
    return sorted((spark_home(env) / "jars").glob("*.jar"))


def _pack(classes: Path, jar: Path) -> None:
    """Write the classes in order and without times, so that the same classes always give the same file."""
    with ZipFile(jar, "w", ZIP_DEFLATED) as opened:
        for path in sorted(classes.rglob("*.class")):
            entry = ZipInfo(path.relative_to(classes).as_posix())
            entry.compress_type = ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, path.read_bytes())


def _compile(argv: list[str], work: Path, progress: Progress) -> None:
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
    code, lines = run(argv, cwd=work, env=env, progress=progress, timeout_s=_TIMEOUT_S)
    if code is None:
        raise EnvironmentProblem(
            f"the Java compiler did not end within {_TIMEOUT_S:.0f} s",
            hint="it takes seconds on a machine with a free core: run again when this one is less busy",
        )
    if code != 0:
        output = "\n".join(lines[:12])
        raise EnvironmentProblem(
            f"the checkpoint file system does not compile; the compiler printed:\n{output}",
            hint="it is compiled against the Spark that the job uses: this must be Spark 4 with all its jars "
            "(`onceproof doctor` shows which one was found)",
        )
