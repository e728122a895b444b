"""Stores what scenarios show on each kind of stack, for the table of docs/stacks.md.

Tests call `record` after they have checked the verdict. It writes only if ``ONCEPROOF_CONFORMANCE`` names the file, as the tox
environments ``external``, ``compose`` and ``full`` do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from onceproof.base.errors import ScenarioError
from onceproof.base.version import __version__
from onceproof.history.run_record import RunRecord
from onceproof.judge.findings import Verdict

from . import gate

VARIABLE = "ONCEPROOF_CONFORMANCE"
#: The gate's scenarios with Spark, one with Avro, one whose replay diverges, and every way to lose a request or an answer.
SCENARIOS = (
    *sorted({*gate.SCENARIOS, "avro-orders-to-topic", "replay-diverges"}),
    *("lost-ack-kafka", "lost-ack-postgres"),
    str(Path(__file__).parent / "scenarios" / "lost-request.yaml"),
)

Stack = Literal["embedded", "compose", "external"]


def record(
    stack: Stack, scenario: str, verdict: Verdict, run_dir: Path, services: Mapping[str, str] | None = None
) -> None:
    """Store a verdict that was as expected. ``services``: name -> version; None: what the run recorded."""
    if services is None:
        versions = RunRecord.read(run_dir).versions or {}
        services = {name: str(versions[name]) for name in ("kafka", "postgres") if name in versions}
    faults = [{"fault": f.fault, "target": f.target, "hit": f.hit} for f in verdict.faults]
    found = {"verdict": verdict.outcome.value, "anomalies": sorted(verdict.anomalies()), "faults": faults}
    _store(stack, scenario, {**found, "services": dict(services)})


def record_n_a(stack: Stack, scenario: str, refused: ScenarioError) -> None:
    """Store why a scenario cannot run there. A test fails if it is for another reason than a fault that needs control."""
    pattern = r"fault (.+) is n/a on stack \S+: (it needs control of .+)"
    found = [re.fullmatch(pattern, problem.message) for problem in refused.problems]
    assert all(found), refused
    _store(stack, scenario, {"n_a": "; ".join(dict.fromkeys(f"{one[1]}: {one[2]}" for one in found if one))})


def _store(stack: Stack, scenario: str, result: dict[str, Any]) -> None:
    if not (named := os.environ.get(VARIABLE)) or Path(scenario).stem not in {Path(each).stem for each in SCENARIOS}:
        return
    file = Path(named)
    stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    column = stored.setdefault(stack, {})
    date = datetime.now(UTC).date().isoformat()
    column[Path(scenario).stem] = {**result, "onceproof": __version__, "date": date}
    ordered = {name: dict(sorted(stored[name].items())) for name in sorted(stored)}
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
