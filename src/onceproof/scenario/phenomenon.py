"""What a phenomenon of the scenario library is: its cases, and the groups of the table. `onceproof.scenario.phenomena` lists them."""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = {
    "A": "Brokers and consumers",
    "B": "Batches, checkpoints, commits",
    "C": "State, windows, time",
    "D": "Joins and databases",
    "E": "A whole application",
    "F": "Upgrades of a job",
}


@dataclass(frozen=True)
class Case:
    """One of the ways in which a phenomenon shows."""

    anomalies: tuple[str, ...]
    """What the naive scenarios must show, each by at least one of them. Empty: a property, for which there is no naive scenario."""
    name: str = ""
    """Empty if it is the only one of its phenomenon."""
    missing: str = ""
    """What is not shown yet. Empty if naive scenarios and a remedy show all of it."""


@dataclass(frozen=True)
class Phenomenon:
    id: str
    title: str
    about: str
    """One sentence on what happens."""
    cases: tuple[Case, ...]
    limit: str = ""
    """What cannot be shown on this stack, and why."""

    @property
    def group(self) -> str:
        return GROUPS[self.id[0]]

    def names(self) -> list[str]:
        """What a scenario can write: the whole phenomenon, or one of its cases."""
        return [self.id, *(f"{self.id}/{case.name}" for case in self.cases if case.name)]


NOTHING = "no scenario shows it"
NO_NAIVE = "the remedy holds, but no naive scenario shows the anomaly"
