"""From a YAML file, or the name of a shipped scenario, to a validated `Scenario`. Nothing is started."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from onceproof.base.errors import Problem, ScenarioError, UsageError
from onceproof.base.paths import expanded, is_file, is_folder
from onceproof.base.registry import Registry, suggest
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.oracle import oracles
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import OracleSpec, Scenario, kind_of_pipeline
from onceproof.scenario.problem import Complaint, Loc, shown
from onceproof.scenario.templates import fill
from onceproof.scenario_files import document, judged
from onceproof.scenario_files.checks import crosscheck, doubts
from onceproof.scenario_files.document import Document
from onceproof.scenario_files.explain import in_part, validate

T = TypeVar("T")


#: Of a message that quotes what is in the file.
_LONGEST = 600

#: A fault a batch, of which a run has some dozens.
MAX_FAULTS = 200


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
    scenario, complaints = _assemble({"name": path.stem, **_beside(source.data, path.parent)})
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
    scenario, complaints = _assemble(judged.completed({"name": path.stem, **source.data}), runs=False)
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


def _assemble(data: dict[str, Any], *, runs: bool = True) -> tuple[Scenario | None, list[Complaint]]:
    """Each part by its own model. Faults, oracle and data set options are validated by the kind that they name."""
    chaos, complaints = _chaos(data.get("chaos"), kind=kind_of_pipeline(data.get("pipeline")))
    oracle, of_oracle = _oracle(data.get("oracle"))
    complaints += of_oracle + (_dataset_options(data.get("input")) if runs else [])
    frame = dict(data)
    if isinstance(frame.get("chaos"), list):
        frame["chaos"] = []
    if frame.get("oracle") is not None:
        frame["oracle"] = {"kind": "checked above"}
    scenario, of_frame = validate(Scenario, frame)
    complaints += of_frame
    if scenario is None or oracle is None or complaints:
        return None, complaints
    return scenario.model_copy(update={"chaos": chaos, "oracle": oracle}), complaints


def _chaos(items: Any, *, kind: str) -> tuple[list[AnyFaultSpec], list[Complaint]]:
    specs: list[AnyFaultSpec] = []
    complaints: list[Complaint] = []
    if isinstance(items, list) and len(items) > MAX_FAULTS:
        message = f"chaos: {len(items)} faults are too many; a scenario has at most {MAX_FAULTS}"
        return [], [Complaint(("chaos",), message, "write several scenarios", at_key=True)]
    for index, item in enumerate(items if isinstance(items, list) else []):
        spec, found = _of_kind(faults.of(kind), "fault", lambda fault: fault.Spec, item, ("chaos", index))
        complaints += found
        if isinstance(spec, AnyFaultSpec):
            specs.append(spec)
    return specs, complaints


def _oracle(item: Any) -> tuple[OracleSpec | None, list[Complaint]]:
    if item is None:
        return None, []  # a missing oracle is the frame's complaint
    spec, complaints = _of_kind(oracles, "kind", lambda kind: kind.Spec, item, ("oracle",))
    return (spec if isinstance(spec, OracleSpec) else None), complaints


def _dataset_options(inputs: Any) -> list[Complaint]:
    complaints: list[Complaint] = []
    for index, item in enumerate(inputs if isinstance(inputs, list) else []):
        if not isinstance(item, dict) or not isinstance(item.get("dataset"), str):
            continue  # the frame complains
        loc: Loc = ("input", index)
        if item["dataset"] not in datasets.names():
            message = f"unknown dataset {item['dataset']!r}"
            complaints.append(Complaint((*loc, "dataset"), message, suggest(item["dataset"], datasets.names())))
        elif isinstance(options := item.get("options", {}), dict):
            complaints += validate(datasets.get(item["dataset"]).Options, options, (*loc, "options"))[1]
    return complaints


def _of_kind(
    registry: Registry[T], field: str, model_of: Callable[[T], type[BaseModel]], item: Any, loc: Loc
) -> tuple[BaseModel | None, list[Complaint]]:
    """``item`` as the model of the kind that its ``field`` names."""
    if not isinstance(item, dict):
        hint = f"write '{field}: NAME' and its settings below it"
        return None, [Complaint(loc, f"{shown(item)} is not a mapping", hint)]
    kind = item.get(field)
    if kind is None:
        hint = f"known: {', '.join(registry.names())}"
        return None, [Complaint(loc, f"key {field!r} is missing", hint, at_key=True)]
    if kind not in registry.names():
        hint = suggest(str(kind), registry.names())
        return None, [Complaint((*loc, field), f"unknown {registry.noun} {kind!r}", hint)]
    return validate(model_of(registry.get(kind)), item, loc)


def _problem(source: Document, complaint: Complaint) -> Problem:
    return Problem(
        source.place(complaint.loc, key=complaint.at_key),
        in_part(complaint.message, _LONGEST),
        in_part(complaint.hint, _LONGEST),
    )


def _position(problem: Problem) -> tuple[int, int]:
    return problem.place.line, problem.place.column
