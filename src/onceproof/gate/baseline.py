"""The committed baseline: what each scenario of the gate covered when it last passed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.history import run_files
from onceproof.judge.findings import Outcome, Verdict
from onceproof.qualify.session import Qualification
from onceproof.scenario.model import Scenario

_EXPECTED = "expected."
#: The fields of an output that do not say where it is, how it is read and how it is compared: each is compared by itself.
_BY_THEMSELVES = frozenset(["claim", "ignore"])
_OF_QUERY = " of "


class Coverage(BaseModel):
    """What a run examined."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    faults: list[str]
    """The faults that hit, sorted. Without their queries if ``compared`` is None."""
    input: int
    """The number of committed input records."""
    claim: dict[str, Any]
    not_evaluated: list[str]
    """The checkers that could not be evaluated."""
    ignored: dict[str, list[str]]
    """Output -> columns that were not compared."""
    outputs: dict[str, int | None] | None = None
    """Output -> number of rows that the oracle expected in it, whatever the job wrote. None of an output that the oracle does not
    describe. None in place of all: of version 1, which did not store them."""
    oracle: str | None = None
    """The kind of the oracle and a digest of its settings. None: of version 1."""
    compared: dict[str, str] | None = None
    """Output -> a digest of what is compared and how (topic or table, query, identity, columns, tolerances, ...). None: of an earlier
    onceproof."""
    seconds: float

    @classmethod
    def of(cls, verdict: Verdict, scenario: Scenario) -> Coverage:
        faults = [
            f"{fault.fault} {fault.target}, {'' if fault.batch is None else f'batch {fault.batch} @ '}{fault.point}"
            + (f"{_OF_QUERY}{fault.query}" if fault.query else "")
            for fault in verdict.faults
            if fault.hit
        ]
        return cls(
            faults=sorted(faults),
            input=verdict.counts.get("input", 0),
            claim=verdict.claim.to_json(),
            not_evaluated=sorted(verdict.not_evaluated),
            ignored={output: sorted(columns) for output, columns in sorted(verdict.ignored.items())},
            outputs=_rows_of_the_oracle(verdict, scenario),
            oracle=_identity_of_oracle(scenario),
            compared={
                name: _digest(spec.model_dump(mode="json", exclude=set(_BY_THEMSELVES), exclude_defaults=True))
                for name, spec in sorted(scenario.outputs.items())
            },
            seconds=round(verdict.seconds, 1),
        )

    def losses(self, before: Coverage) -> Iterator[str]:
        """What the run with coverage ``before`` examined and this one did not."""
        hit = self.faults if before.compared is not None else [fault.partition(_OF_QUERY)[0] for fault in self.faults]
        for fault, count in (Counter(before.faults) - Counter(hit)).items():
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
        outputs = self.outputs or {}
        for output, rows in (before.outputs or {}).items():
            now = outputs.get(output)
            if output not in outputs:
                yield f"no longer judged: output {output}"
            elif rows is not None and now is not None and now < rows:
                yield f"{now:,} rows expected in {output} instead of {rows:,}"
        how = self.compared or {}
        for output, digest in (before.compared or {}).items():
            # The oracle expects nothing of an output that must stay empty, or that holds dead letters.
            if output not in how and output not in (before.outputs or {}):
                yield f"no longer judged: output {output}"
            elif how.get(output, digest) != digest:
                yield f"compared in another way: output {output}"
        if before.oracle is not None and self.oracle != before.oracle:
            yield f"another oracle: {self.oracle} instead of {before.oracle}"

    @property
    def lacking(self) -> str | None:
        """What an earlier onceproof did not store, so that nothing can notice its loss; None if all is there."""
        if self.outputs is None or self.oracle is None:
            return "its outputs and its oracle"
        return "how its outputs are compared" if self.compared is None else None

    def before_version_3(self) -> Coverage:
        """The same without the digests of outputs, which did not say where an output is; and of faults it did not say the query."""
        return self.model_copy(update={"compared": None})


class HeldCells(BaseModel):
    """What a qualification exercised."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cells: list[str]
    """The names of the cells that were exercised and held, sorted."""
    first: Coverage | None = None
    """What the run without faults examined: a cell that holds shows less if less is claimed. None: of an earlier onceproof."""
    seconds: float

    @classmethod
    def of(cls, result: Qualification) -> HeldCells:
        held = sorted(cell.name for cell in result.cells if cell.exercised and cell.verdict is Outcome.HELD)
        first = Coverage.of(result.first, result.scenario)
        return cls(cells=held, first=first, seconds=round(result.progress.spent_s, 1))

    @property
    def lacking(self) -> str | None:
        """What an earlier onceproof did not store; None if all is there."""
        return "what its run without faults examined" if self.first is None else self.first.lacking

    def before_version_3(self) -> HeldCells:
        return self.model_copy(update={"first": None if self.first is None else self.first.before_version_3()})


def _rows_of_the_oracle(verdict: Verdict, scenario: Scenario) -> dict[str, int | None]:
    """The job decides how many states a changelog leaves out and how many rows are dead letters: the coverage is the same."""
    found: dict[str, int | None] = {}
    for name, rows in sorted(verdict.counts.items()):
        if name.startswith(_EXPECTED):
            output = name.removeprefix(_EXPECTED)
            spec = scenario.outputs.get(output)
            described = spec is None or not spec.is_side_output
            found[output] = verdict.counts.get(f"oracle.{output}", rows) if described else None
    return found


def _identity_of_oracle(scenario: Scenario) -> str:
    """``sql 0f3a5c...``. A setting that has its default does not count: a later version of onceproof may have more of them.

    Nor does the folder of this checkout or of onceproof count, where ``{here}`` of a base in another folder names it: CI has another.
    """
    settings = scenario.oracle.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return f"{scenario.oracle.kind} {_digest(settings)}"


def _digest(settings: dict[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True)
    for folder in (Path(__file__).resolve().parents[1], Path.cwd()):
        text = text.replace(json.dumps(f"{folder}/").strip('"'), "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Baseline(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1, 2, 3] = 3
    """1 has no outputs and no oracles; 2 does not say where outputs are, which queries write them, and of which query a fault is."""
    scenarios: dict[str, Coverage]
    qualifications: dict[str, HeldCells] = {}

    def seconds(self, name: str) -> float | None:
        """How long it took when the baseline was made; None if it is not in it."""
        known = self.scenarios.get(name) or self.qualifications.get(name)
        return None if known is None else known.seconds

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Raises `UsageError` with the command that makes it, if there is no baseline or it is of another version."""
        update = "make it with: onceproof gate --update"
        try:
            return cls.model_validate_json(path.read_bytes())._of_this_version()
        except OSError:
            raise UsageError(f"there is no baseline {path}", hint=f"{update}, and commit it") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{path} is not a baseline of version 1, 2 or 3: {where}: {first['msg']}", hint=update
            ) from None

    def _of_this_version(self) -> Baseline:
        if self.version == 3:
            return self
        scenarios = {name: known.before_version_3() for name, known in self.scenarios.items()}
        qualifications = {name: known.before_version_3() for name, known in self.qualifications.items()}
        return Baseline(scenarios=scenarios, qualifications=qualifications)

    def write(self, path: Path) -> None:
        """Raises `EnvironmentProblem`."""
        document = self.model_dump(exclude=None if self.qualifications else {"qualifications"})
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        mode = path.stat().st_mode if path.exists() else 0o644  # it is committed: not for its owner alone
        try:
            run_files.write_text(path.resolve(), text)  # a full disk must not cost the old one
            path.chmod(mode)
        except OSError as error:
            raise EnvironmentProblem(f"cannot write the baseline {path}: {error.strerror}") from None
