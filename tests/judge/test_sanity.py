"""A history with impossible values is refused, with the file, row and value; a possible one is not."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import HistoryError
from onceproof.history import sanity
from onceproof.history.reader import open_history
from onceproof.history.schema import TABLES, VERSION, VERSION_KEY
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import judge
from onceproof.values.lanes import Lanes


def refused(run: Any) -> str:
    with pytest.raises(HistoryError) as caught:
        judge(run.save())
    return str(caught.value)


def test_rules_name_existing_columns_of_their_table() -> None:
    assert set(sanity.RULES) == set(TABLES)
    for table, rules in sanity.RULES.items():
        pairs = [name for pair in rules.ascending for name in pair]
        named = {*rules.required, *rules.words, *rules.counts, *pairs, *rules.unique, *rules.lane}
        assert named | ({rules.position} - {None}) <= set(TABLES[table].names), table


def test_clean_run_passes(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    sanity.check(open_history(clean_run.save()))


@pytest.mark.parametrize("table", ["input", "output"])
def test_a_repeated_row_is_refused(clean_run: Any, table: str) -> None:
    rows = clean_run.tables[table]
    row = next(n for n, r in enumerate(rows) if r["partition"] == 1 and r["offset"] == 1)
    rows.insert(row + 1, dict(rows[row]))
    refusal = refused(clean_run)
    assert f"{table}.parquet, row {row + 1}:" in refusal
    assert "partition 1, offset 1 occurs twice, but it must rise from row to row" in refusal


def test_offsets_out_of_order_are_refused(clean_run: Any) -> None:
    rows = clean_run.tables["input"]
    one, other = (n for n, r in enumerate(rows) if r["partition"] == 0 and r["offset"] in (4, 5))
    rows[one], rows[other] = rows[other], rows[one]
    assert f"input.parquet, row {other}: topic 'in', partition 0, offset 4 comes after 5" in refused(clean_run)


def test_commits_out_of_order_are_refused(clean_run: Any) -> None:
    clean_run.tables["commits"].reverse()
    assert "commits.parquet, row 1: commit_order 0 comes after 1" in refused(clean_run)


DAMAGES: list[tuple[str, dict[str, Any], str]] = [
    ("input", {"visibility": "comitted"}, "visibility 'comitted' is not one of committed, aborted, open (did you mean"),
    ("input", {"visibility": None}, "visibility None may not be null"),
    ("input", {"offset": None}, "offset None may not be null"),
    ("input", {"partition": -1}, "partition -1 may not be negative"),
    ("input", {"txn_end_offset": 0, "offset": 90}, "offset 90 is greater than its txn_end_offset 0"),
    ("output", {"op": "upsert"}, "op 'upsert' is not one of insert, update, delete, truncate"),
    ("output", {"output": None}, "output None may not be null"),
    ("output", {"offset": -5}, "offset -5 may not be negative"),
    ("sent", {"status": "lost"}, "status 'lost' is not one of acked, failed, unknown"),
    ("batches", {"planned_at": 5.0, "committed_at": 4.0}, "planned_at 5.0 is greater than its committed_at 4.0"),
    ("batches", {"start_offset": 9, "end_offset": 3}, "start_offset 9 is greater than its end_offset 3"),
    ("batches", {"batch": None}, "batch None may not be null"),
    ("faults", {"armed_at": 3.0, "fired_at": 2.0}, "armed_at 3.0 is greater than its fired_at 2.0"),
    ("faults", {"fired_at": 2.0, "healed_at": 1.0}, "fired_at 2.0 is greater than its healed_at 1.0"),
    ("faults", {"armed_at": None}, "armed_at None may not be null where hit is true"),
    ("faults", {"fired_at": None, "healed_at": None}, "fired_at None may not be null where hit is true"),
    ("progress", {"end_offset": -1}, "end_offset -1 may not be negative"),
]


@pytest.mark.parametrize(("table", "change", "message"), DAMAGES)
def test_impossible_values_are_refused(clean_run: Any, table: str, change: dict[str, Any], message: str) -> None:
    clean_run.fault(batch=1)
    rows = clean_run.tables[table]
    rows[-1].update(change)
    refusal = refused(clean_run)
    assert f"{table}.parquet, row {len(rows) - 1}: {message}" in refusal
    assert "docs/history.md" in refusal


@pytest.mark.parametrize("table", ["batches", "progress", "faults"])
def test_repeated_names_are_refused(clean_run: Any, table: str) -> None:
    clean_run.fault(batch=1)
    rows = clean_run.tables[table]
    rows.append(dict(rows[0]))
    assert f"{table}.parquet, row {len(rows) - 1}: " in (refusal := refused(clean_run))
    assert "is already in row 0" in refusal


def test_partitions_that_end_before_they_begin_are_refused(clean_run: Any) -> None:
    row = {"topic": "in", "partition": 0, "start_offset": 0, "stable_offset": 9, "end_offset": 8}
    clean_run.add("partitions", row)
    assert "stable_offset 9 is greater than its end_offset 8" in refused(clean_run)


@pytest.mark.parametrize(
    ("name", "value"), [("fault", "stop"), ("target", "broker"), ("batch", 2), ("point", "before-sink-commit")]
)
def test_a_fault_that_is_not_the_one_of_the_scenario_is_refused(clean_run: Any, name: str, value: Any) -> None:
    at = {"batch": 1, "point": "after-sink-commit", "attempt": None}
    clean_run.scenario["chaos"] = [{"fault": "crash", "target": "driver", "at": at}]
    clean_run.fault(batch=1)
    sanity.check(open_history(clean_run.save()))
    row = clean_run.tables["faults"][0]
    was, row[name] = row[name], value
    assert f"index 0: {name} {value!r} is not {was!r}, as in entry 0 of the scenario's chaos" in refused(clean_run)


def test_faults_without_a_hit_need_no_times(clean_run: Any) -> None:
    clean_run.fault(batch=1, hit=False)
    clean_run.tables["faults"][0].update(armed_at=None, fired_at=None, healed_at=None)
    clean_run.fault(batch=2)
    clean_run.tables["faults"][1]["hit"] = None
    clean_run.tables["faults"][1]["fired_at"] = None
    sanity.check(open_history(clean_run.save()))


def test_times_that_rounding_put_out_of_order_are_accepted(clean_run: Any) -> None:
    clean_run.fault(batch=1)
    clean_run.tables["faults"][0].update(armed_at=1.0000004, fired_at=1.0)
    sanity.check(open_history(clean_run.save()))


def test_another_version_in_the_document_is_refused(clean_run: Any) -> None:
    clean_run.document["schema"] = VERSION + 1
    assert f"run.json has schema {VERSION + 1}, and this onceproof reads schema {VERSION}" in refused(clean_run)


def large(folder: Path, rows: int, group: int) -> Path:
    """A table ``input`` of several row groups, as `HistoryWriter` writes them."""
    path = folder / "input.parquet"
    schema = TABLES["input"].with_metadata({VERSION_KEY: str(VERSION).encode()})
    with pq.ParquetWriter(path, schema, write_page_checksum=True, write_statistics=False) as writer:
        for start in range(0, rows, group):
            part = [
                {"topic": "in", "partition": 0, "offset": n, "value": b"%032d" % n, "visibility": "committed"}
                for n in range(start, start + group)
            ]
            writer.write_batch(pa.RecordBatch.from_pylist(part, schema=schema))
    return path


def test_a_damaged_page_in_any_row_group_is_refused(clean_run: Any) -> None:
    run_dir = clean_run.save()
    path = large(run_dir / "history", 6_000, 1_000)
    sanity.check(open_history(run_dir))
    content = path.read_bytes()
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            spoiled = bytearray(content)
            spoiled[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0x10
            path.write_bytes(bytes(spoiled))
            try:
                sanity.check(open_history(run_dir))
            except HistoryError as error:
                assert "input.parquet" in str(error) and "copy the whole run directory again" in str(error)
            else:
                assert pq.read_table(path).equals(pq.read_table(pa.BufferReader(content)))


def test_no_flipped_bit_changes_the_verdict(clean_run: Any, tmp_path: Path) -> None:
    """It is refused, irrelevant, or (if only one of two Parquet readers objects) inconclusive: never another verdict."""
    here = clean_run.save()
    right = replace(judge(here), seconds=0)
    dice = random.Random(11)
    refusals = 0
    for number in range(60):
        there = tmp_path / f"spoiled-{number}"
        shutil.copytree(here, there)
        path = there / "history" / f"{dice.choice(['input', 'output', 'snapshot', 'batches', 'progress'])}.parquet"
        content = bytearray(path.read_bytes())
        # The data, and the footer with its positions; the footer's text ("created by ...") is irrelevant.
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes(content))
        try:
            found = replace(judge(there), seconds=0)
        except HistoryError:
            refusals += 1
        else:
            assert found == right or found.outcome is Outcome.INCONCLUSIVE, f"{path}"
        shutil.rmtree(there)
    assert refusals > 20


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(clean_run: Any, keep: float) -> None:
    run_dir = clean_run.save()
    path = run_dir / "history" / "output.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(HistoryError, match=r"output\.parquet is damaged or cut off"):
        judge(run_dir)


def test_text_that_is_not_utf_8_is_refused(clean_run: Any) -> None:
    run_dir = clean_run.save()
    path = run_dir / "history" / "snapshot.parquet"
    table = pq.read_table(path)
    content = pa.array([b'{"p":"\xff"}'] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(1, "content", content), path)
    with pytest.raises(HistoryError, match=r"snapshot\.parquet is damaged after row 0: .*UTF8"):
        judge(run_dir)


def test_positions_rise_within_one_lane_or_many_interleaved_lanes() -> None:
    names = pa.chunked_array([["a", "b", None] * 4])
    rising = pa.chunked_array([np.repeat(np.arange(4), 3)])
    lanes = Lanes()
    assert lanes.fall([names], rising) is None
    again = lanes.fall([names], rising)
    assert again == (0, 3)
    assert Lanes().fall([], pa.chunked_array([np.array([0, 5, 3, 2])])) == (2, 5)
    assert Lanes().fall([], pa.chunked_array([np.array([], np.int64)])) is None


def test_lanes_agree_with_a_plain_loop() -> None:
    dice = random.Random(3)
    for _ in range(300):
        rows = [(dice.choice("ab"), dice.choice([0, 1, None])) for _ in range(dice.randrange(1, 20))]
        place: dict[tuple[str, int | None], int] = {}
        values = []
        for row in rows:
            place[row] = place.get(row, -1) + dice.choice([1, 1, 1, 1, 2, 3, 0, -1])
            values.append(max(place[row], 0))
            place[row] = values[-1]
        cut = dice.randrange(len(rows) + 1)
        assert by_lanes(rows, values, cut) == plainly(rows, values)


def plainly(rows: list[tuple[str, int | None]], values: list[int]) -> int | None:
    last: dict[tuple[str, int | None], int] = {}
    for number, (row, value) in enumerate(zip(rows, values, strict=True)):
        if value <= last.get(row, -1):
            return number
        last[row] = value
    return None


def by_lanes(rows: list[tuple[str, int | None]], values: list[int], cut: int) -> int | None:
    """The result for the rows in two pieces, like two row groups."""
    lanes = Lanes()
    for begin, end in ((0, cut), (cut, len(rows))):
        names = [
            pa.chunked_array([pa.array([r[0] for r in rows[begin:end]], pa.string())]),
            pa.chunked_array([pa.array([r[1] for r in rows[begin:end]], pa.int32())]),
        ]
        found = lanes.fall(names, pa.chunked_array([pa.array(values[begin:end], pa.int64())]))
        if found is not None:
            return begin + found[0]
    return None
