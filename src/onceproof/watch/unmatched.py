"""Names records that no input of their window explains: they came late, came again, or nothing explains them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from onceproof.base.words import times
from onceproof.judge.claims import allowance, undecided
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.scenario.model import Scenario
from onceproof.watch.compare import Content, Missing, Unmatched
from onceproof.watch.settled import Settled

#: Rows that were reported as lost and may still arrive. More are counted, and one that arrives is then called a duplicate.
_MOST_LOST = 1_000_000


@dataclass(frozen=True)
class Late:
    """A row that was reported as lost, and has arrived."""

    output: str
    identity: dict[str, Any]
    cause: str
    position: str
    window: int
    wrong: bool = False
    """Whether it has another value than the missing row. It is then also in a finding."""


@dataclass
class Lost:
    """The rows that were reported as lost and have not arrived."""

    _rows: dict[tuple[str, int], tuple[Missing, int]] = field(default_factory=dict)
    _any_content: set[tuple[str, int]] = field(default_factory=set)
    """Rows whose content cannot be compared, because it was not known yet whether keys are part of it."""

    def add(self, missing: Iterable[Missing], window: int, *, any_content: Collection[str] = ()) -> None:
        """``any_content``: outputs whose contents cannot be compared yet."""
        for row in missing:
            if len(self._rows) < _MOST_LOST:
                self._rows[row.output, row.identity] = (row, window)
                if row.output in any_content:
                    self._any_content.add((row.output, row.identity))

    def find(self, output: str, identity: int) -> tuple[Missing, int] | None:
        return self._rows.get((output, identity))

    def arrived(self, output: str, identity: int, content: Content) -> bool:
        """One of these rows is no longer missing: that with this content, or else any of them. Returns whether the content is right."""
        row, window = self._rows[output, identity]
        right = content in row.contents or (output, identity) in self._any_content
        contents = list(row.contents)
        contents.remove(content if content in contents else contents[0])
        if contents:
            self._rows[output, identity] = (row._replace(contents=tuple(contents)), window)
        else:
            del self._rows[output, identity]
            self._any_content.discard((output, identity))
        return right


def classify(
    unmatched: Iterable[Unmatched], lost: Lost, settled: Settled, scenario: Scenario, *, blind: bool
) -> tuple[list[Late], list[Finding], list[str]]:
    """The late rows, the findings and the doubts about these records. Rows that arrived late are taken out of ``lost``.

    ``blind``: some windows could not be judged, so a record that nothing explains may belong to one of them.
    """
    late: list[Late] = []
    named: dict[tuple[str, str], list[Witness]] = {}
    unknown = 0
    for row in unmatched:
        topic = scenario.outputs[row.output].topic
        position = f"{topic}/{row.partition}@{row.offset}"
        identity = json.loads(row.text)
        missing = lost.find(row.output, row.identity)
        known = settled.find(row.output, row.identity)
        if missing is not None:
            cause, window = missing[0].cause, missing[1]
            wrong = not lost.arrived(row.output, row.identity, row.content)
            late.append(Late(row.output, identity, cause, position, window, wrong))
            if not wrong:
                continue
            anomaly = "wrong-value"
            why = f"Input {cause} was due in window {window}, and its row was missing.\n{position} has arrived late, with another value."
        elif known is not None:
            if known.lead_in:
                continue
            anomaly, cause = "duplicate", known.cause
            why = f"Input {cause} was due in window {known.window}, which was settled with the number of rows that is due.\n{position} holds its identity once more."
        elif blind:
            unknown += 1
            continue
        else:
            anomaly, cause = "unexplained", None
            why = f"{position} was readable before the input was read to its end.\nNo input record that has been read since explains it."
        named.setdefault((anomaly, row.output), []).append(Witness(identity, why, cause, None, (position,)))
    findings = [_finding(scenario, settled, *key, witnesses) for key, witnesses in named.items()]
    doubts = []
    if unknown:
        doubts.append(
            f"{times(unknown, 'record')} of the output may belong to a window that could not be judged, and nothing else explains {'it' if unknown == 1 else 'them'}"
        )
    return late, [finding for finding in findings if finding.allowed is None], doubts


_SUMMARY = {
    "duplicate": "{records} of rows that an earlier window has settled",
    "wrong-value": "{records} of rows that were missing, with another value",
    "unexplained": "{records} that no input explains; if its input is older than the lead-in, give a longer --lead-in",
}


def _finding(scenario: Scenario, settled: Settled, anomaly: str, output: str, witnesses: list[Witness]) -> Finding:
    summary = _SUMMARY[anomaly].format(records=times(len(witnesses), "record"))
    if anomaly == "unexplained" and settled.forgotten:
        summary += f", or that repeat a row which was settled more than {settled.remember_s:g} s ago"
    found = Finding(
        anomaly,
        output,
        len(witnesses),
        summary,
        tuple(witnesses[:MAX_WITNESSES]),
        source="unknown" if anomaly == "duplicate" else None,
        unsettled="a watch records no faults" if anomaly == "duplicate" else None,
    )
    claim = scenario.claim_of(output)
    return replace(found, allowed=allowance(found, claim), undecided=undecided(found, claim))
