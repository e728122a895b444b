"""A checkpoint gate for tests, and what it calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.scenario.points import Point

from .gate import Serve, Struck


@pytest.fixture
def struck() -> Struck:
    return Struck()


@pytest.fixture
def serve(tmp_path: Path, struck: Struck) -> Iterator[Serve]:
    open_gates = []

    def make(*wanted: tuple[int, Point], host: str | None = None) -> CheckpointGate:
        gate = CheckpointGate(
            tmp_path / "socket",
            tmp_path / "a checkpoint",
            wanted=lambda: wanted,
            on_point=struck,
            on_failure=struck.failures.append,
            on_query=lambda *said: struck.queries.append(said),
            host=host,
        )
        gate.start()
        open_gates.append(gate)
        return gate

    yield make
    for gate in open_gates:
        gate.close()
    assert struck.failures == []
