"""The shipped scenarios, each by what its own file says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from onceproof.base.errors import ScenarioError
from onceproof.scenario_files import document
from onceproof.scenario_files.shipped import find, names


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
    return [_entry(name) for name in names()]


def _entry(name: str) -> Entry:
    try:
        data = document.read(find(name)).data
    except ScenarioError as error:
        return Entry(name, f"(does not load: {error.problems[0].message})")
    expect = data.get("expect") or {}
    return Entry(
        name,
        " ".join(str(data.get("about", "")).split()),
        tuple(data.get("phenomena") or ()),
        expect.get("verdict", "held"),
        tuple(expect.get("anomalies") or ()),
    )
