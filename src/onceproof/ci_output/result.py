"""The result of one scenario, as a CI server shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceproof.api.runs import Run
from onceproof.scenario_files.lines import line_of_verdict


@dataclass(frozen=True)
class CiResult:
    scenario: str
    path: Path | None
    """The scenario's file; None if the result has none (it is only in a baseline)."""
    passed: bool
    status: str
    """``held``, ``violated``, ``regression``, ..."""
    why: str
    """One line."""
    detail: str = ""
    """The findings with their witnesses, and the path of the report. Several lines."""

    def place(self, root: Path) -> tuple[str, int] | None:
        """The scenario's file relative to ``root``, and the line of its claim; None if it is not below ``root``."""
        if self.path is None or not self.path.resolve().is_relative_to(root.resolve()):
            return None
        return self.path.resolve().relative_to(root.resolve()).as_posix(), line_of_verdict(self.path)


def of_run(run: Run, path: Path | None, *, passed: bool, status: str, why: str, expected: str) -> CiResult:
    """The result of a scenario that was judged."""
    detail = "" if passed else run.explain(f"expected {expected}")
    return CiResult(run.scenario.name, path, passed, status, why, detail)
