"""The catalogue of planted bugs, `scenarios/planted/bugs-*.toml`: what each is, and what must catch it. Loads their scenarios."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from onceproof.api.scenarios import with_chaos
from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.judge.checker import checkers
from onceproof.planted.mutants import Mutant, mutant_of
from onceproof.qualify.scenario_file import named_files
from onceproof.scenario_files.load import LoadedScenario, load_file
from onceproof.scenario_files.shipped import find
from onceproof.scenario_files.shipped import folder as shipped

#: Instead of the fault of a bug that needs none.
ANY_RUN = "none"


class Bug(BaseModel):
    """One planted bug, as its entry in the catalogue describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    wrong: str
    """What is broken, in a sentence."""
    belief: str
    """What people think who write it so."""
    fault: str
    """``KIND TARGET`` of the fault that must show it, or ``none``: it shows in any run."""
    anomaly: str
    batches: list[int]
    """The numbers of exactly the batches to which the anomaly must be attributed."""
    always: list[int] = []
    """Those of ``batches`` in which it also shows without the fault."""
    doubt: str = ""
    """Words of the reason for which a run of this job is never held, with or without the fault."""
    no_batch: str = ""
    """Why onceproof can attribute the anomaly to no batch: then ``batches`` is empty."""
    also: list[str] = []
    """Other anomalies that may come with it. Any other is a wrong finding."""
    scenario: str = ""
    """A scenario of this folder or a shipped one; default: ``name``."""
    mutant: str = ""
    """``SINK:NAME`` of `mutants.toml`: the scenario's job runs with this change to its sink."""
    remedy: str = ""
    """The scenario that holds under the same faults; with a mutant: ``scenario``, without the change."""

    @property
    def shows_without_fault(self) -> bool:
        return self.fault == ANY_RUN

    @property
    def named(self) -> str:
        """What must show it, in a line: ``crash driver: duplicate in 2, also torn-batch``. A result is stored with it."""
        batches = ", ".join(map(str, self.batches)) or "no batch"
        also = f", also {', '.join(self.also)}" if self.also else ""
        return f"{self.fault}: {self.anomaly} in {batches}{also}"

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        names = checkers.names()
        for anomaly in (self.anomaly, *self.also):
            if anomaly not in names:
                raise ValueError(f"unknown anomaly {anomaly!r}; {suggest(anomaly, names)}")
        if bool(self.batches) == bool(self.no_batch):
            raise ValueError("name either batches or, if there is none, the reason as no_batch")
        if self.always and not set(self.always) < set(self.batches):
            raise ValueError(f"always {self.always} must be some of the batches {self.batches}, and not all of them")
        if bool(self.mutant) == bool(self.remedy):
            raise ValueError("name either a mutant or, for another scenario, its remedy")
        if self.fault != ANY_RUN and len(self.fault.split()) != 2:
            raise ValueError(f"fault {self.fault!r} is not 'KIND TARGET' or 'none'")
        return self


@dataclass(frozen=True)
class PlantedBug:
    """A planted bug with its scenarios, ready to run."""

    bug: Bug
    loaded: LoadedScenario
    remedy: LoadedScenario
    """Under the bug's faults."""
    mutant: Mutant | None

    def digest(self) -> str:
        """Equal for two bugs whose runs are alike: their scenarios, and the files that these name."""
        whole = [str(self.mutant)]
        for loaded in (self.loaded, self.remedy):
            files = [file.read_bytes() for file in named_files(loaded.path).values()]
            whole += [json.dumps(loaded.scenario.to_json()), *sorted(hashlib.sha256(one).hexdigest() for one in files)]
        text = "\0".join(whole)
        for place in (shipped(), shipped().resolve()):  # where onceproof is installed does not count
            text = text.replace(str(place), "")
        return hashlib.sha256(text.encode()).hexdigest()

    def broken(self, folder: Path) -> LoadedScenario:
        """The scenario whose job is broken. ``folder``: where the changed sinks of a mutant are put, if it is one."""
        if self.mutant is None:
            return self.loaded
        path = folder / self.bug.name
        if not path.exists():
            self.mutant.make_path(path)
        return _with_python_path(self.loaded, path)


def folder() -> Path:
    """The folder of the planted bugs."""
    return shipped() / "planted"


def read(where: Path | None = None) -> dict[str, Bug]:
    """Name -> planted bug, in the order of the catalogue. Raises `UsageError` with everything that is wrong in it."""
    bugs: dict[str, Bug] = {}
    problems: list[str] = []
    for file in sorted((where or folder()).glob("bugs-*.toml")):
        for number, entry in enumerate(_entries(file), 1):
            called = entry.get("name", f"bug {number}") if isinstance(entry, dict) else f"bug {number}"
            try:
                bug = Bug.model_validate(entry, strict=True)
            except ValidationError as error:
                problems += [f"{file.name}: {called}: {_shown(each)}" for each in error.errors(include_url=False)]
                continue
            if bug.name in bugs:
                problems.append(f"{file.name}: {bug.name} is there twice")
            bugs[bug.name] = bug
    if problems:
        raise UsageError("\n".join(problems), hint="docs/selftest.md describes the fields of a planted bug")
    if not bugs:  # else a selftest would pass that runs nothing
        raise UsageError(f"there is no planted bug in {where or folder()}", hint="install onceproof again")
    return bugs


def chosen(bugs: dict[str, Bug], names: Sequence[str]) -> list[Bug]:
    """Those of ``bugs`` with these names, in that order; all of them if none is named. Raises `UsageError`."""
    if unknown := [name for name in names if name not in bugs]:
        raise UsageError(
            f"unknown planted bug {unknown[0]!r}; {suggest(unknown[0], list(bugs))}", hint="onceproof selftest --list"
        )
    return [bugs[name] for name in dict.fromkeys(names)] if names else list(bugs.values())


def load(bugs: Iterable[Bug], where: Path | None = None) -> list[PlantedBug]:
    """The bugs with their scenarios. Raises `UsageError` or `ScenarioError` before anything starts."""
    return [_loaded(bug, where or folder()) for bug in bugs]


def _loaded(bug: Bug, where: Path) -> PlantedBug:
    loaded = load_file(_find(bug.scenario or bug.name, where))
    if not bug.shows_without_fault:
        there = [f"{spec.fault} {spec.target}" for spec in loaded.scenario.chaos]
        if bug.fault not in there:
            raise UsageError(
                f"planted bug {bug.name}: its scenario {loaded.path.name} has no fault {bug.fault!r}",
                hint=f"it has: {', '.join(there) or 'none'}",
            )
    remedy = loaded if bug.mutant else load_file(_find(bug.remedy, where))
    if remedy.scenario.chaos != loaded.scenario.chaos:
        remedy = with_chaos(remedy, loaded.scenario.chaos)
    return PlantedBug(bug, loaded, remedy, mutant_of(bug.mutant) if bug.mutant else None)


def _find(name: str, where: Path) -> Path:
    own = where / f"{name}.yaml"
    return own if own.is_file() else find(name)


def _with_python_path(loaded: LoadedScenario, path: Path) -> LoadedScenario:
    pipeline = loaded.scenario.pipeline
    entries = filter(None, (str(path), pipeline.env.get("PYTHONPATH")))
    env = {**pipeline.env, "PYTHONPATH": os.pathsep.join(entries)}
    changed = pipeline.model_copy(update={"env": env})
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"pipeline": changed}))


def _entries(file: Path) -> Iterator[object]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from None
    if unknown := sorted(document.keys() - {"bug"}):
        raise UsageError(f"{file}: unknown table {unknown[0]!r}", hint="each planted bug is one [[bug]]")
    entries = document.get("bug", [])
    if not isinstance(entries, list):
        raise UsageError(f"{file}: bug is not a list of tables", hint="write [[bug]] before each planted bug")
    yield from entries


def _shown(detail: object) -> str:
    assert isinstance(detail, dict)
    where = ".".join(map(str, detail["loc"]))
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message
