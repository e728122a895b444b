"""The tables of the kinds of faults in `docs/faults.md`, from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from onceproof.faults.contract import faults
from pages.page import DOCS, filled, table

PAGE = DOCS / "faults.md"


def files() -> dict[Path, str]:
    of_jobs = table(("fault", "what happens", "targets"), _of_jobs())
    of_consumers = table(("fault", "what happens"), _of_consumers())
    return {PAGE: filled(PAGE, {"faults of jobs": of_jobs, "faults of consumers": of_consumers})}


def _of_jobs() -> Iterator[tuple[str, ...]]:
    for name, fault in faults.items():
        targets = get_args(fault.Spec.model_fields["target"].annotation)
        yield f"`{name}`", fault.about, ", ".join(f"`{target}`" for target in targets)


def _of_consumers() -> Iterator[tuple[str, ...]]:
    """Yield no targets: they are the consumers of the scenario."""
    for name, fault in faults.of("consumers").items():
        yield f"`{name}`", fault.about
