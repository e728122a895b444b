"""GitLab CI: a code quality report, which a merge request shows at the line of each scenario that did not pass.

Source: GitLab's documentation of code quality, "Code Quality report format": a JSON list.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from onceproof.base.visible import visible
from onceproof.ci_output.result import CiResult

FILE = "gl-code-quality-report.json"


def code_quality(results: Sequence[CiResult], root: Path) -> str:
    """The report. GitLab shows only files of the repository: a scenario outside of ``root`` is reported at its name."""
    return json.dumps([_issue(result, root) for result in results if not result.passed], indent=2) + "\n"


def _issue(result: CiResult, root: Path) -> dict[str, object]:
    path, line = result.place(root) or (result.scenario, 1)
    check = f"onceproof-{result.status.replace(' ', '-')}"
    fingerprint = hashlib.sha256(f"{path}\0{result.scenario}\0{check}\0{result.why}".encode()).hexdigest()
    return {
        "description": visible(f"{result.scenario}: {result.status}, {result.why}"),
        "check_name": check,
        "fingerprint": fingerprint,
        "severity": "major" if result.status in ("inconclusive", "not run", "error") else "blocker",
        "location": {"path": path, "lines": {"begin": line}},
    }
