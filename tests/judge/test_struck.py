"""A fault in one consumer group explains the duplicates and losses of that group, and not those of another."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.verdict import judge

GROUPS = {"billed": "billing", "shipped": "shipping"}


def crash_over_the_third(run: Any, *, query: str) -> None:
    at = {"armed_at": 0.0, "fired_at": 1.0, "healed_at": 1.1, "hit": True, "evidence": "it was seen"}
    point = {"target": "c", "query": query, "point": "message 3 after take"}
    run.add("faults", {"index": 0, "fault": "crash", **point, **at})


@pytest.fixture
def groups(stored_run: Any) -> Any:
    """A correct run: four messages, read by two groups, each with its own output."""
    run = stored_run
    run.scenario["outputs"] = {
        name: {"topic": name, "identity": ["id"], "query": group} for name, group in GROUPS.items()
    }
    query = 'SELECT id, _topic, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": dict.fromkeys(GROUPS, query)}
    for number in range(1, 5):
        run.send("k", {"id": number})
        for output in GROUPS:
            run.record(output, {"id": number})
    for group in GROUPS.values():
        run.add("progress", {"query": group, "batch": 0, "topic": "in", "partition": 0, "end_offset": 4})
    return run


@pytest.mark.parametrize(
    ("query", "output", "source"),
    [
        ("billing", "billed", "fault"),
        ("billing", "shipped", "unknown"),
        ("", "shipped", "fault"),  # without groups, there is only one
    ],
)
def test_a_fault_explains_the_duplicates_of_its_own_group_only(
    groups: Any, query: str, output: str, source: str
) -> None:
    crash_over_the_third(groups, query=query)
    groups.record(output, {"id": 3})
    groups.scenario["claim"] = {"delivery": "at-least-once"}
    verdict = judge(groups.save())
    (finding,) = [f for f in verdict.findings if f.anomaly != "sink-disagreement"]
    assert (finding.anomaly, finding.output, finding.source) == ("duplicate", output, source)
    assert (finding.allowed is None) is (source == "unknown")


@pytest.mark.parametrize(("output", "source"), [("billed", "fault"), ("shipped", "no fault")])
def test_a_fault_explains_the_losses_of_its_own_group_only(groups: Any, output: str, source: str) -> None:
    crash_over_the_third(groups, query="billing")
    rows = groups.tables["output"]
    groups.tables["output"] = [r for r in rows if (r["output"], r["content"]) != (output, '{"id": 3}')]
    groups.scenario["claim"] = {"delivery": "at-most-once"}
    verdict = judge(groups.save())
    (finding,) = [f for f in verdict.findings if f.anomaly == "lost-write"]
    assert (finding.output, finding.source) == (output, source)
    assert (finding.allowed is None) is (source == "no fault")
