"""Topics that may have lost records by their own settings: retention removed the first ones, or compaction older ones of a key.

What the oracle expects from such an input is incomplete, and so is what a reader finds in such an output. A finding that may follow
from that alone is undecided. An upsert topic still holds the last record of each key if compaction removed the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceproof.base.words import times
from onceproof.values.canonical import literal

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

#: Partitions of compacted inputs with offsets that hold neither a record nor the marker of a transaction.
_HOLES = """
    WITH held AS (
        SELECT topic, "partition", min("offset") AS first, max("offset") + 1 AS next, count(*) AS n,
               count(DISTINCT txn_end_offset) AS markers
        FROM history.input WHERE topic IN ({topics}) GROUP BY topic, "partition")
    SELECT h.topic, h."partition",
           greatest(h.next, coalesce(p.end_offset, 0)) - least(h.first, coalesce(p.start_offset, h.first)) - n - markers AS offsets
    FROM held h LEFT JOIN history.partitions p USING (topic, "partition") WHERE offsets > 0 ORDER BY topic, "partition" """


class _Removal(NamedTuple):
    cause: str
    """What removed the records."""
    seen: str
    """What shows it, at the first partition of the topic where something does."""
    why: str
    keeps: str
    """The settings of a topic that keeps all records."""
    is_input: bool


def doubts(case: Case) -> list[str]:
    """One sentence per topic that is an input, or an output other than an upsert, and whose log lacks records."""
    return [
        f"{r.seen}: {r.why}, so the {'input' if r.is_input else 'output'} is not complete; "
        f"let the topic keep all records ({r.keeps}) and run again"
        for r in _removed(case).values()
    ]


def undecided(case: Case, anomaly: str, output: str) -> str | None:
    """Why a finding may follow from removed records alone, as a sentence; None if it does not."""
    spec = case.scenario.outputs.get(output)
    own = spec.topic if spec is not None else None
    for topic, removal in _removed(case).items():
        if (removal.is_input and anomaly in _LACKS_INPUT) or (
            anomaly in _LACKS and (topic == own or anomaly in ("sink-disagreement", "misplaced"))
        ):
            return f"Records that {removal.cause} removed may explain it: {removal.seen}"
    return None


def compacted_inputs(case: Case) -> list[str]:
    """The input topics of whose records with one key the broker need keep only the last."""
    policies = {spec.topic: spec.config.get("cleanup.policy", "") for spec in case.scenario.input}
    return [topic for topic, policy in policies.items() if "compact" in map(str.strip, policy.split(","))]


def _removed(case: Case) -> dict[str, _Removal]:
    return case.memo(("removed",), lambda: {**_compacted(case), **_retained(case)})


def _retained(case: Case) -> dict[str, _Removal]:
    inputs = {spec.topic for spec in case.scenario.input}
    outputs = {
        spec.topic for spec in case.scenario.outputs.values() if spec.topic is not None and spec.kind != "upsert"
    }
    found: dict[str, _Removal] = {}
    for row in case.rows(_STARTS):
        topic = row["topic"]
        if topic in inputs | outputs:
            seen = f"the log of {topic}/{row['partition']} begins at offset {row['start_offset']}"
            why = "retention removed the records before it"
            found.setdefault(topic, _Removal("retention", seen, why, "retention.ms=-1", topic in inputs))
    return found


def _compacted(case: Case) -> dict[str, _Removal]:
    topics = compacted_inputs(case)
    if not topics or case.run.slice is not None:  # a slice lacks records that the run has
        return {}
    found: dict[str, _Removal] = {}
    for row in case.rows(_HOLES.format(topics=", ".join(map(literal, topics)))):
        topic = row["topic"]
        seen = f"the log of {topic}/{row['partition']} has {times(row['offsets'], 'offset')} without a record"
        why = "compaction (cleanup.policy) may have removed records"
        found.setdefault(topic, _Removal("compaction", seen, why, "cleanup.policy=delete, retention.ms=-1", True))
    return found
