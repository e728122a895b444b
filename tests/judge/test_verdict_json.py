"""A verdict is written to JSON, and read back as an equal one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.faults.evidence.item import Evidence
from onceproof.judge.findings import (
    VERDICT_FILE,
    BatchReport,
    FaultReport,
    Finding,
    Outcome,
    StatedClaim,
    Verdict,
    Witness,
)
from onceproof.judge.verdict import judge, write_verdict

TEXT = st.text(max_size=8)
MAYBE = st.none() | TEXT
COUNTS = st.dictionaries(TEXT, st.integers(), max_size=3)
PLAIN = st.none() | st.booleans() | st.integers() | TEXT
WORDS = st.lists(TEXT, max_size=3).map(tuple)


def some(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=2).map(tuple)


WITNESSES = st.builds(Witness, st.dictionaries(TEXT, PLAIN, max_size=3), TEXT, MAYBE, st.none() | st.integers(), WORDS)
FINDINGS = st.builds(
    Finding,
    TEXT,
    TEXT,
    st.integers(),
    TEXT,
    some(WITNESSES),
    source=MAYBE,
    attribution=COUNTS,
    batches=COUNTS,
    transient=st.booleans(),
    allowed=MAYBE,
    unsettled=MAYBE,
    undecided=MAYBE,
    witness_file=MAYBE,
)
PROMISES = st.dictionaries(TEXT.filter(lambda name: name != "outputs"), TEXT, max_size=3)
#: Times are finite, as on any clock: NaN is not equal to itself.
EVIDENCE = st.builds(Evidence, TEXT, where=TEXT, at=st.none() | st.floats(0, 1e9), detail=TEXT)
FAULTS = st.builds(FaultReport, point=MAYBE, batch=st.none() | st.integers(), seen=some(EVIDENCE))
BATCHES = st.from_type(BatchReport)
VERDICTS = st.builds(
    Verdict,
    TEXT,
    st.sampled_from(Outcome),
    st.builds(StatedClaim, PROMISES, st.dictionaries(TEXT, PROMISES, max_size=2)),
    WORDS,
    some(FINDINGS),
    some(FAULTS),
    st.dictionaries(TEXT, TEXT, max_size=3),
    COUNTS,
    some(BATCHES),
    st.dictionaries(TEXT, st.lists(TEXT, max_size=2), max_size=2),
    st.dictionaries(TEXT, TEXT, max_size=2),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(VERDICTS)
def test_a_verdict_is_read_back_from_its_file_its_text_and_its_object(verdict: Verdict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_verdict(Path(folder), verdict)
        file = Path(folder) / VERDICT_FILE
        assert Verdict.from_json(file) == Verdict.from_json(file.read_text(encoding="utf-8")) == verdict
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_the_verdict_on_a_run_is_read_back(clean_run: Any) -> None:
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0}, key="k0")
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED and verdict.findings[0].witnesses
    assert Verdict.from_json(json.dumps(verdict.to_json())) == verdict


WRONG = [
    *("", "[]", "{}", "null", '{"verdict": "good"}', '{"verdict": "held"}'),
    *('{"verdict": "held", "faults": 5}', '{"verdict": "held", "faults": [{"evidence": 5}]}'),
]


@pytest.mark.parametrize("text", WRONG)
def test_anything_else_than_a_verdict_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / VERDICT_FILE).write_text(text)
    for source in (text, tmp_path / VERDICT_FILE):
        with pytest.raises(ValueError):
            Verdict.from_json(source)
