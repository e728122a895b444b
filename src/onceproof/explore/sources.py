"""The files that the results of an exploration depend on, in addition to the scenario's own: an exploration of changed code begins again."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.paths import is_file, is_folder
from onceproof.qualify.directory import digest_of
from onceproof.qualify.scenario_file import named_files
from onceproof.scenario.model import Scenario
from onceproof.scenario.templates import fill


def digests(scenario: Scenario, path: Path) -> dict[str, str]:
    """Path -> SHA-256 of each file that the scenario at ``path`` names by ``{here}``, of its bases, and of the job's modules.

    These are all modules below the folder of the function's file, or of its package, as the warm tier executes them again
    (`onceproof.warm.loading`); of a command, those below the folders of its scripts, and of its own PYTHONPATH. Files that cannot be read are left out. Raises as `load.read`, and
    `UsageError` if there is no such package.
    """
    found: dict[str, str] = {}
    for file in (*named_files(path).values(), *_modules(scenario, path)):
        with suppress(OSError):
            found[str(file.resolve())] = digest_of(file)
    return found


def changed(began: Mapping[str, str]) -> str | None:
    """The first of the files that is not as it was, or gone; None if there is none."""
    for file, digest in began.items():
        try:
            if digest_of(Path(file)) != digest:
                return file
        except OSError:
            return file
    return None


def _modules(scenario: Scenario, path: Path) -> Iterator[Path]:
    here = {"here": str(path.resolve().parent)}
    own_path = fill(scenario.pipeline.env.get("PYTHONPATH", ""), here)
    for start in _starts(scenario, here, [Path(entry) for entry in filter(None, own_path.split(os.pathsep))]):
        if start.is_file():
            yield start
        for top, inner, files in os.walk(start):
            inner[:] = [name for name in inner if not _is_foreign(Path(top) / name)]
            yield from (Path(top) / name for name in files if name.endswith(".py"))


def _starts(scenario: Scenario, here: dict[str, str], own_path: list[Path]) -> Iterable[Path]:
    """Where the job's modules are: folders, or the file of a module. Raises `UsageError`."""
    if scenario.pipeline.callable is None:
        words = [Path(fill(word, here)) for word in scenario.pipeline.command]
        scripts = {word.resolve().parent for word in words if word.suffix == ".py" and is_file(word)}
        return [*scripts, *filter(is_folder, own_path)]
    where = fill(scenario.pipeline.callable, here).rpartition(":")[0]
    if where.endswith(".py"):
        return [Path(where).resolve().parent]
    from_outside = [] if "PYTHONPATH" in scenario.pipeline.env else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return _of_package(where.partition(".")[0], [*map(str, own_path), *filter(None, from_outside), *sys.path])


def _of_package(name: str, search: list[str]) -> Iterable[Path]:
    """The folders of a package, or the file of a module, on the search path of the job."""
    # The second also finds packages that were installed in editable form, by their import hooks.
    spec = PathFinder.find_spec(name, search) or importlib.util.find_spec(name)
    if spec is None:
        raise UsageError(
            f"pipeline.callable: there is no module {name} on the job's Python path",
            hint='name the file, as "{here}/my_module.py:build", or set pipeline.env: {PYTHONPATH: "{here}/src"}',
        )
    return map(Path, spec.submodule_search_locations or filter(None, [spec.origin]))


def _is_foreign(folder: Path) -> bool:
    """Whether the folder holds no code of the user: installed packages, caches, hidden files."""
    return folder.name.startswith((".", "__")) or folder.name == "site-packages" or (folder / "pyvenv.cfg").exists()
