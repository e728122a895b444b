"""The local copy of a checkpoint in an object store."""

from __future__ import annotations

from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_mirror import CheckpointMirror
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.scenario.points import Point

ADDRESS = "s3a://bucket/a/checkpoint"
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"t":{"0":%d}}'


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def mirror_of(store: MemoryStore, folder: Path, failures: list[BaseException] | None = None) -> CheckpointMirror:
    kept = [] if failures is None else failures
    return CheckpointMirror(store, "a/checkpoint", ADDRESS, folder, on_failure=kept.append)  # type: ignore[arg-type]


def put(store: MemoryStore, name: str, content: bytes = b"v1\n{}") -> None:
    obstore.put(store, f"a/checkpoint/{name}", content)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_it_holds_what_the_store_holds_and_of_the_state_only_names(store: MemoryStore, tmp_path: Path) -> None:
    put(store, "q/metadata", b"{}")
    put(store, "q/offsets/0", b"first")
    put(store, "q/offsets/.1.aa.tmp", b"unfinished")
    put(store, "q/commits/0", b"")  # truncated: a file, and not a folder
    put(store, "q/state", b"")  # how s3a marks a folder
    put(store, "q/state/0/0/1.delta", b"large")
    obstore.put(store, "a/checkpoints/q/offsets/9", b"of another run")
    mirror = mirror_of(store, tmp_path)
    mirror.refresh()
    copied = {"q/metadata": b"{}", "q/offsets/0": b"first", "q/commits/0": b"", "q/state/0/0/1.delta": b""}
    assert files(tmp_path) == copied
    put(store, "q/offsets/0", b"again")
    obstore.delete(store, "a/checkpoint/q/commits/0")
    mirror.refresh()
    assert files(tmp_path)["q/offsets/0"] == b"again"
    assert not (tmp_path / "q" / "commits").exists()


def test_a_driver_s_address_has_a_place_in_the_copy(store: MemoryStore, tmp_path: Path) -> None:
    mirror = mirror_of(store, tmp_path)
    assert mirror.local(f"{ADDRESS}/q/offsets/3") == tmp_path / "q" / "offsets" / "3"
    assert mirror.local(ADDRESS) == tmp_path
    for other in (f"{ADDRESS}s/q/offsets/3", "s3a://other/a/checkpoint/q/offsets/3"):
        assert mirror.local(other) is None


def test_the_watcher_sees_the_batches_of_a_checkpoint_in_the_store(store: MemoryStore, tmp_path: Path) -> None:
    seen: list[tuple[str, int, Point]] = []
    failures: list[BaseException] = []
    mirror = mirror_of(store, tmp_path, failures)
    watcher = CheckpointWatcher(
        tmp_path,
        clock=lambda: 0.0,
        start_of_driver=lambda: 0,
        on_log=lambda query, batch, point: seen.append((query, batch, point)),
        refresh=mirror.refresh,
    )
    watcher.start()
    mirror.start()
    try:
        put(store, "q/sources/0/0", b'v1\n{"t":{"0":2}}')
        put(store, "q/offsets/0", OFFSETS % 5)
        put(store, "q/commits/0")
        wait_until("the batch", lambda: [b for b in watcher.batches() if b.committed_at is not None], deadline_s=5)
        (batch,) = watcher.batches()
        assert (batch.query, batch.records()) == ("q", 3)
        assert seen == [("q", 0, Point.AFTER_OFFSET_LOG), ("q", 0, Point.AFTER_COMMIT_LOG)]
        put(store, "q/offsets/1", OFFSETS % 6)
        assert watcher.log_exists("q", "offsets", 1)  # at once: it asks the store
        assert not watcher.log_exists("q", "commits", 1)
        assert failures == []
    finally:
        mirror.stop()
        watcher.stop()
