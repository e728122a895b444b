"""The Java that runs Kafka and Spark: Spark 4 wants 17 or 21, and one JDK serves both."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem

SUPPORTED = (17, 21)

_HINT = "install Java 17 or 21 (Debian, Ubuntu: openjdk-17-jre-headless) and let JAVA_HOME or PATH name it"

#: Options for every JVM on the machine (agents, debuggers) that would also change, or stop, the services of a run.
FOREIGN_OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")


@dataclass(frozen=True)
class Java:
    path: Path
    home: Path
    version: str
    """As it calls itself: ``17.0.15``."""

    @property
    def feature(self) -> int:
        """17 for ``17.0.15``, 8 for ``1.8.0_392``."""
        return feature_of(self.version)


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will use too: JAVA_HOME decides if it is set, else the first on PATH.

    Raises `EnvironmentProblem`: none there, one that does not start, or one that is neither 17 nor 21.
    """
    env = os.environ if env is None else env
    found, source = _candidate(env)
    version = _version_of(found, source)
    if feature_of(version) not in SUPPORTED:
        raise EnvironmentProblem(f"{source} is Java {version} ({found}), but Spark 4 wants 17 or 21", hint=_HINT)
    return Java(path=found, home=found.resolve().parent.parent, version=version)


def parse_version(told: str) -> str | None:
    """The version in what ``java -version`` prints, or None if it is in none of the usual forms."""
    match = re.search(r'version "([^"]+)"', told)
    return match[1] if match else None


def feature_of(version: str) -> int:
    numbers = [int(n) for n in re.findall(r"\d+", version)]
    # Up to Java 8 the number that everybody says was the second one (JEP 223).
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _candidate(env: Mapping[str, str]) -> tuple[Path, str]:
    home = env.get("JAVA_HOME")
    if home:
        # Not PATH as a second choice: Spark's launcher would still take JAVA_HOME, and fail later and worse.
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but there is no bin/java in it that may be run", hint=_HINT)
        return path, f"JAVA_HOME {home}"
    found = shutil.which("java", path=env.get("PATH"))
    if found is None:
        raise EnvironmentProblem("there is no Java: JAVA_HOME is not set and PATH holds no java", hint=_HINT)
    return Path(found), "the java on PATH"


def _version_of(java: Path, source: str) -> str:
    try:
        # Without the foreign options: their banner would come first, a bad one would keep the JVM from starting.
        env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
        done = subprocess.run([java, "-version"], env=env, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{source} ({java}) does not start: {error}", hint=_HINT) from error
    told = done.stderr + done.stdout
    version = parse_version(told)
    if done.returncode != 0 or version is None:
        said = told.strip() or "nothing"
        raise EnvironmentProblem(f"{source} ({java}) does not print its version; it printed: {said}", hint=_HINT)
    return version
