"""Among thousands of records each damaged one is named, and nothing else, wherever it is: by digests, and loaded whole."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.relations import digests
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.inputs import InputRecords

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZE, KEYS = 12_000, 20


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """The benchmark's module, which writes damaged runs of any size."""
    spec = spec_from_file_location("judge_runs", BENCHMARKS / "judge_runs.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


@pytest.mark.sources
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 10))])
@pytest.mark.parametrize(
    "only", [None, *(pytest.param(k, marks=pytest.mark.full) for k in ("lost", "doubled", "wrong", "late"))]
)
@pytest.mark.parametrize("output", ["kafka", "postgres"])
def test_every_damaged_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Any, output: str, only: str | None, seed: int
) -> None:
    damage = benchmark.Damage.at_random(SIZE // benchmark.PARTITIONS, KEYS, seed, only=only)
    benchmark.write_run(tmp_path / "run", SIZE, output, damage, KEYS)
    whole = judge(tmp_path / "run")
    monkeypatch.setattr(digests, "MOST_WHOLE", 1)
    monkeypatch.setattr(InputRecords, "is_cheap", lambda _inputs: False)
    by_digest = judge(tmp_path / "run")
    assert by_digest.findings == whole.findings
    assert by_digest.reasons == whole.reasons
    # A record that changes places with one of another batch is also late, and apart from its batch.
    found = [f for f in by_digest.findings if f.anomaly not in ("commit-ahead-of-effect", "torn-batch")]
    named = {(finding.anomaly, str(witness.cause)) for finding in found for witness in finding.witnesses}
    assert named == damage.named()
    assert sum(finding.total for finding in found) == len(named)
