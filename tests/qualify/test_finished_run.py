"""A cell of a shared run shows a row of its own batch, however many rows another batch has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from onceproof.judge.findings import Verdict, Witness
from onceproof.qualify.attribution import attribute
from onceproof.qualify.finished_run import with_witness_per_batch
from onceproof.qualify.schedule import RunStep


def row(identity: int, batch: int | None) -> Witness:
    return Witness({"id": identity}, "it is there twice", batch=batch)


def test_a_cell_shows_a_row_from_the_witness_file_if_the_verdict_has_none_of_its_batch(
    three: RunStep, verdict_on: Callable[..., Verdict], tmp_path: Path
) -> None:
    (tmp_path / "witnesses").mkdir()
    file = tmp_path / "witnesses" / "duplicate-last_seen.jsonl"
    every = [*(row(number, 2) for number in range(40)), row(50, None), row(51, 4), row(52, 4), row(53, 9)]
    file.write_text("".join(json.dumps(asdict(witness)) + "\n" for witness in every))
    verdict = verdict_on(three, found={"duplicate": {2: 40, 4: 2}})
    first = replace(
        verdict.findings[0], witnesses=tuple(every[:32]), witness_file="witnesses/duplicate-last_seen.jsonl"
    )
    verdict = replace(verdict, findings=(first,))

    def shown(judged: Verdict) -> list[str | None]:
        cells = attribute(three, judged, {}, "runs/x")
        return [(cell.shared.witnesses if cell.shared else cell.witnesses).get("duplicate") for cell in cells]

    assert shown(verdict) == ["id=0 (batch 2)", None, None]
    assert shown(with_witness_per_batch(verdict, tmp_path)) == ["id=0 (batch 2)", "id=51 (batch 4)", None]


def test_a_finding_without_a_witness_file_is_unchanged(
    three: RunStep, verdict_on: Callable[..., Verdict], tmp_path: Path
) -> None:
    verdict = verdict_on(three, found={"duplicate": {2: 40, 4: 2}})
    assert with_witness_per_batch(verdict, tmp_path) == verdict
