"""Dependencies go one way: a package imports only packages that come before it in a run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent
LINKED = ("chaos", "sinks", "checkers", "reports")

#: In the order of a run. `imports` is the other way to get a history: from data that onceproof did not record; `watch` judges
#: data as it is written.
ORDER = (
    *("base", "values", "sinks", "scenario", "data", "formats"),
    *("instruments", "stack", "history", "stores", "pipeline", "faults", "consumers", "chaos", "kinds"),
    *("oracle", "judge", "expectation", "checkers", "reports"),
    *(
        "scenario_files",
        "imports",
        "watch",
        "run",
        "qualify",
        "warm",
        "explore",
        "api",
        "planted",
        "gate",
        "ci_output",
        "pytest_plugin",
        "serve",
        "cli",
    ),
)


#: Packages for consumers only, and the model that decides the kind of pipeline.
OF_CONSUMERS = ("consumers", "chaos.consumers", "kinds.consumers", "scenario.model", "scenario_files.checks.consumers")

#: Python files in one folder, except checkers, which have one file per anomaly.
MOST_FILES = 16
ROOT_FILES = 4


def package(module: str) -> str:
    """The top-level package (or module) of onceproof that ``module`` belongs to."""
    return [*module.split("."), ""][1]


def modules() -> Iterator[tuple[str, Path]]:
    for top in (ROOT / "src/onceproof", *(ROOT / name for name in LINKED)):
        for path in sorted(top.rglob("*.py")):
            # `pip install ./sinks` leaves copies in `build`.
            if not {"scenarios", "build"} & set(path.relative_to(ROOT).parts):
                inside = path.relative_to(top if top.name == "onceproof" else ROOT).with_suffix("")
                yield ".".join(("onceproof", *inside.parts)).removesuffix(".__init__"), path


def imported(path: Path) -> Iterator[str]:
    """Dotted names of all imports of onceproof, including those inside functions and only for types.

    Only the sinks have relative imports.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("onceproof."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "onceproof":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            folder = path.relative_to(ROOT).parts[: -node.level]
            package = ".".join(filter(None, ("onceproof", *folder, node.module)))
            yield from (f"{package}.{alias.name}" for alias in node.names)


def test_no_package_imports_a_later_one() -> None:
    at = {name: number for number, name in enumerate(ORDER)}
    wrong: dict[tuple[str, str], list[str]] = {}
    for module, path in modules():
        here = package(module)
        for name in imported(path):
            there = package(name)
            if here in at and there in at and at[there] > at[here]:
                wrong.setdefault((here, there), []).append(f"{module} -> {name}")
    assert wrong == {}


def test_there_is_no_import_cycle() -> None:
    """Including imports inside functions and only for types."""
    files = dict(modules())
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = ((name, name.rpartition(".")[0]) for name in imported(path))
        graph[module] = {next((n for n in pair if n in files), module) for pair in names} - {module}
    while leaves := [module for module, needs in graph.items() if not needs]:
        graph = {module: needs - set(leaves) for module, needs in graph.items() if module not in leaves}
    # The remaining modules are in a cycle or import one.
    assert graph == {}


def test_every_package_is_in_the_order() -> None:
    there = {package(module) for module, _ in modules()} - {"", "__main__", "__version__"}
    assert there == set(ORDER)


def test_no_folder_has_too_many_files() -> None:
    root = [path.name for path in (ROOT / "src/onceproof").glob("*.py")]
    assert len(root) <= ROOT_FILES, root
    folders = {path.parent for _, path in modules()} - {ROOT / "src/onceproof", ROOT / "checkers"}
    sizes = {str(folder.relative_to(ROOT)): len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert {folder: size for folder, size in sizes.items() if size > MOST_FILES} == {}


def test_run_py_is_short() -> None:
    assert len((ROOT / "src/onceproof/run.py").read_text(encoding="utf-8").splitlines()) <= 110


def test_only_packages_for_consumers_read_pipeline_consumers() -> None:
    """All other code uses `onceproof.kinds` for what differs between kinds of pipelines."""
    asking = {
        module
        for module, path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "consumers" and ast.unparse(node.value).endswith("pipeline")
    }
    assert [module for module in asking if not module.removeprefix("onceproof.").startswith(OF_CONSUMERS)] == []


@pytest.mark.parametrize("named", ["fault", "pipeline.kind"])
def test_no_code_compares_the_name_of_a_fault_or_of_a_kind_of_pipeline(named: str) -> None:
    """Abilities of only some faults are protocols in `onceproof.faults.contract` or `onceproof.consumers.routes`.

    What differs between kinds of pipelines is in `onceproof.kinds.contract`.
    """
    asking = [
        f"{module}: {ast.unparse(node)}"
        for module, path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        and any(
            isinstance(side, ast.Attribute) and f".{ast.unparse(side)}".endswith(f".{named}") for side in _sides(node)
        )
        and any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in _sides(node))
    ]
    assert asking == []


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]
