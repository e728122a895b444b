"""The checkpoint file system's jar, compiled on first use from the Java sources that ship in ``src/onceproof/instruments/jvm``.

Always by the same pinned compiler (Eclipse's, one jar, which needs no JDK), so that one source gives one jar everywhere.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.driver_archive import spark_home
from onceproof.stack.fetch.java import FOREIGN_OPTIONS, Java
from onceproof.stack.fetch.progress import Progress

FILE = "onceproof-checkpoint.jar"

#: The oldest Java that Spark 4 runs on.
_RELEASE = "-17"

#: 2.5 CPU seconds.
_TIMEOUT_S = 120.0
_STOP_POLL_S = 0.1

_SOURCES = files("onceproof.instruments") / "jvm" / "onceproof"


def sources() -> dict[str, str]:
    """File name -> text, sorted."""
    found = {s.name: s.read_text(encoding="utf-8") for s in _SOURCES.iterdir() if s.name.endswith(".java")}
    return dict(sorted(found.items()))


def recipe(compiler: str, env: Mapping[str, str]) -> str:
    """What the jar depends on, as text. ``compiler`` identifies its jar."""
    return f"{compiler} {_RELEASE} {[jar.name for jar in _spark_jars(env)]} {sources()}"


def maker(java: Java, compiler: Path, env: Mapping[str, str]) -> Callable[[Path, Progress], None]:
    """A function that leaves `FILE` in a folder; ``env`` names the Spark to compile for, as in `spark_home`.

    It raises `EnvironmentProblem` with the compiler's own words where it refuses: a Spark whose classes lie elsewhere.
    """

    def make(folder: Path, progress: Progress) -> None:
        what = "compiling the checkpoint file system"
        progress.begin(what, steps=1)
        with tempfile.TemporaryDirectory(prefix="work.", dir=folder) as name:
            work = Path(name)
            for source, text in sources().items():
                (work / source).write_text(text, encoding="utf-8")
            classes = work / "classes"
            class_path = ":".join(str(jar) for jar in _spark_jars(env))
            # A file of arguments: the class path alone is longer than some systems allow a command to be.
            arguments = [_RELEASE, "-proc:none", "-nowarn", "-encoding", "UTF-8", "-classpath", class_path]
            arguments += ["-d", str(classes), *(str(work / source) for source in sources())]
            (work / "arguments").write_text("\n".join(f'"{word}"' for word in arguments), encoding="utf-8")
            _run([str(java.path), "-jar", str(compiler), f"@{work / 'arguments'}"], work, progress)
            _pack(classes, folder / FILE)
            progress.step(what)
        progress.end(what)

    return make


def _spark_jars(env: Mapping[str, str]) -> list[Path]:
    return sorted((spark_home(env) / "jars").glob("*.jar"))


def _pack(classes: Path, jar: Path) -> None:
    """Entries in order and without a time: the same classes always make the same file."""
    with ZipFile(jar, "w", ZIP_DEFLATED) as opened:
        for path in sorted(classes.rglob("*.class")):
            entry = ZipInfo(path.relative_to(classes).as_posix())
            entry.compress_type = ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, path.read_bytes())


def _run(argv: list[str], work: Path, progress: Progress) -> None:
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
    log = work / "log"
    with log.open("wb") as opened:
        process = subprocess.Popen(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=opened, stderr=opened)
    waited = 0.0
    try:
        while process.poll() is None:
            try:
                process.wait(_STOP_POLL_S)
            except subprocess.TimeoutExpired:
                waited += _STOP_POLL_S
                progress.check()
                if waited > _TIMEOUT_S:
                    raise EnvironmentProblem(
                        f"the Java compiler did not end within {_TIMEOUT_S:.0f} s",
                        hint="it needs seconds on a machine with a core to spare: run again when this one is less busy",
                    ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        said = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[:12])
        raise EnvironmentProblem(
            f"the checkpoint file system does not compile; the compiler said:\n{said}",
            hint="it is compiled against the Spark that the job uses: 4.x is wanted, with its jars complete "
            "(`onceproof doctor` says which one is found)",
        )
