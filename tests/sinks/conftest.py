"""A real stack for the sinks, and checkpoints in Spark's format, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from onceproof.base.timeline import Timeline
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.processes.owner import Owner

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'


class FakeCheckpoint:
    """The files of a checkpoint with one source, topic ``t`` with partition 0; batch N is [ends[N-1], ends[N])."""

    def __init__(self, folder: Path, ends: list[int], start: int = 0) -> None:
        self.folder = folder
        self.ends = ends
        (folder / "offsets").mkdir(parents=True)
        (folder / "sources" / "0").mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
        (folder / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + json.dumps({"t": {"0": start}}).encode())
        for batch, end in enumerate(ends):
            (folder / "offsets" / str(batch)).write_text(f"v1\n{METADATA}\n" + json.dumps({"t": {"0": end}}))

    def rows(self, batch: int) -> pa.Table:
        """One row per offset of the batch; every third has a NULL key."""
        offsets = range(self.ends[batch - 1] if batch else 0, self.ends[batch])
        return pa.table(
            {
                "key": pa.array([None if o % 3 == 0 else f"k{o % 2}" for o in offsets], pa.string()),
                "src_offset": pa.array(offsets, pa.int64()),
            }
        )


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., FakeCheckpoint]:
    def make(*ends: int, start: int = 0, name: str = "checkpoint") -> FakeCheckpoint:
        return FakeCheckpoint(tmp_path / name, list(ends), start)

    return make


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    """One broker and Postgres behind Toxiproxy. A test that breaks a proxy heals it."""
    folder = tmp_path_factory.mktemp("stack")
    (folder / "logs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEPROOF_STATE_DIR", str(folder / "state"))
        timeline = Timeline(folder / "events.jsonl")
        with Owner() as owner:
            yield EmbeddedStack.start(
                StackSpec(postgres=PostgresStack()), owner, folder, ensure(progress=False, spark=False), timeline
            )
        timeline.close()
