"""The hooks of a warm session, without Spark."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import onceproof.sinks
from onceproof.sinks import failpoints
from onceproof.warm import hooks


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sinks as their own distribution installs them."""
    (tmp_path / "onceproof_sinks").symlink_to(Path(onceproof.sinks.__file__).parent)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "onceproof_sinks"]:
        del sys.modules[name]


@pytest.mark.usefixtures("alone")
def test_a_session_watches_the_points_of_both_packages_of_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reach", "report"):
        monkeypatch.setattr(failpoints, name, getattr(failpoints, name))  # and restores it
    reached: list[str] = []
    monkeypatch.setattr(hooks, "_reached", reached.append)
    hooks._watch_failpoints()
    for package in ("onceproof.sinks", "onceproof_sinks"):
        points = importlib.import_module(f"{package}.failpoints")
        points.reach("before-sink-commit", sink="kafka", batch=0, query_id="q")
        points.report("committed", sink="kafka", batch=0, query_id="q")
    assert reached == ["failpoint", "failpoint"]


def test_a_session_does_not_need_the_other_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("reach", "report"):
        monkeypatch.setattr(failpoints, name, getattr(failpoints, name))
    monkeypatch.setattr(hooks, "_SINKS", ("onceproof.sinks", "onceproof_sinks_that_nobody_installed"))
    reached: list[str] = []
    monkeypatch.setattr(hooks, "_reached", reached.append)
    hooks._watch_failpoints()
    failpoints.reach("before-sink-commit", sink="kafka", batch=0, query_id="q")
    assert reached == ["failpoint"]
