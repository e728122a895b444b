"""Load a scenario file: read, merge with its bases, validate. Starts nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onceproof.base.errors import Problem, ScenarioError, UsageError
from onceproof.base.paths import expanded, is_file
from onceproof.base.registry import suggest
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc, shortened, shown
from onceproof.scenario.templates import fill
from onceproof.scenario_files import document, judged, whole
from onceproof.scenario_files.assemble import assemble
from onceproof.scenario_files.checks import crosscheck, doubts, external, formats
from onceproof.scenario_files.document import Document
from onceproof.scenario_files.merge import Merged, merge
from onceproof.scenario_files.shipped import find, find_shipped, folder, is_path, names
from onceproof.stack.external.profile import StackProfile

#: A longer chain is hard to follow.
MAX_BASES = 5
_BASES = "a base is the name of a shipped scenario, or a path relative to this file: base: ./common.yaml"

#: Most characters of a message that quotes the file.
_LONGEST = 600
#: Most changes to a base that a problem lists.
_LISTED = 4


def read(path: str | Path) -> Merged:
    """The file at ``path`` with its bases merged in, not yet validated.

    Raises `ScenarioError` if the file is not one YAML mapping or a base cannot be used, `UsageError` if ``path`` cannot be read.
    """
    files = [document.read(Path(path).absolute())]
    while (base := files[-1].data.get("base")) is not None:
        files.append(_base(base, files))
    return merge(files)


def resolved(path: str | Path) -> str:
    """The scenario in the file at ``path`` as one YAML text, with its bases merged and ``{here}`` filled in. Raises as `load`."""
    return whole.text(whole.tree(load_file(path).source))


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario and the file it was read from. A command reads the file once and passes this on."""

    scenario: Scenario
    path: Path
    """The path as the user named it. ``{here}`` is its folder."""
    source: Merged = field(repr=False, compare=False)
    """The place of each value, in the file or in one of its bases."""
    profile: StackProfile | None = field(default=None, repr=False, compare=False)
    """The external stack that it runs on, if any. Holds secrets: never stored."""


def load_file(path: str | Path, profile: StackProfile | None = None, *, runs: bool = True) -> LoadedScenario:
    """The scenario in the file at ``path``; with ``profile``, on that stack.

    ``runs``: whether a fault that cannot be used on that stack is a problem, or only something to show. Raises `ScenarioError` with every problem found, each with its file, line and column, or `UsageError` if the file
    cannot be read.
    """
    source = read(path)
    scenario, complaints = _checked(source)
    if scenario is not None and not complaints:
        if profile is not None:
            scenario = external.on_spark(scenario, profile)
            complaints = [*external.complaints(scenario, profile)]
        complaints += external.control(scenario, profile) if runs else ()
    if scenario is None or complaints:
        raise ScenarioError(_problems(source, complaints))
    return LoadedScenario(scenario, Path(path), source, profile)


def load(path: str | Path) -> Scenario:
    """The scenario of `load_file`, without its file."""
    return load_file(path).scenario


def _checked(source: Merged) -> tuple[Scenario | None, list[Complaint]]:
    path = Path(source.files[0].file)
    scenario, complaints = assemble({"name": path.stem, **_fill_here(source.data, path.parent)})
    if scenario is not None and not complaints:
        if scenario.name != path.stem:
            message = f"name {scenario.name!r} differs from the file's name, {path.stem!r}"
            complaints.append(Complaint(("name",), message, "remove `name`: a scenario is named by its file"))
        complaints.extend(crosscheck.complaints(scenario, path.parent))
        complaints.extend(external.of_file(source.data.get("stack")))
    return scenario, complaints


def warnings(loaded: LoadedScenario) -> list[Problem]:
    """Likely mistakes in a valid scenario, which may run nevertheless: each with its line and column.

    Raises `ScenarioError` if a query of the oracle certainly cannot be run.
    """
    from onceproof.scenario_files.checks import rehearsal  # opens databases, which `load` does not need

    here = loaded.path.absolute().parent
    found = [*doubts.warnings(loaded.scenario, here), *formats.warnings(loaded.scenario)]
    rehearsed = rehearsal.rehearse(loaded.scenario)
    if rehearsed.errors:
        raise ScenarioError(_problems(loaded.source, rehearsed.errors, blame=False))
    found += rehearsed.warnings
    return _problems(loaded.source, found, blame=False)


def all_warnings(loaded: Iterable[LoadedScenario]) -> list[tuple[LoadedScenario, list[Problem]]]:
    """The warnings about each scenario. Raises one `ScenarioError` with the problems of all."""
    found, problems = [], []
    for each in loaded:
        try:
            found.append((each, warnings(each)))
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(problems)
    return found


def load_to_judge(path: Path) -> Scenario:
    """The scenario in the file at ``path``, which needs only what the judge reads: inputs, outputs, oracle, claim.

    Fills in what a run would need besides, and drops ``chaos``. Raises as `load`.
    """
    source = read(path)
    scenario, complaints = assemble(judged.completed({"name": path.stem, **source.data}), runs=False)
    if scenario is not None and not complaints:
        complaints.extend(crosscheck.of_judgement(scenario, path.absolute().parent))
    if scenario is None or complaints:
        raise ScenarioError(_problems(source, complaints))
    return scenario


def load_all(names_or_paths: list[str], profile: StackProfile | None = None) -> list[LoadedScenario]:
    """Load all of them, or raise one error with the problems of all: nothing may start before every scenario is valid."""
    loaded: list[LoadedScenario] = []
    problems: list[Problem] = []
    unreadable: list[UsageError] = []
    for name in names_or_paths:
        try:
            loaded.append(load_file(find(name), profile))
        except ScenarioError as error:
            problems.extend(error.problems)
        except UsageError as error:
            unreadable.append(error)
    if unreadable:
        raise UsageError("\n".join([*map(str, unreadable), *map(str, problems)]))
    if problems:
        raise ScenarioError(problems)
    return loaded


def _fill_here(data: dict[str, Any], here: Path) -> dict[str, Any]:
    """``data`` with ``{here}`` filled in where a data set's options name a file."""
    inputs = data.get("input")
    if not isinstance(inputs, list):
        return data
    return {**data, "input": [_with_options(item, here) for item in inputs]}


def _with_options(item: Any, here: Path) -> Any:
    if not (isinstance(item, dict) and isinstance(item.get("options"), dict)):
        return item
    values = {"here": str(here)}
    options = {name: fill(v, values) if isinstance(v, str) else v for name, v in item["options"].items()}
    return {**item, "options": options}


def _base(written: Any, files: Sequence[Document]) -> Document:
    """The base that the last of ``files`` names. Each of ``files`` is based on the one after it."""
    source = files[-1]
    place = source.place(("base",))
    if not isinstance(written, str):
        raise ScenarioError([Problem(place, f"base: {shown(written)} is not text", _BASES)])
    try:
        path = _find_base(written, Path(source.file).parent)
        chain = [*(Path(file.file) for file in files), path]
        shown_chain = " -> ".join(each.name for each in chain)
        if any(path.samefile(file) for file in chain[:-1]):
            raise UsageError(f"base: {shortened(written)!r} is based on itself: {shown_chain}", hint=_BASES)
        if len(files) > MAX_BASES:
            raise UsageError(f"more than {MAX_BASES} bases: {shown_chain}", hint="merge some of them")
        return _own_here_filled(files[0], document.read(path, sum((file.extent for file in files), document.Extent())))
    except ScenarioError as error:  # the base itself is wrong
        raise ScenarioError([_with_hint(problem, f"{place} is based on it") for problem in error.problems]) from None
    except UsageError as error:
        raise ScenarioError([Problem(place, error.message, error.hint)]) from None


def _find_base(written: str, here: Path) -> Path:
    if is_path(written):
        path = here / expanded(written)
        if not is_file(path) and is_file(folder() / written):
            hint = "to copy a shipped scenario with its bases merged in: `onceproof validate --resolved NAME`"
            raise UsageError(f"base {shortened(written)!r} does not exist next to this file", hint=hint)
        return find(path)
    if (shipped := find_shipped(written)) is not None:
        return shipped
    near = f"did you mean './{written}.yaml'?" if is_file(here / f"{written}.yaml") else suggest(written, names())
    raise UsageError(f"unknown base {shortened(written)!r}", hint=f"{near}\n{_BASES}")


def _own_here_filled(first: Document, base: Document) -> Document:
    """``base`` with ``{here}`` filled in with its own folder: the rest of a run knows only the folder of the ``first`` file."""
    here = Path(base.file).parent
    if here.samefile(Path(first.file).parent):
        return base
    return replace(base, data=whole.filled(copy.deepcopy(base.data), here))


def _problems(source: Merged, complaints: Sequence[Complaint], *, blame: bool = True) -> list[Problem]:
    """Each complaint with its place, those in the scenario's own file first, then those in its bases.

    With ``blame``, a problem in a base that is valid by itself names the changes that make it wrong.
    """
    number_of = {file.file: number for number, file in enumerate(source.files)}
    problems: list[tuple[int, Problem]] = []
    base_alone: dict[int, set[tuple[Loc, str]]] = {}  # what is wrong with a base without the files based on it
    for complaint in complaints:
        place = source.place(complaint.loc, key=complaint.at_key)
        number = number_of[place.file]
        problem = Problem(place, shortened(complaint.message, _LONGEST), shortened(complaint.hint, _LONGEST))
        if number:
            if blame and number not in base_alone:
                alone = merge(source.files[number:])
                base_alone[number] = {(each.loc, each.message) for each in _checked(alone)[1]}
            inherited = not blame or (complaint.loc, complaint.message) in base_alone[number]
            changed = [] if inherited else _changes_over(source, number)
            based = f"{source.files[number - 1].place(('base',))} is based on it"
            problem = _with_hint(problem, f"files based on it change: {', '.join(changed)}" if changed else based)
        problems.append((number, problem))
    problems.sort(key=lambda each: (each[0], each[1].place.line, each[1].place.column))
    return [problem for _, problem in problems]


def _changes_over(source: Merged, number: int) -> list[str]:
    """The changes that files based on base ``number`` make, each with its place."""
    changed = [(above, loc) for above, loc in source.changes if above < number]
    listed = [f"{'.'.join(map(str, loc))} ({source.files[above].place(loc)})" for above, loc in changed[:_LISTED]]
    return [*listed, *([f"{len(changed) - _LISTED} more"] if len(changed) > _LISTED else [])]


def _with_hint(problem: Problem, more: str) -> Problem:
    return replace(problem, hint=more if problem.hint is None else f"{problem.hint}\n{more}")
