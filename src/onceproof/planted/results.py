"""The results of a selftest, as values and as `selftest.json`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from onceproof.base.errors import EnvironmentProblem, UsageError

FILE = "selftest.json"


class Attempt(BaseModel):
    """One run, and whether it shows what it should."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    why: str
    outcome: str
    """The verdict's outcome; ``error`` if the run failed."""
    anomalies: dict[str, int] = {}
    """Anomaly -> number of rows or records that the claim does not allow."""
    batches: list[int] = []
    """The batches to which the named anomaly is attributed."""
    seconds: float = 0.0
    run: str = ""
    """The name of the run directory."""


class BugResult(BaseModel):
    """What the runs of one planted bug have shown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    onceproof: str
    date: str
    versions: dict[str, str] = {}
    """Service -> version."""
    attempts: list[Attempt] = []
    """With the fault."""
    vacuity: Attempt | None = None
    """Without it; None if that was not run."""
    control: Attempt | None = None
    """The remedy under the same faults; None if that was not run."""

    @property
    def caught(self) -> int:
        return sum(attempt.passed for attempt in self.attempts)

    @property
    def passed(self) -> bool:
        """Whether every attempt caught it, and no other run of it speaks against that."""
        others = [other for other in (self.vacuity, self.control) if other is not None]
        return 0 < self.caught == len(self.attempts) and all(other.passed for other in others)


Results = dict[str, BugResult]
"""Name of a planted bug -> its result."""

_adapter: TypeAdapter[Results] = TypeAdapter(Results)


def read(file: Path) -> Results:
    """Read stored results; none if there is no such file. Raises `UsageError` if it holds something else."""
    if not file.is_file():
        return {}
    try:
        return _adapter.validate_json(file.read_bytes())
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"]))
        raise UsageError(f"{file} does not hold results of a selftest: {where}: {detail['msg']}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None


def write(file: Path, results: Results) -> None:
    """Replace ``file``, atomically. Raises `EnvironmentProblem`."""
    draft = file.with_name(f".{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(as_text(results), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write {file}: {error.strerror}", hint="free some space, or name another file or folder"
        ) from None


def merged(old: Results, new: Results) -> Results:
    """``old`` with the results in ``new``. A part that was not run again (the control, say) is kept."""
    made = dict(old)
    for name, result in new.items():
        before = old.get(name)
        kept = {} if before is None else {"vacuity": before.vacuity, "control": before.control}
        again = {key: value for key in kept if (value := getattr(result, key)) is not None}
        made[name] = result.model_copy(update={**kept, **again})
    return dict(sorted(made.items()))


def as_text(results: Results) -> str:
    return json.dumps(_adapter.dump_python(results, mode="json"), indent=1) + "\n"
