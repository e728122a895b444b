"""Watches a Spark checkpoint from outside: reads the logs of each micro-batch as Spark writes them.

The watcher is how a run knows its batches. If a job bypasses onceproof's checkpoint file system
(`onceproof.instruments.checkpoint_gate`), the watcher also places its faults, only approximately: it sees a write after it was
made. Spark's ``CheckpointFileManager`` creates ``.N.<uuid>.tmp`` and renames it to ``N``, so in ``offsets/`` and ``commits/``:

- rename to ``offsets/N``: N is planned (`Point.AFTER_OFFSET_LOG`)
- creation of ``commits/.N.<uuid>.tmp``: the sink has returned (`Point.AFTER_SINK_COMMIT`)
- rename to ``commits/N``: N is done (`Point.AFTER_COMMIT_LOG`)
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from inotify_simple import INotify, flags

from onceproof.base.errors import EnvironmentProblem
from onceproof.scenario.points import Point

_TEMPORARY = re.compile(r"^\.(\d+)\.[0-9a-fA-F-]{36}\.tmp$")
_LOGS = ("offsets", "commits")
_OPAQUE = {"state", "sources", *_LOGS}  # folders of a checkpoint that never contain another checkpoint
_MASK = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR

TopicOffsets = Mapping[str, Mapping[int, int]]
"""topic -> partition -> offset"""


@dataclass(frozen=True)
class OffsetLog:
    """The content of ``offsets/N``: where the batch ends in each source, and the watermark it was planned with."""

    ends: TopicOffsets
    watermark_ms: int | None
    sources: tuple[frozenset[str], ...] = ()
    """The topics of each Kafka source, in Spark's order."""


def parse_offset_log(text: str) -> OffsetLog:
    """Parse ``offsets/N``: a version line, a line of metadata, then one line per source (``-`` for a source without offsets).

    Skips sources other than Kafka. Raises `ValueError` if the text is not an offset log.
    """
    version, metadata, *sources = text.splitlines()
    if not version.startswith("v"):
        raise ValueError(f"an offset log begins with its version, not {version!r}")
    ends: dict[str, dict[int, int]] = {}
    read: list[frozenset[str]] = []
    for line in sources:
        topics = set()
        try:
            source = json.loads(line)
        except json.JSONDecodeError:
            continue
        if not isinstance(source, dict):
            continue
        for topic, partitions in source.items():
            if isinstance(partitions, dict) and all(p.isdecimal() and type(o) is int for p, o in partitions.items()):
                ends.setdefault(topic, {}).update({int(p): int(o) for p, o in partitions.items()})
                topics.add(topic)
        if topics:
            read.append(frozenset(topics))
    watermark = json.loads(metadata).get("batchWatermarkMs") if metadata.startswith("{") else None
    return OffsetLog(ends, watermark, tuple(read))


def parse_commit_log(text: str) -> int | None:
    """Parse ``commits/N`` (a version line, then JSON): the watermark of the next batch, or None if it has none.

    Raises `ValueError` if the text is not a commit log.
    """
    version, _, body = text.partition("\n")
    if not version.startswith("v"):
        raise ValueError(f"a commit log begins with its version, not {version!r}")
    metadata = json.loads(body.splitlines()[0]) if body.strip() else {}
    watermark = metadata.get("nextBatchWatermarkMs") if isinstance(metadata, dict) else None
    return watermark if isinstance(watermark, int) else None


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one query, as read from its logs. Times are seconds of the run's clock."""

    query: str
    batch: int
    starts: TopicOffsets
    ends: TopicOffsets
    watermark_ms: int | None
    planned_at: float
    planned_by: int
    """Which start of the driver wrote ``offsets/N``, from 0."""
    committed_at: float | None = None
    committed_by: int | None = None
    next_watermark_ms: int | None = None
    """From ``commits/N``: the watermark of the next batch. None before the commit, or if it could not be read."""
    sources: tuple[frozenset[str], ...] = ()
    """The topics of each Kafka source, in Spark's order."""

    def records(self) -> int:
        """The number of offsets covered: an upper bound of the records, since control records use offsets too.

        A partition whose log goes back covers none: its topic was created again, or the query is in continuous processing.
        """
        return sum(
            max(end - self.starts.get(topic, {}).get(partition, 0), 0)
            for topic, partitions in self.ends.items()
            for partition, end in partitions.items()
        )


OnLog = Callable[[str, int, Point], None]


@dataclass
class _Query:
    name: str
    folder: Path
    batches: dict[int, Batch] = field(default_factory=dict)
    drafts: set[str] = field(default_factory=set)
    """Names of the temporary files of its commit log that were reported; each has a UUID of its own."""


class CheckpointWatcher:
    """Watches every checkpoint below ``root`` through inotify, keeps its batches, and calls ``on_log`` for each log write.

    ``on_log(query, batch, point)`` runs in the watcher's thread, at once: a fault that must strike before the next log
    write strikes inside this call. A query's name is its checkpoint's path below ``root``, or ``root``'s own name.
    ``expected`` names queries that will start, however late. ``refresh`` brings ``root`` up to date if it is a copy.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Callable[[], float],
        start_of_driver: Callable[[], int],
        on_log: OnLog,
        expected: Sequence[str] = (),
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self.root = root
        self._refresh = refresh
        self._expected = tuple(expected)
        self._clock = clock
        self._start_of_driver = start_of_driver
        self._on_log = on_log
        self._queries: dict[Path, _Query] = {}
        self._retired: dict[tuple[str, int], Batch] = {}
        self._lock = threading.RLock()
        self._inotify = INotify()
        self._watches: dict[int, Path] = {}
        self._watched: set[Path] = set()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._loop, name="checkpoint-watcher", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._watch_folder(self.root)
        self._thread.start()

    def stop(self) -> None:
        os.write(self._wake_write, b"x")
        if self._thread.is_alive():
            self._thread.join(5)
        self._inotify.close()

    # -- queries --------------------------------------------------------------------------------------------------

    def batches(self) -> list[Batch]:
        with self._lock:
            return [b for q in self._queries.values() for _, b in sorted(q.batches.items())]

    def batch(self, query: str, batch: int) -> Batch | None:
        """The batch with that number, also from a checkpoint that has been removed; `batches` returns only existing ones."""
        with self._lock:
            existing = next((b for b in self.batches() if b.query == query and b.batch == batch), None)
            return existing or self._retired.get((query, batch))

    def queries(self) -> dict[str, Path]:
        """Query name -> its checkpoint folder."""
        with self._lock:
            return {q.name: q.folder for q in self._queries.values()}

    def query_of_id(self, query_id: str) -> str | None:
        """The query whose ``metadata`` holds that Spark query id."""
        return next((name for name, folder in self.queries().items() if query_id_in(folder) == query_id), None)

    def progress(self) -> dict[str, TopicOffsets]:
        """Query -> topic -> partition -> end offset of its last committed batch."""
        done: dict[str, TopicOffsets] = {}
        for batch in self.batches():
            if batch.committed_at is not None:
                done[batch.query] = batch.ends
        return done

    def covers(self, ends: TopicOffsets) -> bool:
        """Whether some query reads each of these topics, and every query that reads one has committed up to ``ends``.

        False while a query has a checkpoint but no batch, or is expected and not there yet: it may read any of the topics.
        """
        with self._lock:
            if self.missing_queries() or any(not query.batches for query in self._queries.values()):
                return False
        for topic, partitions in ends.items():
            readers = {b.query for b in self.batches() if topic in b.ends}
            done = self.progress()
            if not readers:
                return False
            for query in readers:
                reached = done.get(query, {}).get(topic, {})
                if any(reached.get(p, 0) < end for p, end in partitions.items() if end > 0):
                    return False
        return True

    def reads_nothing(self, query: str, batch: int) -> bool:
        """Whether ``offsets/N`` exists and ends where batch N-1 ended. Reads the files, since `batches` may lag behind them."""
        offsets = self.folder(query) / "offsets"
        try:
            ends = [parse_offset_log((offsets / str(number)).read_text()).ends for number in (batch - 1, batch)]
        except (OSError, ValueError):
            return False
        return ends[0] == ends[1]

    def newest_plan(self, query: str) -> int:
        """The newest batch with an ``offsets/N`` on the disk, -1 if there is none. `batches` may lag behind it."""
        with suppress(FileNotFoundError):
            entries = (self.queries()[query] / "offsets").iterdir()
            return max((int(entry.name) for entry in entries if entry.name.isdigit()), default=-1)
        return -1

    def stateful(self, query: str) -> bool:
        """Whether the query keeps state: its checkpoint has a ``state`` folder."""
        return (self.folder(query) / "state").is_dir()

    def missing_queries(self) -> list[str]:
        """The expected queries that have no checkpoint yet."""
        return [name for name in self._expected if name not in self.queries()]

    def log_exists(self, query: str, log: str, batch: int) -> bool:
        """Whether ``offsets/N`` or ``commits/N`` exists now. Asks the file system."""
        return (self.folder(query) / log / str(batch)).exists()

    def folder(self, query: str) -> Path:
        """The query's checkpoint, up to date. If nothing was seen of it yet (it may wait in its first write), its name gives the
        path."""
        self._refresh()
        return self.queries().get(query, self.root if query == self.root.name else self.root / query)

    def has_started(self) -> bool:
        """Whether some query has fixed its start offsets (``sources/0/0``) or planned a batch."""
        return any((f / "sources" / "0" / "0").exists() for f in self.queries().values()) or bool(self.batches())

    def check(self) -> None:
        """Raise what stopped the watcher's thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def fail(self, failure: BaseException) -> None:
        """Make `check` raise this failure of the checkpoint gate, unless an earlier failure is already stored."""
        self._failure = self._failure or failure

    # -- inotify --------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        # If permitted (root, or a raised limit): a fault's window is some 30 ms, and a loaded machine may delay this
        # thread for as long.
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -15)
        try:
            while True:
                ready, _, _ = select.select([self._inotify.fileno(), self._wake_read], [], [])
                stopping = self._wake_read in ready
                if stopping:  # what is queued is still recorded, but no fault strikes a job that has ended
                    self._on_log = lambda _query, _batch, _point: None
                for event in self._inotify.read(timeout=0):
                    if event.mask & flags.Q_OVERFLOW:
                        raise RuntimeError(
                            "the kernel dropped file events of the checkpoint (inotify queue overflow): points were missed"
                        )
                    folder = self._watches.get(event.wd)
                    if folder is None:
                        continue
                    if event.mask & flags.IGNORED:  # the folder was removed; one with the same name may be created
                        self._watched.discard(folder)
                        if folder.name == "offsets":
                            self._retire(folder.parent)
                    elif event.mask & flags.ISDIR:
                        self._watch_folder(folder / event.name)
                    elif folder.name in _LOGS:
                        self._see(folder, event.name)
                if stopping:
                    return
        except BaseException as failure:  # check() raises it: a dead watcher must never look like a quiet one
            self._failure = failure

    def _watch_folder(self, folder: Path) -> None:
        """Watch a folder, then read its entries: in this order nothing that appears in between is missed."""
        is_log = folder.name in _LOGS
        if folder in self._watched or (folder.name in _OPAQUE and not is_log):
            return
        self._watched.add(folder)
        try:
            self._watches[self._inotify.add_watch(folder, _MASK)] = folder
        except (FileNotFoundError, NotADirectoryError):
            self._watched.discard(folder)
            return
        if is_log:
            with self._lock:
                self._queries.setdefault(folder.parent, _Query(self._name(folder.parent), folder.parent))
            for entry in sorted(folder.iterdir(), key=_log_order):
                self._see(folder, entry.name)
            return
        for child in folder.iterdir():
            if child.is_dir():
                self._watch_folder(child)

    def _retire(self, checkpoint: Path) -> None:
        """The checkpoint was removed: a new one at this path starts at batch 0 again, unrelated to the old batches."""
        with self._lock:
            query = self._queries[checkpoint]
            self._retired |= {(query.name, number): batch for number, batch in query.batches.items()}
            query.batches = {}

    def _name(self, checkpoint: Path) -> str:
        return self.root.name if checkpoint == self.root else str(checkpoint.relative_to(self.root))

    def _see(self, folder: Path, name: str) -> None:
        query = self._queries[folder.parent]
        # Read before on_log: a fault that strikes at this point may cause the next start of the driver.
        seen_at, start = self._clock(), self._start_of_driver()
        temporary = _TEMPORARY.match(name)
        if temporary and folder.name == "commits":
            if name in query.drafts:  # seen by reading the folder, and again by the event of its creation
                return
            query.drafts.add(name)
            # At once: the rename is only milliseconds away.
            self._on_log(query.name, int(temporary.group(1)), Point.AFTER_SINK_COMMIT)
        elif name.isdigit() and folder.name == "offsets":
            if int(name) not in query.batches:
                self._on_log(query.name, int(name), Point.AFTER_OFFSET_LOG)
                self._planned(query, int(name), seen_at, start)
        elif name.isdigit() and folder.name == "commits":
            known = query.batches.get(int(name))
            if known is None or known.committed_at is None:
                # The fault strikes first: code that waits for this commit must not continue before that.
                self._on_log(query.name, int(name), Point.AFTER_COMMIT_LOG)
                self._committed(query, int(name), seen_at, start)

    def _planned(self, query: _Query, batch: int, seen_at: float, start: int) -> None:
        path = query.folder / "offsets" / str(batch)
        try:
            log = parse_offset_log(path.read_text())
        except ValueError as wrong:
            raise EnvironmentProblem(
                f"{path} is not an offset log of Spark: {wrong}",
                hint="below the checkpoint, only Spark may write into folders named offsets and commits",
            ) from wrong
        # Not always batch - 1: asynchronous progress tracking writes no entry for a batch that ends soon after the one before it.
        before = max((number for number in query.batches if number < batch), default=None)
        starts = self._initial(query) if before is None else query.batches[before].ends
        with self._lock:
            query.batches[batch] = Batch(
                query.name, batch, starts, log.ends, log.watermark_ms, seen_at, start, sources=log.sources
            )

    def _committed(self, query: _Query, batch: int, seen_at: float, start: int) -> None:
        if batch not in query.batches:  # the rename of commits/N was handled before that of offsets/N
            self._planned(query, batch, seen_at, start)
        try:
            next_ms = parse_commit_log((query.folder / "commits" / str(batch)).read_text())
        except (OSError, ValueError):  # a fault may have damaged it, or removed the checkpoint
            next_ms = None
        with self._lock:
            query.batches[batch] = replace(
                query.batches[batch], committed_at=seen_at, committed_by=start, next_watermark_ms=next_ms
            )

    def _initial(self, query: _Query) -> TopicOffsets:
        """Start offsets of the first batch: each ``sources/K/0`` holds a version line and one line of JSON."""
        starts: dict[str, dict[int, int]] = {}
        for first in sorted((query.folder / "sources").glob("*/0")):
            try:
                text = first.read_text()
                starts.update(parse_initial_offsets(text))
            except (OSError, ValueError):
                continue
        return starts


def query_id_in(checkpoint: Path) -> str | None:
    """Spark's id of the query, which stays the same over restarts; None if ``metadata`` is missing or incomplete."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError):
        return None


def parse_initial_offsets(text: str) -> dict[str, dict[int, int]]:
    """Parse the Kafka source's ``sources/K/0``: ``v1`` and JSON of topic -> partition -> offset (a NUL byte may lead)."""
    body = text[text.index("{") :]
    return {topic: {int(p): int(o) for p, o in parts.items()} for topic, parts in json.loads(body).items()}


def _log_order(entry: Path) -> tuple[bool, int]:
    """Temporary files first (each before the log entry that it became), then log entries by batch."""
    return not entry.name.startswith("."), int(entry.name) if entry.name.isdigit() else 0
