"""Topics whose log no longer begins at offset 0: retention removed records, so the history does not show all of them.

What the oracle expects from such an input is incomplete, and so is what a reader finds in such an output. A finding that may follow
from that alone is undecided. An upsert topic still holds the last record of each key if compaction removed the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

#: Anomalies that an output seems to have if some of its records are missing in the history.
_LACKS = ("lost-write", "torn-batch", "sink-disagreement", "commit-ahead-of-effect", "wrong-value", "misplaced")
#: Anomalies that an output seems to have if some of the input is missing in the history.
_LACKS_INPUT = (*_LACKS, "unexplained", "duplicate", "diverged-replay")

#: Without the partitions whose removed records the history has, because they were read before a fault deleted them.
_STARTS = """
    SELECT p.topic, p."partition", p.start_offset FROM history.partitions p
    WHERE p.start_offset > 0 AND NOT EXISTS (
        FROM history.input i WHERE i.topic = p.topic AND i."partition" = p."partition" AND i."offset" < p.start_offset)
    ORDER BY p.topic, p."partition" """


def doubts(case: Case) -> list[str]:
    """One sentence per topic that is an input, or an output other than an upsert, and whose log begins above offset 0."""
    return [
        f"the log of {place} begins at offset {start}: retention removed the records before it, so the "
        f"{'input' if is_input else 'output'} is not complete; let the topic keep all records (retention.ms=-1) and run again"
        for place, start, is_input in _removed(case).values()
    ]


def undecided(case: Case, anomaly: str, output: str) -> str | None:
    """Why a finding may follow from removed records alone, as a sentence; None if it does not."""
    found = _removed(case)
    spec = case.scenario.outputs.get(output)
    own = spec.topic if spec is not None else None
    for topic, (place, start, is_input) in found.items():
        if (is_input and anomaly in _LACKS_INPUT) or (
            anomaly in _LACKS and (topic == own or anomaly in ("sink-disagreement", "misplaced"))
        ):
            return f"Records that retention removed may explain it: the log of {place} begins at offset {start}"
    return None


def _removed(case: Case) -> dict[str, tuple[str, int, bool]]:
    """Topic -> the first of its partitions without their first records, where that begins, and whether it is an input."""
    inputs = {spec.topic for spec in case.scenario.input}
    outputs = {
        spec.topic for spec in case.scenario.outputs.values() if spec.topic is not None and spec.kind != "upsert"
    }
    found: dict[str, tuple[str, int, bool]] = {}
    for row in case.memo(("log starts",), lambda: case.rows(_STARTS)):
        topic = row["topic"]
        if topic in inputs | outputs:
            found.setdefault(topic, (f"{topic}/{row['partition']}", row["start_offset"], topic in inputs))
    return found
