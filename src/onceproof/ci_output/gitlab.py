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


def code_quality(results: Sequence[CiResult], root: Path, before: str = "") -> str:
    """The report. GitLab shows only files of the repository: a scenario outside of ``root`` is reported at its name.

    ``before``: the report of earlier commands of the same job, whose entries stay. What is not such a report is replaced.
    """
    issues = {str(one["fingerprint"]): one for one in _entries(before)}
    issues |= {str(one["fingerprint"]): one for one in (_issue(each, root) for each in results if not each.passed)}
    return json.dumps(list(issues.values()), indent=2) + "\n"


def _entries(report: str) -> list[dict[str, object]]:
    try:
        found = json.loads(report)
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict) and "fingerprint" in one] if isinstance(found, list) else []


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
