from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceproof.sinks.errors import CheckpointUnreadable, OffsetGap
from onceproof.sinks.offsets import Checkpoint, Progress, Ranges, Vector, advanced, decide

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


def plan(folder: Path, batch: int, *sources: Vector | None, version: str = "v1") -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    lines = [version, METADATA, *("-" if s is None else json.dumps(s) for s in sources)]
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))


def initial(folder: Path, source: int, offsets: Vector) -> None:
    (folder / "sources" / str(source)).mkdir(parents=True)
    (folder / "sources" / str(source) / "0").write_bytes(b"\x00v1\n" + json.dumps(offsets).encode())


def test_first_batch_begins_at_the_initial_offset_of_its_source(tmp_path: Path) -> None:
    initial(tmp_path, 0, {"flights": {"0": 5, "1": 0}})
    plan(tmp_path, 0, {"flights": {"0": 9, "1": 4}})
    assert Checkpoint(tmp_path).ranges(0) == Ranges(0, {"flights": {"0": 5, "1": 0}}, {"flights": {"0": 9, "1": 4}})


def test_later_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    plan(tmp_path, 6, {"flights": {"0": 9}})
    plan(tmp_path, 7, {"flights": {"0": 12}})
    assert Checkpoint(f"file://{tmp_path}").ranges(7) == Ranges(7, {"flights": {"0": 9}}, {"flights": {"0": 12}})


def test_a_source_without_data_yet_begins_at_its_initial_offset(tmp_path: Path) -> None:
    initial(tmp_path, 1, {"b": {"0": 3}})
    plan(tmp_path, 0, {"a": {"0": 1}}, None)
    plan(tmp_path, 1, {"a": {"0": 2}}, {"b": {"0": 8}})
    assert Checkpoint(tmp_path).ranges(1) == Ranges(1, {"a": {"0": 1}, "b": {"0": 3}}, {"a": {"0": 2}, "b": {"0": 8}})


def test_a_stream_that_is_joined_with_itself_has_one_start(tmp_path: Path) -> None:
    initial(tmp_path, 0, {"till": {"0": 2}})
    plan(tmp_path, 0, {"till": {"0": 7}}, {"till": {"0": 7}})
    assert Checkpoint(tmp_path).ranges(0) == Ranges(0, {"till": {"0": 2}}, {"till": {"0": 7}})


def test_sources_that_share_a_topic_keep_all_its_partitions(tmp_path: Path) -> None:
    """As with ``assign``: each source reads another partition of the topic."""
    initial(tmp_path, 0, {"t": {"0": 2}})
    initial(tmp_path, 1, {"t": {"1": 3}})
    plan(tmp_path, 0, {"t": {"0": 7}}, {"t": {"1": 8}})
    plan(tmp_path, 1, {"t": {"0": 9}}, {"t": {"1": 8}})
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.ranges(0) == Ranges(0, {"t": {"0": 2, "1": 3}}, {"t": {"0": 7, "1": 8}})
    assert checkpoint.ranges(1) == Ranges(1, {"t": {"0": 7, "1": 8}}, {"t": {"0": 9, "1": 8}})


def test_sources_that_read_a_partition_up_to_different_offsets_are_refused(tmp_path: Path) -> None:
    """One number per partition cannot record what both have read."""
    plan(tmp_path, 0, {"t": {"0": 7}}, {"t": {"0": 7}})
    plan(tmp_path, 1, {"t": {"0": 9}}, {"t": {"0": 8}})
    plan(tmp_path, 2, {"t": {"0": 9}}, {"t": {"0": 9}})
    for number, where in ((1, "ends"), (2, "begins")):
        with pytest.raises(
            CheckpointUnreadable, match=rf"read t/0, and batch {number} {where} at offset 9 of it for one and 8 for"
        ):
            Checkpoint(tmp_path).ranges(number)


def test_sources_that_begin_at_different_offsets_of_a_partition_are_refused(tmp_path: Path) -> None:
    initial(tmp_path, 0, {"t": {"0": 0}})
    initial(tmp_path, 1, {"t": {"0": 5}})
    plan(tmp_path, 0, {"t": {"0": 7}}, {"t": {"0": 7}})
    with pytest.raises(CheckpointUnreadable, match="batch 0 begins at offset 0 of it for one and 5 for the other"):
        Checkpoint(tmp_path).ranges(0)


def test_query_id_comes_from_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"0a1b"}')
    assert Checkpoint(tmp_path).query_id() == "0a1b"


def test_an_unreadable_checkpoint_is_reported_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnreadable, match=r"cannot read s3a://bucket/x/offsets/0: only Spark's driver can"):
        Checkpoint("s3a://bucket/x/").ranges(0)
    with pytest.raises(CheckpointUnreadable, match=r"offsets/0: No such file"):
        Checkpoint(tmp_path).ranges(0)
    plan(tmp_path, 3, {"flights": {"0": 9}}, version="v2")
    with pytest.raises(CheckpointUnreadable, match=r"offsets/3 has format 'v2'"):
        Checkpoint(tmp_path).ranges(3)
    (tmp_path / "offsets" / "3").write_text(f"v1\n{METADATA}\n17")
    with pytest.raises(CheckpointUnreadable, match=r"offsets/3 holds '17', which is not the offsets of a Kafka source"):
        Checkpoint(tmp_path).ranges(3)


QUERY = "11111111-2222"


def batch(number: int, *, stateful: bool = False, **spans: tuple[int, int]) -> Ranges:
    return Ranges(
        number,
        {"t": {p[1:]: start for p, (start, _) in spans.items()}},
        {"t": {p[1:]: end for p, (_, end) in spans.items()}},
        stateful,
    )


def progress(offsets: Vector, *, batch_id: int = 0, query_id: str = QUERY) -> Progress:
    return Progress(query_id, batch_id, offsets)


@pytest.mark.parametrize(
    ("recorded", "ranges"),
    [
        (None, batch(0, p0=(0, 5))),
        (None, batch(0, p0=(7, 9))),
        ({"t": {"0": 5, "1": 8}}, batch(1, p0=(5, 9), p1=(8, 8))),
        # a partition that was added while the query ran
        ({"t": {"0": 5}}, batch(3, p0=(5, 6), p1=(0, 2))),
        # a topic that is no longer read
        ({"t": {"0": 5}, "gone": {"0": 3}}, batch(2, p0=(5, 6))),
    ],
)
def test_a_batch_that_begins_where_progress_ends_is_written(recorded: Vector | None, ranges: Ranges) -> None:
    assert decide(None if recorded is None else progress(recorded), ranges, QUERY) == "write"


@pytest.mark.parametrize(
    ("recorded", "ranges"),
    [
        ({"t": {"0": 9}}, batch(1, p0=(5, 9))),
        # the checkpoint was deleted: batch 0 again, of data that is done
        ({"t": {"0": 9, "1": 4}}, batch(0, p0=(0, 7), p1=(0, 4))),
    ],
)
def test_a_batch_that_progress_covers_is_skipped(recorded: Vector, ranges: Ranges) -> None:
    assert decide(progress(recorded), ranges, QUERY) == "skip"


@pytest.mark.parametrize(
    ("recorded", "ranges", "place"),
    [
        ({"t": {"0": 5}}, batch(2, p0=(7, 9)), r"t/0: batch \[7, 9\), recorded up to 5"),
        ({"t": {"0": 8}}, batch(2, p0=(7, 9)), r"t/0: batch \[7, 9\), recorded up to 8"),
        ({"t": {"0": 9, "1": 4}}, batch(2, p0=(5, 9), p1=(4, 6)), r"t/0: batch \[5, 9\), recorded up to 9"),
    ],
)
def test_a_gap_or_an_overlap_is_refused(recorded: Vector, ranges: Ranges, place: str) -> None:
    with pytest.raises(OffsetGap, match=place):
        decide(progress(recorded), ranges, QUERY)


def test_a_later_batch_without_recorded_progress_is_refused() -> None:
    with pytest.raises(OffsetGap, match="batch 4 follows earlier batches"):
        decide(None, batch(4, p0=(5, 9)), QUERY)


@pytest.mark.parametrize(("recorded_batch", "decision"), [(3, "write"), (4, "skip"), (5, "skip")])
def test_a_batch_without_input_is_decided_by_its_id(recorded_batch: int, decision: str) -> None:
    """It emits the windows that the watermark has closed. By its offsets alone it would count as done before it ran."""
    empty = batch(4, p0=(9, 9), p1=(4, 4))
    assert decide(progress({"t": {"0": 9, "1": 4}}, batch_id=recorded_batch), empty, QUERY) == decision


@pytest.mark.parametrize(
    "ranges",
    [
        # new data, with the windows that the former checkpoint had already emitted
        batch(1, stateful=True, p0=(100, 120)),
        # old data in other batches: the second emits windows that the former checkpoint never emitted
        batch(1, stateful=True, p0=(50, 100)),
        batch(0, stateful=True, p0=(0, 50)),
        # the same, by a batch without input
        batch(4, stateful=True, p0=(100, 100)),
        batch(4, stateful=True, p0=(50, 50)),
        batch(0, stateful=True, p0=(100, 100)),
    ],
)
def test_a_stateful_query_with_another_checkpoint_is_refused(ranges: Ranges) -> None:
    recorded = progress({"t": {"0": 100}}, batch_id=0)
    with pytest.raises(
        OffsetGap,
        match=rf"batch {ranges.batch} comes from state, .*\(query another\) is not .*\(query {QUERY}, batch 0\)",
    ):
        decide(recorded, ranges, "another")


def test_a_stateful_query_is_decided_as_any_other_while_its_checkpoint_is_the_same() -> None:
    recorded = progress({"t": {"0": 100}}, batch_id=3)
    assert decide(None, batch(0, stateful=True, p0=(0, 50)), QUERY) == "write"
    assert decide(recorded, batch(3, stateful=True, p0=(50, 100)), QUERY) == "skip"
    assert decide(recorded, batch(4, stateful=True, p0=(100, 120)), QUERY) == "write"
    assert decide(recorded, batch(4, stateful=True, p0=(100, 100)), QUERY) == "write"


def test_a_restored_checkpoint_with_other_batches_is_refused_if_the_query_is_stateful() -> None:
    """It is older than the progress. Batch 4 covers input of recorded batch 3, and emits what another batch would have."""
    recorded = progress({"t": {"0": 100}}, batch_id=3)
    with pytest.raises(OffsetGap, match="batch 4 comes from state, and its input was written by batch 3"):
        decide(recorded, batch(4, stateful=True, p0=(50, 100)), QUERY)
    assert decide(recorded, batch(4, p0=(50, 100)), QUERY) == "skip"


@pytest.mark.parametrize("ranges", [(7, (60, 100)), (8, (100, 100)), (8, (100, 120)), (9, (60, 100)), (12, (100, 120))])
def test_batches_of_an_older_copy_of_a_stateful_checkpoint_are_refused(ranges: tuple[int, tuple[int, int]]) -> None:
    """The copy was made after batch 6. Its batches are larger ones, and emit other rows from state than those that were written."""
    recorded = progress({"t": {"0": 100}}, batch_id=10)
    number, offsets = ranges
    with pytest.raises(OffsetGap, match=f"batch {number} comes from state, and neither repeats recorded batch 10 nor"):
        decide(recorded, batch(number, stateful=True, p0=offsets), QUERY)


def test_state_that_is_rebuilt_from_the_input_is_accepted_where_the_user_says_so() -> None:
    recorded = progress({"t": {"0": 100}}, batch_id=0)
    for ranges, decision in (
        (batch(0, stateful=True, p0=(0, 50)), "skip"),
        (batch(1, stateful=True, p0=(50, 100)), "skip"),
        (batch(2, stateful=True, p0=(100, 100)), "skip"),
        (batch(2, stateful=True, p0=(100, 120)), "write"),
    ):
        assert decide(recorded, ranges, "another", rebuilds_state=True) == decision
    with pytest.raises(OffsetGap, match=r"t/0: batch \[90, 120\), recorded up to 100"):
        decide(recorded, batch(2, stateful=True, p0=(90, 120)), "another", rebuilds_state=True)


def test_a_checkpoint_with_state_is_that_of_a_stateful_query(tmp_path: Path) -> None:
    initial(tmp_path, 0, {"t": {"0": 0}})
    plan(tmp_path, 0, {"t": {"0": 7}})
    assert not Checkpoint(tmp_path).ranges(0).stateful
    (tmp_path / "state" / "0" / "0").mkdir(parents=True)
    assert Checkpoint(tmp_path).ranges(0).stateful


def test_an_empty_first_batch_of_a_new_checkpoint_is_skipped() -> None:
    assert decide(progress({"t": {"0": 9}}, batch_id=7), batch(0, p0=(9, 9)), "another") == "skip"


def test_a_batch_without_input_is_refused_if_its_outcome_is_unknown() -> None:
    done: Vector = {"t": {"0": 9}}
    with pytest.raises(
        OffsetGap, match=r"batch 4 has no input, but recorded progress \(batch 3\) is of another checkpoint"
    ):
        decide(progress(done, batch_id=3), batch(4, p0=(9, 9)), "another")
    with pytest.raises(OffsetGap, match="batch 4 has no input and follows recorded batch 2"):
        decide(progress(done, batch_id=2), batch(4, p0=(9, 9)), QUERY)


def test_progress_keeps_partitions_that_the_batch_does_not_read() -> None:
    recorded: Vector = {"t": {"0": 5, "1": 8}, "gone": {"0": 3}}
    assert advanced(progress(recorded), batch(2, p0=(5, 6))) == {"t": {"0": 6, "1": 8}, "gone": {"0": 3}}
    assert recorded["t"]["0"] == 5
    assert advanced(None, batch(0, p0=(0, 2))) == {"t": {"0": 2}}
