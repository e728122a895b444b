"""Every shipped sink passes every check of `conformance`, on a real broker and a real Postgres.

Of a variant of a sink, the gate (`tox`) checks only what the variant adds, and `OF_VARIANTS`; `tox -e full` runs every check.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.stack.embedded import EmbeddedStack

from .bench import Bench
from .conformance import CHECKS, checks_of, crash_after_the_commit, replay
from .targets import TARGETS, VARIANTS

pytestmark = [pytest.mark.real, pytest.mark.services]

OF_VARIANTS = (replay, crash_after_the_commit)


def marks(sink: str, check: Callable[[Bench], None]) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.full,) if sink in VARIANTS and check in CHECKS and check not in OF_VARIANTS else ()


@pytest.fixture
def services(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> EmbeddedStack:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    return stack


@pytest.mark.parametrize(
    ("sink", "check"),
    [
        pytest.param(sink, check, marks=marks(sink, check), id=f"{sink}-{check.__name__}")
        for sink in TARGETS
        for check in checks_of(sink)
    ],
)
def test_a_shipped_sink(sink: str, check: Callable[[Bench], None], services: EmbeddedStack, tmp_path: Path) -> None:
    check(Bench(TARGETS[sink](services, "onceproof.sinks"), tmp_path))
