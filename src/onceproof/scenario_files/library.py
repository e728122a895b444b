"""The shipped scenarios, each by what its own file says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onceproof.base.errors import ScenarioError
from onceproof.scenario_files import document
from onceproof.scenario_files.shipped import paths

#: What a file says of itself. The rest, most of its text, is not parsed.
_KEYS = ("about", "phenomena", "expect")


@dataclass(frozen=True)
class Entry:
    """A shipped scenario, by what its file says of itself. It may be invalid here: a secret may not be set."""

    name: str
    about: str
    phenomena: tuple[str, ...] = ()
    verdict: str = "held"
    """The verdict that a run is expected to have."""
    anomalies: tuple[str, ...] = ()

    @property
    def shows(self) -> list[str]:
        """The expected anomalies, sorted, or the expected verdict if it is neither `violated` nor `held`."""
        return sorted(self.anomalies or ([] if self.verdict == "held" else [self.verdict]))


def entries() -> list[Entry]:
    """All shipped scenarios, by name."""
    return [_entry(path) for path in paths()]


def _entry(path: Path) -> Entry:
    try:
        data = document.read(path, only=_KEYS).data
    except ScenarioError as error:
        return Entry(path.stem, f"(does not load: {error.problems[0].message})")
    expect = data.get("expect") or {}
    return Entry(
        path.stem,
        " ".join(str(data.get("about", "")).split()),
        tuple(data.get("phenomena") or ()),
        expect.get("verdict", "held"),
        tuple(expect.get("anomalies") or ()),
    )
