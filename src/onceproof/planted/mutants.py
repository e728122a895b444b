"""Mutants of the sinks: the package `onceproof.sinks`, copied, with one text in one file replaced. Listed in `mutants.toml`."""

from __future__ import annotations

import shutil
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.scenario_files.shipped import folder as shipped

FILE = "mutants.toml"
_PACKAGE = "onceproof.sinks"


@dataclass(frozen=True)
class Mutant:
    """One change to a sink: ``old`` is once in ``file`` and becomes ``new``."""

    name: str
    sink: str
    file: str
    old: str
    new: str
    caught_by: str
    """The check of ``tests/sinks/conformance.py`` that fails on it."""

    @property
    def title(self) -> str:
        """``postgres-append:progress-row-not-locked``"""
        return f"{self.sink}:{self.name}"

    def changed(self) -> str:
        """The text of ``file`` with the change.

        Raises `UsageError` if ``old`` is not exactly once in ``file``: the sink has changed since.
        """
        try:
            text = (_source() / self.file).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"mutant {self.title}: cannot read the sinks' {self.file}: {error.strerror}",
                hint=f"correct its file in {FILE}",
            ) from None
        if (count := text.count(self.old)) != 1:
            raise UsageError(
                f"mutant {self.title}: {self.file} holds {count} times the text {self.old.strip()!r}",
                hint=f"adapt the mutant in {FILE}: its text must be in the file once",
            )
        return text.replace(self.old, self.new)

    def copy_sinks(self, target: Path) -> None:
        """Make the folder ``target`` with the changed sinks, a package of any name. Raises `UsageError` as `changed` does."""
        changed = self.changed()
        # `pip install ./sinks` leaves copies in `build`.
        shutil.copytree(_source(), target, ignore=shutil.ignore_patterns("build", "__pycache__"))
        (target / self.file).write_text(changed, encoding="utf-8")

    def make_path(self, target: Path) -> Path:
        """Make a folder for PYTHONPATH in which ``onceproof`` is the changed sinks, nothing else."""
        self.copy_sinks(target / "onceproof" / "sinks")
        (target / "onceproof" / "__init__.py").touch()
        return target


def _source() -> Path:
    return Path(str(files(_PACKAGE)))


@cache
def mutants() -> dict[str, Mutant]:
    """Title -> mutant, in the order of the file."""
    document = tomllib.loads((shipped() / "planted" / FILE).read_text(encoding="utf-8"))
    made = [Mutant(**entry) for entry in document["mutant"]]
    return {mutant.title: mutant for mutant in made}


def mutant_of(title: str) -> Mutant:
    """The mutant ``SINK:NAME``. Raises `UsageError` if there is none, or if it no longer fits its sink."""
    if title not in mutants():
        raise UsageError(f"unknown mutant {title!r}; {suggest(title, list(mutants()))}", hint=f"they are in {FILE}")
    mutant = mutants()[title]
    mutant.changed()  # fails now: later it would end a selftest in the middle
    return mutant
