"""From a YAML file, or the name of a shipped scenario, to a validated `Scenario`. Nothing is started."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from onceproof.base.errors import Problem, ScenarioError, UsageError
from onceproof.base.paths import expanded, is_file, is_folder
from onceproof.base.registry import suggest
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint
from onceproof.scenario.templates import fill
from onceproof.scenario_files import document, judged
from onceproof.scenario_files.assemble import assemble
from onceproof.scenario_files.checks import crosscheck, doubts
from onceproof.scenario_files.document import Document
from onceproof.scenario_files.explain import in_part

#: Of a message that quotes what is in the file.
_LONGEST = 600


def folder() -> Path:
    """Where the shipped scenarios are."""
    return Path(str(files("onceproof"))) / "scenarios"


def names() -> list[str]:
    """Names of the shipped scenarios."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def find(name_or_path: str | Path) -> Path:
    """The file of a scenario: a path to a YAML file, or the name of a shipped one. Raises `UsageError`."""
    text = str(name_or_path)
    path = expanded(name_or_path)
    if is_file(path):
        return path
    if path.suffix in (".yaml", ".yml") or "/" in text:
        near = sorted(entry.name for entry in path.parent.glob("*.y*ml")) if is_folder(path.parent) else []
        hint = suggest(path.name, near) if near else f"there is no YAML file in {path.parent.absolute()}"
        raise UsageError(f"scenario file {in_part(text)!r} does not exist", hint=hint)
    if text not in names():
        raise UsageError(
            f"unknown scenario {in_part(text)!r}; {suggest(text, names())}", hint="onceproof list names them all"
        )
    return folder() / f"{text}.yaml"


def load(path: str | Path) -> Scenario:
    """The scenario in the file at ``path``.

    Raises `ScenarioError` with every problem found, each with its line and column, or `UsageError` if the file
    cannot be read.
    """
    path = Path(path).absolute()
    source = document.read(path)
    scenario, complaints = assemble({"name": path.stem, **_beside(source.data, path.parent)})
    if scenario is not None and not complaints:
        if scenario.name != path.stem:
            message = f"name {scenario.name!r} is not that of the file, {path.stem!r}"
            complaints.append(Complaint(("name",), message, "leave name out: it is the file's"))
        complaints.extend(crosscheck.complaints(scenario, path.parent))
    if scenario is None or complaints:
        raise ScenarioError(sorted((_problem(source, c) for c in complaints), key=_position))
    return scenario


def warnings(path: str | Path, scenario: Scenario) -> list[Problem]:
    """What is doubtful about a valid scenario, which may run nevertheless: each with its line and column."""
    from onceproof.scenario_files.checks import rehearsal  # opens databases, which a mere load has no use for

    file = Path(path).absolute()
    source = document.read(file)
    found = [*doubts.warnings(scenario, file.parent), *rehearsal.warnings(scenario)]
    return sorted((_problem(source, complaint) for complaint in found), key=_position)


def load_to_judge(path: Path) -> Scenario:
    """The scenario in the file at ``path``, of which only what a judge reads need be there: inputs, outputs, oracle, claim.

    What a run would need besides is filled in where it is missing, and ``chaos`` is left out. Raises as `load`.
    """
    source = document.read(path.absolute())
    scenario, complaints = assemble(judged.completed({"name": path.stem, **source.data}), runs=False)
    if scenario is not None and not complaints:
        complaints.extend(crosscheck.of_judgement(scenario, path.absolute().parent))
    if scenario is None or complaints:
        raise ScenarioError(sorted((_problem(source, c) for c in complaints), key=_position))
    return scenario


def load_all(names_or_paths: list[str]) -> list[tuple[Path, Scenario]]:
    """All of them, or one error that tells the problems of all: nothing may start before every one is valid."""
    loaded: list[tuple[Path, Scenario]] = []
    problems: list[Problem] = []
    unreadable: list[UsageError] = []
    for given in names_or_paths:
        try:
            path = find(given)
            loaded.append((path, load(path)))
        except ScenarioError as error:
            problems.extend(error.problems)
        except UsageError as error:
            unreadable.append(error)
    if unreadable:
        raise UsageError("\n".join([*map(str, unreadable), *map(str, problems)]))
    if problems:
        raise ScenarioError(problems)
    return loaded


def _beside(data: dict[str, Any], here: Path) -> dict[str, Any]:
    """With ``{here}`` filled in where a data set's options name a file beside the scenario."""
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


def _problem(source: Document, complaint: Complaint) -> Problem:
    return Problem(
        source.place(complaint.loc, key=complaint.at_key),
        in_part(complaint.message, _LONGEST),
        in_part(complaint.hint, _LONGEST),
    )


def _position(problem: Problem) -> tuple[int, int]:
    return problem.place.line, problem.place.column
