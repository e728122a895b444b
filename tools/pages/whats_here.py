"""``docs/whats-here.md`` from the docstrings of the modules, one line per module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pages.page import DOCS, ROOT

#: In the order of a run, as in `tests/test_rooms.py`. A package that is not named here follows the package that contains it.
ORDER = [
    *("src/onceproof", "src/onceproof/cli", "src/onceproof/base", "src/onceproof/values", "src/onceproof/scenario"),
    *(
        "src/onceproof/scenario_files",
        "scenarios/jobs",
        "scenarios/jobs/apm",
        "scenarios/jobs/databases",
        "scenarios/jobs/foreign",
        "scenarios/jobs/joins",
        "scenarios/jobs/planted",
        "scenarios/jobs/recovery",
        "scenarios/jobs/windows",
        "src/onceproof/data",
        "src/onceproof/formats",
    ),
    *(
        "src/onceproof/instruments",
        "src/onceproof/stack",
        "src/onceproof/stores",
        "src/onceproof/pipeline",
        "src/onceproof/faults",
        "chaos",
        "sinks",
    ),
    *("src/onceproof/history", "src/onceproof/oracle", "src/onceproof/expectation", "src/onceproof/judge", "checkers"),
    *(
        "reports",
        "src/onceproof/qualify",
        "src/onceproof/kinds",
        "src/onceproof/consumers",
        "src/onceproof/warm",
        "src/onceproof/explore",
        "src/onceproof/api",
        "src/onceproof/planted",
        "src/onceproof/gate",
        "src/onceproof/ci_output",
        "src/onceproof/pytest_plugin",
        "src/onceproof/serve",
        "tools",
        "benchmarks",
    ),
]

HEAD = """# What's here

Written by `python tools/generate.py` from the docstrings; a test checks that the page is up to date.

A run has these stages; each takes the value of the one before:
scenario -> stack -> input -> pipeline + chaos -> history -> findings -> verdict -> report.
`src/onceproof/run.py` is that list as code. `chaos/`, `sinks/`, `checkers/`, `reports/` and `scenarios/` are linked into
`src/onceproof/` and imported as `onceproof.chaos`, ... ([why](decisions/0001-links-for-top-level-packages.md)).
The scenarios themselves, `scenarios/*.yaml`, are listed by `onceproof list`.
"""


def files() -> dict[Path, str]:
    return {DOCS / "whats-here.md": render()}


def render() -> str:
    found = {folder for top in ("src", *(o for o in ORDER if "/" not in o)) for folder in _packages(ROOT / top)}
    known = [ROOT / name for name in ORDER]
    inner = found - set(known)
    ordered = [
        folder
        for room in (
            *(p for p in known if p in found or p.is_dir()),
            *sorted(p for p in inner if not _nearest(p, known)),
        )
        for folder in (room, *sorted(p for p in inner if _nearest(p, known) == room))
    ]
    return "\n".join([HEAD, *(line for folder in ordered for line in _section(folder))])


def _nearest(folder: Path, known: list[Path]) -> Path | None:
    """Return the innermost folder of ``known`` that contains ``folder``, except the root."""
    return next((parent for parent in folder.parents if parent in known[1:]), None)


def _packages(top: Path) -> Iterator[Path]:
    """Yield folders that contain modules. Links are not followed: their targets are listed in their own place."""
    for folder in (top, *(p for p in top.rglob("*") if p.is_dir())):
        # `pip install ./sinks` leaves copies in `build`.
        if not folder.is_symlink() and "build" not in folder.parts and any(folder.glob("*.py")):
            yield folder


def _section(folder: Path) -> Iterator[str]:
    yield f"## `{folder.relative_to(ROOT)}/`\n"
    if (folder / "__init__.py").exists():
        yield _summary(folder / "__init__.py") + "\n"
    for module in sorted(folder.glob("[!_]*.py")):
        yield f"- `{module.name}`: {_summary(module)}"
    yield ""


def _summary(module: Path) -> str:
    """Return the first paragraph of the docstring, on one line."""
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")
