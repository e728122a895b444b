"""Every shipped sink passes every check of `conformance`, on a real broker and a real Postgres."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.stack.embedded import EmbeddedStack

from .bench import Bench
from .conformance import CHECKS, OF
from .targets import TARGETS

pytestmark = [pytest.mark.real, pytest.mark.services]


@pytest.fixture
def services(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> EmbeddedStack:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    return stack


@pytest.mark.parametrize(
    ("sink", "check"),
    [(sink, check) for sink in TARGETS for check in (*CHECKS, *OF.get(sink, ()))],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_shipped_sink(sink: str, check: Callable[[Bench], None], services: EmbeddedStack, tmp_path: Path) -> None:
    check(Bench(TARGETS[sink](services, "onceproof.sinks"), tmp_path))
