"""The committed baseline: what each scenario of the gate covered when it last passed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.judge.findings import Verdict


class Coverage(BaseModel):
    """What a run examined."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: list[str]
    """The faults that hit, sorted."""
    input: int
    """The number of committed input records."""
    claim: dict[str, Any]
    not_evaluated: list[str]
    """The checkers that could not be evaluated."""
    ignored: dict[str, list[str]]
    """Output -> columns that were not compared."""
    seconds: float

    @classmethod
    def of(cls, verdict: Verdict) -> Coverage:
        faults = [
            f"{fault.fault} {fault.target}, {'' if fault.batch is None else f'batch {fault.batch} @ '}{fault.point}"
            for fault in verdict.faults
            if fault.hit
        ]
        return cls(
            faults=sorted(faults),
            input=verdict.counts.get("input", 0),
            claim=json.loads(json.dumps(verdict.claim, default=str)),
            not_evaluated=sorted(verdict.not_evaluated),
            ignored={output: sorted(columns) for output, columns in sorted(verdict.ignored.items())},
            seconds=round(verdict.seconds, 1),
        )

    def losses(self, before: Coverage) -> Iterator[str]:
        """What the run with coverage ``before`` examined and this one did not."""
        for fault, count in (Counter(before.faults) - Counter(self.faults)).items():
            yield f"no longer hit: {fault}" + (f" ({count} times)" if count > 1 else "")
        if self.input < before.input:
            yield f"{self.input:,} input records instead of {before.input:,}"
        for name in sorted({*before.claim, *self.claim}):
            if self.claim.get(name) != before.claim.get(name):
                yield f"another claim: {name} {self.claim.get(name)} instead of {before.claim.get(name)}"
        for checker in sorted({*self.not_evaluated} - {*before.not_evaluated}):
            yield f"no longer evaluated: {checker}"
        for output, columns in self.ignored.items():
            for column in sorted({*columns} - {*before.ignored.get(output, ())}):
                yield f"no longer compared: {output}.{column}"


class Baseline(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    scenarios: dict[str, Coverage]

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Raises `UsageError` with the command that makes it, if there is no baseline or it is of another version."""
        update = "make it with: onceproof gate --update"
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise UsageError(f"there is no baseline {path}", hint=f"{update}, and commit it") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path} is not a baseline of version 1: {where}: {first['msg']}", hint=update) from None

    def write(self, path: Path) -> None:
        """Raises `EnvironmentProblem`."""
        text = json.dumps(self.model_dump(), indent=2, sort_keys=True) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(f"cannot write the baseline {path}: {error.strerror}") from None
