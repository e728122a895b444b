"""The tables of `docs/stacks.md`, from `docs/stacks.json`, which tests write (`tests/conformance.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from pages.page import DOCS, ROOT, filled, table

PAGE = DOCS / "stacks.md"
RESULTS = DOCS / "stacks.json"
STACKS = ("embedded", "compose", "external")


class Result(BaseModel):
    """What a scenario showed on a stack. Its fields are those that `tests/conformance.py` writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    onceproof: str
    date: str
    verdict: str = ""
    anomalies: list[str] = []
    faults: list[dict[str, Any]] = []
    services: dict[str, str] = {}
    n_a: str = ""
    """Why it cannot run there; empty if it did."""


Results = Mapping[str, Mapping[str, Result]]
"""Stack -> scenario -> result."""


def files() -> dict[Path, str]:
    stored = TypeAdapter(dict[str, dict[str, Result]]).validate_json(RESULTS.read_bytes())
    names = sorted({name for column in stored.values() for name in column})
    verdicts = table(("scenario", "expected", *STACKS), (_row(name, stored) for name in names))
    return {
        PAGE: filled(
            PAGE,
            {
                "verdicts": verdicts,
                "reasons for n/a": table(("scenario", "stack", "why"), _reasons(stored)),
                "runs": table(("stack", "onceproof", "services", "dates of the runs"), _runs(stored)),
            },
        )
    }


def _row(name: str, stored: Results) -> tuple[str, ...]:
    own = ROOT / "tests" / "scenarios" / f"{name}.yaml"
    expect = load(own if own.is_file() else find(name)).expect
    return f"`{name}`", _shown(expect.verdict, expect.anomalies), *(_cell(stored.get(s, {}).get(name)) for s in STACKS)


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run"
    return "n/a" if result.n_a else _shown(result.verdict, result.anomalies)


def _shown(verdict: str, anomalies: list[str]) -> str:
    return f"{verdict}: {', '.join(sorted(anomalies))}" if anomalies else verdict


def _reasons(stored: Results) -> Iterator[tuple[str, ...]]:
    for stack in STACKS:
        for name, result in sorted(stored.get(stack, {}).items()):
            if result.n_a:
                yield f"`{name}`", stack, result.n_a


def _runs(stored: Results) -> Iterator[tuple[str, ...]]:
    for stack in STACKS:
        results = stored.get(stack, {}).values()
        if not results:
            yield stack, "", "", "not run"
            continue
        dates = sorted({result.date for result in results})
        versions = sorted({result.onceproof for result in results})
        services = sorted({f"{k} {v}" for result in results for k, v in result.services.items()})
        yield stack, ", ".join(versions), ", ".join(services), " to ".join(dict.fromkeys((dates[0], dates[-1])))
