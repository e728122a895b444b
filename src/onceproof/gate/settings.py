"""The table ``[gate]`` of onceproof.toml: which scenarios and qualifications the gate runs, and which verdict each must have."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from onceproof.base.duration import seconds
from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.judge.checker import checkers
from onceproof.scenario.problem import Complaint
from onceproof.scenario_files.explain import validate

FILE = "onceproof.toml"
_EXAMPLE = """for example:
  [gate]
  scenarios = [
      {path = "orders.yaml"},
      {path = "old_orders.yaml", expect = "violated", anomaly = "duplicate"},
  ]"""


class GateScenario(BaseModel):
    """One scenario of the gate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    """A scenario file, relative to onceproof.toml, or the name of a shipped scenario."""
    expect: Literal["held", "violated"] = "held"
    anomaly: str | None = None
    """For ``violated``: an anomaly that the run must show. By default, those that the scenario itself expects."""

    @property
    def name(self) -> str:
        """As it is shown, and as the baseline knows it."""
        return self.path

    @model_validator(mode="after")
    def _anomaly_of_a_known_bad(self) -> Self:
        if self.anomaly is not None and self.expect == "held":
            raise ValueError(f"anomaly {self.anomaly!r} needs expect = 'violated'")
        if self.anomaly is not None and self.anomaly not in checkers.names():
            raise ValueError(f"unknown anomaly {self.anomaly!r}; {suggest(self.anomaly, checkers.names())}")
        return self


class GateQualification(BaseModel):
    """One qualification of the gate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    """As of `GateScenario`."""
    expect: Literal["held", "violated"] = "held"
    """``held``: no cell may be violated. ``violated``: one must be."""
    budget: str | None = None
    """The most that it takes of the gate's budget: ``5m``. By default it may take all that is left."""
    tries: int = Field(1, ge=1)
    """At how many batches a cell that holds is tried, if the budget allows it."""

    @property
    def name(self) -> str:
        return f"qualify {self.path}"

    @property
    def budget_s(self) -> float:
        return float("inf") if self.budget is None else seconds(self.budget, "budget")

    @field_validator("budget")
    @classmethod
    def _is_a_duration(cls, text: str | None) -> str | None:
        try:
            return None if text is None or seconds(text, "budget") <= 0 else text
        except UsageError as wrong:
            raise ValueError(f"{wrong.message}; {wrong.hint}") from None


GateItem = GateScenario | GateQualification


class _Gate(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    scenarios: list[GateScenario] = []
    qualifications: list[GateQualification] = []
    baseline: str = "onceproof-gate.json"

    @model_validator(mode="after")
    def _lists_something(self) -> Self:
        if not self.scenarios and not self.qualifications:
            raise ValueError("scenarios and qualifications are both empty")
        return self


def _place(file: Path, text: str, gate: dict[str, Any], wrong: Complaint) -> str:
    """The file, the line if only one can be meant, and the path of the value. tomllib gives no lines."""
    key = next((step for step in reversed(wrong.loc) if isinstance(step, str)), "gate")
    pattern = re.compile(rf"(?<![\w-])[\"']?{re.escape(key)}[\"']?\s*=" if wrong.loc else r"^\s*\[gate\]")
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if pattern.search(line)]
    if len(lines) > 1 and len(wrong.loc) > 1 and isinstance(wrong.loc[1], int):
        item = gate[str(wrong.loc[0])][wrong.loc[1]]
        path = json.dumps(item.get("path")) if isinstance(item, dict) else ""
        lines = [number for number in lines if path in text.splitlines()[number - 1]]
    line = f":{lines[0]}" if len(lines) == 1 else ""
    return f"{file}{line}: gate{''.join(f'[{step}]' if isinstance(step, int) else f'.{step}' for step in wrong.loc)}"


@dataclass(frozen=True)
class GateSettings:
    file: Path
    items: tuple[GateItem, ...]
    baseline: Path

    def path_of(self, scenario: GateItem) -> Path | str:
        """The scenario's file, or the name of a shipped scenario."""
        path = self.file.parent / scenario.path
        return path if scenario.path.endswith((".yaml", ".yml")) else scenario.path


def read(file: Path) -> GateSettings:
    """The settings in ``file``; its other tables are not read. Raises `UsageError` that names the wrong value."""
    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint=f"create it, {_EXAMPLE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    if not isinstance(document.get("gate"), dict):
        raise UsageError(f"{file} has no table [gate]", hint=f"add it, {_EXAMPLE}")
    gate, wrong = validate(_Gate, json.loads(json.dumps(document["gate"], default=str)))  # TOML's dates, as text
    if gate is None:
        lines = [
            f"{_place(file, text, document['gate'], one)}: {one.message}{f'; {one.hint}' if one.hint else ''}"
            for one in wrong
        ]
        raise UsageError("\n".join(lines), hint=_EXAMPLE)
    for field, items in (("scenarios", gate.scenarios), ("qualifications", gate.qualifications)):
        paths = [item.path for item in items]
        if twice := next((path for path in paths if paths.count(path) > 1), None):
            raise UsageError(f"{file}: gate.{field} names {twice!r} twice", hint="keep one of them")
    return GateSettings(file, (*gate.scenarios, *gate.qualifications), file.parent / gate.baseline)
