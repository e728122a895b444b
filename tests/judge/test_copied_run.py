"""A run directory that is copied elsewhere, and judged there by another process, gives the same verdict."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from onceproof.judge.verdict import check


def stored_verdict(run_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run_dir / "verdict.json").read_text(encoding="utf-8"))
    assert document.pop("seconds") >= 0
    return document


def test_a_copy_gives_the_same_verdict_after_the_original_is_removed(clean_run: Any, tmp_path: Path) -> None:
    clean_run.scenario["chaos"] = [{"fault": "crash"}]
    clean_run.fault(batch=1)
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0})
    clean_run.record("events", {"p": 9, "o": 9, "k": "k", "n": 1})
    rows = clean_run.tables["output"]
    lost = next(n for n, row in enumerate(rows) if row["output"] == "events" and row["offset"] == 2)
    del rows[lost]
    here = clean_run.save()
    code = check(here).outcome.exit_code
    right = stored_verdict(here)
    assert len(right["anomalies"]) >= 3, right["anomalies"]

    there = tmp_path / "another machine's é" / "copied run"
    shutil.copytree(here, there)
    (there / "verdict.json").unlink()
    shutil.rmtree(here)
    program = [sys.executable, "-m", "onceproof", "check", there.name]
    done = subprocess.run(program, cwd=there.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert stored_verdict(there) == right
    assert str(here) not in (there / "verdict.json").read_text(encoding="utf-8")
