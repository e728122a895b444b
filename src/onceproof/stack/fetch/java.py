"""Finds the Java that runs Kafka and Spark: Spark 4 needs 17 or 21, and one Java serves both."""

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

_HINT = "install Java 17 or 21 (Debian, Ubuntu: openjdk-17-jre-headless) and set JAVA_HOME to it, or put it on PATH"

#: Variables with options for every JVM (agents, debuggers) that would also change or break the services of a run.
FOREIGN_OPTIONS = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")


@dataclass(frozen=True)
class Java:
    path: Path
    home: Path
    version: str
    """The version that it prints: ``17.0.15``."""


def find_java(env: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark would also use: the one in JAVA_HOME if that is set, else the first on PATH.

    Raises `EnvironmentProblem` if there is none, or if it does not start or is neither 17 nor 21.
    """
    env = os.environ if env is None else env
    found, source = _candidate(env)
    version = _version_of(found, source)
    if feature_of(version) not in SUPPORTED:
        raise EnvironmentProblem(f"{source} is Java {version} ({found}), but Spark 4 needs 17 or 21", hint=_HINT)
    return Java(path=found, home=found.resolve().parent.parent, version=version)


def parse_version(output: str) -> str | None:
    """The version in the output of ``java -version``, or None if there is none in a usual form."""
    match = re.search(r'version "([^"]+)"', output)
    return match[1] if match else None


def feature_of(version: str) -> int:
    """17 for ``17.0.15``, 8 for ``1.8.0_392``."""
    numbers = [int(n) for n in re.findall(r"\d+", version)]
    # Up to Java 8 the feature number was the second one: 1.8 (JEP 223).
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _candidate(env: Mapping[str, str]) -> tuple[Path, str]:
    home = env.get("JAVA_HOME")
    if home:
        # PATH is not tried: Spark's launcher would still use JAVA_HOME, and fail later with a worse message.
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise EnvironmentProblem(f"JAVA_HOME is {home}, but it contains no executable bin/java", hint=_HINT)
        return path, f"JAVA_HOME {home}"
    found = shutil.which("java", path=env.get("PATH"))
    if found is None:
        raise EnvironmentProblem("no Java found: JAVA_HOME is not set and there is no java on PATH", hint=_HINT)
    return Path(found), "the java on PATH"


def _version_of(java: Path, source: str) -> str:
    try:
        # Without the foreign options: the JVM prints them first, and a bad one would prevent it from starting.
        env = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
        done = subprocess.run([java, "-version"], env=env, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"{source} ({java}) does not start: {error}", hint=_HINT) from error
    output = done.stderr + done.stdout
    version = parse_version(output)
    if done.returncode != 0 or version is None:
        printed = output.strip() or "nothing"
        raise EnvironmentProblem(f"{source} ({java}) does not print its version; it printed: {printed}", hint=_HINT)
    return version
