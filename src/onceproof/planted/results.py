"""The results of a selftest, as values and as `selftest.json`."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
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

    named: str
    """What the bug named when it ran (`onceproof.planted.catalogue.Bug.named`)."""
    onceproof: str
    date: str
    digest: str = ""
    """Of what ran: the scenarios of the bug and of its remedy, and the files that they name. Empty: of an older onceproof, which stored none."""
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
        """Whether every run of it is as it should be."""
        runs = [*self.attempts, *(other for other in (self.vacuity, self.control) if other is not None)]
        return bool(runs) and all(run.passed for run in runs)


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
        raise _not_written(file, error) from None


def _not_written(file: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"cannot write {file}: {error.strerror}", hint="free some space, or name another file or folder"
    )


def store(file: Path, new: Results) -> None:
    """Merge ``new`` into ``file``. Another command that does so meanwhile waits. Raises as `read` and `write`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise _not_written(file, error) from None
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        write(file, merged(read(file), new))
    finally:
        os.close(folder)


def merged(old: Results, new: Results) -> Results:
    """``old`` with the results in ``new``.

    A part that was not run again (the control, say) is kept, if it is about the same finding of the same code.
    """
    made = {**old, **new}
    for name in old.keys() & new.keys():
        before, after = old[name], new[name]
        if not after.digest or any(
            getattr(before, part) != getattr(after, part) for part in ("named", "onceproof", "digest")
        ):
            continue
        made[name] = after.model_copy(
            update={
                "versions": before.versions | after.versions,
                "attempts": after.attempts or before.attempts,
                "vacuity": after.vacuity or before.vacuity,
                "control": after.control or before.control,
                **({} if after.attempts else {"date": before.date}),
            }
        )
    return dict(sorted(made.items()))


def as_text(results: Results) -> str:
    return json.dumps(_adapter.dump_python(results, mode="json"), indent=1) + "\n"
