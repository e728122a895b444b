"""Which Java is taken, and what is said of one that will not do."""

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
    ("told", "version", "feature"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', "17.0.15", 17),
        ('java version "21" 2023-09-19 LTS', "21", 21),
        ('openjdk version "1.8.0_392"', "1.8.0_392", 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', "25-ea", 25),
    ],
)
def test_versions_are_read_in_every_form(told: str, version: str, feature: int) -> None:
    assert parse_version(told) == version
    assert feature_of(version) == feature


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "seventeen", 'openjdk version "17.0.1"')
    other = fake_java(tmp_path / "eleven", 'openjdk version "11.0.2"')
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (java.version, java.feature, java.home) == ("17.0.1", 17, home)


def test_a_link_on_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.4"')
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "link")}).home == home


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "23.0.1"])
def test_another_java_is_refused_with_its_version_and_place(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, f'openjdk version "{version}"')
    with pytest.raises(EnvironmentProblem) as caught:
        find_java({"JAVA_HOME": str(home)})
    assert version in str(caught.value)
    assert str(home) in str(caught.value)
    assert "install Java 17 or 21" in str(caught.value)


def test_no_java_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="PATH holds no java"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named_and_path_not_tried(tmp_path: Path) -> None:
    path = fake_java(tmp_path / "good", 'openjdk version "17.0.1"') / "bin"
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(path)})


def test_one_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "Error: could not create the Java Virtual Machine", code=1)
    with pytest.raises(EnvironmentProblem, match="could not create the Java Virtual Machine"):
        find_java({"JAVA_HOME": str(home)})
