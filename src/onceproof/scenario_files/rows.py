"""Which shipped scenarios show which phenomena, and what is still missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceproof.scenario.phenomena import PHENOMENA
from onceproof.scenario.phenomenon import Case, Phenomenon
from onceproof.scenario_files.library import Entry, entries


@dataclass(frozen=True)
class Row:
    """One case of a phenomenon, and the scenarios that name it."""

    phenomenon: Phenomenon
    case: Case
    naive: tuple[Entry, ...]
    """They are expected to be violated by an anomaly of the case."""
    remedies: tuple[Entry, ...]
    """They are expected to hold."""

    @property
    def name(self) -> str:
        return f"{self.phenomenon.id}/{self.case.name}" if self.case.name else self.phenomenon.id

    @property
    def lacks(self) -> list[str]:
        """What no scenario shows: an anomaly, or the remedy."""
        seen = {anomaly for entry in self.naive for anomaly in entry.anomalies}
        lacks = [f"a naive scenario with {anomaly}" for anomaly in self.case.anomalies if anomaly not in seen]
        return [*lacks, *([] if self.remedies else ["a scenario that holds"])]


def rows(shipped: Sequence[Entry] | None = None) -> list[Row]:
    """Every case of every phenomenon, in the order of the table. ``shipped``: the scenarios (default: `entries`)."""
    shipped = entries() if shipped is None else shipped
    return [_row(one, case, shipped) for one in PHENOMENA for case in one.cases]


def _row(one: Phenomenon, case: Case, shipped: Sequence[Entry]) -> Row:
    called = {one.id, f"{one.id}/{case.name}"}
    mine = [entry for entry in shipped if called & set(entry.phenomena)]
    naive = (e for e in mine if e.verdict == "violated" and set(e.anomalies) & set(case.anomalies))
    return Row(one, case, tuple(naive), tuple(e for e in mine if e.verdict == "held"))
