"""Each line that keeps a sink correct is needed: a copy of the sink without it, or with it changed, fails a named check.

A mutant is the package of the sinks, copied under another name, with one text in one file replaced. Every check runs on it, until
one fails: that must be the check that this mutant names.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException

from onceproof.planted.mutants import Mutant, mutants
from onceproof.stack.embedded import EmbeddedStack

from .bench import LONGEST_S, Bench
from .conformance import BY_NAME
from .targets import TARGETS

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full]


@pytest.fixture
def services(stack: EmbeddedStack, monkeypatch: pytest.MonkeyPatch) -> EmbeddedStack:
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    return stack


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mutant], str]]:
    """Makes a mutant's package, and returns its name."""
    made: list[str] = []

    def make(mutant: Mutant) -> str:
        name = f"mutant_{mutant.sink}_{mutant.name}".replace("-", "_")
        folder = tmp_path / "packages" / name
        mutant.copy_sinks(folder)
        monkeypatch.syspath_prepend(str(folder.parent))
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in [module for module in sys.modules if module.split(".")[0] in made]:
        del sys.modules[name]


@pytest.mark.parametrize("mutant", mutants().values(), ids=lambda mutant: mutant.title)
def test_a_mutant_is_caught(
    mutant: Mutant, services: EmbeddedStack, package: Callable[[Mutant], str], tmp_path: Path
) -> None:
    bench = Bench(TARGETS[mutant.sink](services, package(mutant)), tmp_path)
    check = BY_NAME[mutant.caught_by]
    failed: list[BaseException | None] = []

    def run() -> None:
        try:
            check(bench)
        except BaseException as error:
            failed.append(error)
        else:
            failed.append(None)

    checking = threading.Thread(target=run, daemon=True)
    checking.start()
    checking.join(LONGEST_S)
    bench.target.heal()
    if not failed:
        return  # it waits for ever, which the check would never end
    if failed[0] is None:
        pytest.fail(f"{mutant.caught_by} passes without noticing the change")
    sink_error = importlib.import_module(f"{bench.target.package}.errors").SinkError
    if not isinstance(failed[0], (AssertionError, psycopg.Error, KafkaException, sink_error)):
        raise failed[0]  # the mutant is broken in another way than intended
