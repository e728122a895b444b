"""Which Java is used, and the error for one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.java import feature_of, find_java, parse_version


def fake_java(folder: Path, version: str, *, code: int = 0) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("output", "version", "feature"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', "17.0.15", 17),
        ('java version "21" 2023-09-19 LTS', "21", 21),
        ('openjdk version "1.8.0_392"', "1.8.0_392", 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', "25-ea", 25),
    ],
)
def test_versions_are_parsed_in_every_form(output: str, version: str, feature: int) -> None:
    assert parse_version(output) == version
    assert feature_of(version) == feature


def test_java_home_takes_precedence_over_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "seventeen", 'openjdk version "17.0.1"')
    other = fake_java(tmp_path / "eleven", 'openjdk version "11.0.2"')
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.version, java.home) == ("17.0.1", home)


def test_a_link_on_path_is_resolved_to_the_real_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.4"')
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "link")}).home == home


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "23.0.1"])
def test_an_unsupported_java_is_refused_with_its_version_and_path(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, f'openjdk version "{version}"')
    with pytest.raises(EnvironmentProblem) as caught:
        find_java({"JAVA_HOME": str(home)})
    assert version in str(caught.value)
    assert str(home) in str(caught.value)
    assert "install Java 17 or 21" in str(caught.value)


def test_the_error_for_no_java_says_where_it_was_searched(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no java on PATH"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_an_error_even_if_path_has_one(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "good", 'openjdk version "17.0.1"') / "bin"
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(path)})


def test_the_error_for_a_java_that_does_not_start_quotes_its_output(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "Error: could not create the Java Virtual Machine", code=1)
    with pytest.raises(EnvironmentProblem, match="could not create the Java Virtual Machine"):
        find_java({"JAVA_HOME": str(home)})
