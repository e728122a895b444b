"""Evidence stays a list of items from the fault to the verdict. A report turns each item into a sentence."""

from __future__ import annotations

import json
from typing import Any

from onceproof.base.masking import hiding
from onceproof.faults.evidence.item import Evidence, from_row, items, to_row
from onceproof.judge.findings import Verdict
from onceproof.judge.verdict import judge

EVIDENCE = (
    Evidence("the sink reported", "batch 2 of q at after-sink-commit", 1.5, "two\nlines"),
    Evidence("it is gone"),
)


def test_items_are_read_back_unchanged_from_a_row() -> None:
    row = to_row(EVIDENCE)
    assert row["evidence"] == "the sink reported: two\nlines\nit is gone"
    assert from_row(**row) == EVIDENCE


def test_evidence_of_earlier_versions_and_other_programs_is_read() -> None:
    for seen in (None, "", "[1]", "{}", '[{"where": "x"}]'):
        assert from_row("one\ntwo", seen) == (Evidence("one"), Evidence("two"))
    assert from_row(None, None) == ()


def test_position_and_time_are_added_to_the_sentence() -> None:
    own = Evidence("seen", "elsewhere", 0.5)
    assert items(["text", own], "here", 2.0) == (Evidence("text", "here", 2.0), own)


def test_quoted_text_is_masked_and_cut() -> None:
    with hiding(["hush-hush"]):
        brief = Evidence("it said", detail=f"hush-hush {'x ' * 2000}").brief()
    assert brief.detail.startswith("*** x x") and len(brief.detail) <= 1000 and brief.what == "it said"


def test_a_verdict_holds_the_items_and_the_sentences(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    clean_run.tables["faults"][0] |= to_row(EVIDENCE)
    verdict = judge(clean_run.save())
    assert verdict.faults[0].seen == EVIDENCE
    (stored,) = verdict.to_json()["faults"]
    assert stored["evidence"] == ["the sink reported: two\nlines", "it is gone"]
    assert stored["seen"][0]["detail"] == "two\nlines"
    del stored["seen"]  # as an earlier version wrote it
    document = json.loads(json.dumps(verdict.to_json()))
    document["faults"] = [stored]
    assert Verdict.from_json(document).faults[0].evidence == verdict.faults[0].evidence
