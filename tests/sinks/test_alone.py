"""The installed onceproof-sinks on a real Postgres and a real broker, in a Python without the harness and without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceproof.sinks.errors import Fenced
from onceproof.stack.embedded import EmbeddedStack

from .bench import Bench, KafkaTarget, PostgresTarget
from .distribution import build, install, make_environment, run

pytestmark = [pytest.mark.real, pytest.mark.services]

#: Makes the sink of the recipe and writes each batch twice. Prints what was written.
WRITE = """
import importlib, json, sys
import pyarrow as pa
recipe, batches = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sink = getattr(importlib.import_module(f"onceproof_sinks.{recipe['module']}"), recipe["kind"])(*recipe["args"], **recipe["settings"])
print(json.dumps([sink.write(pa.table(rows), batch) for batch, rows in batches for _ in range(2)]))
assert "onceproof" not in sys.modules and "pyspark" not in sys.modules
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel, and pyarrow, which a job has with its PySpark."""
    folder = tmp_path_factory.mktemp("onceproof-sinks")
    python = make_environment(folder / "environment")
    install(python, f"{build(folder)}[binary]", "pyarrow")
    return python


@pytest.mark.parametrize("make", [PostgresTarget, KafkaTarget])
def test_both_packages_share_the_progress_of_a_pipeline(
    make: Callable[[EmbeddedStack], Any],
    python: Path,
    stack: EmbeddedStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job may change from one to the other: a replayed batch is skipped, the next one is written."""
    assert stack.postgres is not None
    monkeypatch.setenv("PGPASSFILE", str(stack.postgres.passfile))
    target = make(stack)
    bench = Bench(target, tmp_path)
    checkpoint = bench.checkpoint(5, 8, 11)
    assert bench.write(checkpoint, 0) is True
    older = target.recipe(checkpoint).make()
    batches = [(batch, target.rows(checkpoint, batch).to_pydict()) for batch in (0, 1)]
    recipe = json.dumps(target.recipe(checkpoint).__dict__)
    written = run(python, WRITE, recipe, json.dumps(batches), PGPASSFILE=str(stack.postgres.passfile))
    assert json.loads(written) == [False, False, True, False]
    if target.fences:
        with pytest.raises(Fenced):
            older.write(pa.table({}), 2)
    assert bench.write(checkpoint, 1) is False
    assert bench.write(checkpoint, 2) is True
    bench.shows(*range(11))
