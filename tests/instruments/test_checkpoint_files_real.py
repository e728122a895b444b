"""The checkpoint file system in a real driver: it changes nothing that Spark writes, and a dead harness holds no driver."""

from __future__ import annotations

import os
import re
import select
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from inotify_simple import INotify, flags

from onceproof.base.waiting import wait_until
from onceproof.pipeline.spark_conf import CheckpointFiles, job_environment
from onceproof.stack.fetch import components

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

#: Two queries over three files each: one without and one with state.
JOB = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as f
root = Path(sys.argv[1])
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(root / "lines"))
rows = lines.select(f.from_json("value", "id INT, at TIMESTAMP").alias("r")).select("r.*")
counted = rows.withWatermark("at", "1 minute").groupBy(f.window("at", "1 minute")).count()
for name, frame, mode in (("plain", rows, "append"), ("counted", counted, "update")):
    writer = frame.writeStream.foreachBatch(lambda batch, n: batch.collect()).outputMode(mode).trigger(availableNow=True)
    writer.option("checkpointLocation", str(root / "checkpoint" / name)).start().awaitTermination()
spark.stop()
"""

#: A harness that makes the driver wait for ever before commits/2 of each query.
HARNESS = """
import sys, threading
from pathlib import Path
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.scenario.points import Point
def hold(query, batch, point, attempt):
    print("parked", query, flush=True)
    threading.Event().wait()
gate = CheckpointGate(
    Path(sys.argv[1]), Path(sys.argv[2]), wanted=lambda: [(2, Point.AFTER_SINK_COMMIT)], on_point=hold, on_failure=print
)
gate.start()
threading.Event().wait()
"""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Times: of the batch, and of the source's files.
_TIME = re.compile(r"(?<=imestamp)(Ms)?\\?\":\d+")


class Recorder:
    """Records the file events in a checkpoint's logs, in order, with the random parts of names replaced."""

    def __init__(self, root: Path) -> None:
        self.seen: dict[str, list[str]] = {}
        self._root = root
        self._inotify = INotify()
        self._folders: dict[int, Path] = {}
        self._over = threading.Event()
        root.mkdir()
        self._watch(root)
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _watch(self, folder: Path) -> None:
        mask = flags.CREATE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE | flags.ATTRIB | flags.ONLYDIR
        self._folders[self._inotify.add_watch(folder, mask)] = folder
        for child in folder.iterdir():
            if child.is_dir():
                self._watch(child)

    def _record(self) -> None:
        while not self._over.is_set() or select.select([self._inotify.fileno()], [], [], 0)[0]:
            for event in self._inotify.read(timeout=200):
                folder = self._folders[event.wd]
                if event.mask & flags.ISDIR:
                    if event.mask & flags.CREATE:
                        self._watch(folder / event.name)
                elif folder.name in ("offsets", "commits"):
                    name = _UUID.sub("UUID", event.name)
                    kinds = "+".join(flag.name or "" for flag in flags.from_mask(event.mask))
                    self.seen.setdefault(str(folder.relative_to(self._root)), []).append(f"{kinds} {name}")

    def stop(self) -> dict[str, list[str]]:
        """The events of batch 1 and later: a folder's first files may be created before it is watched."""
        self._over.set()
        self._thread.join(10)
        return {log: [s for s in seen if not re.search(r"\b0\b", s)] for log, seen in self.seen.items()}


def written(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Path -> mode, size and content, without ids and times. A .crc depends on both, so only its size is kept."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        name = _UUID.sub("UUID", str(path.relative_to(root)))
        content = b"" if path.is_dir() or name.endswith(".crc") else path.read_bytes()
        content = _UUID.sub("UUID", _TIME.sub("", content.decode("latin-1"))).encode("latin-1")
        size = 0 if path.is_dir() else status.st_size
        found[name] = (stat.filemode(status.st_mode), size, content)
    return found


def drive(root: Path, checkpoint: CheckpointFiles | None, log: Path) -> subprocess.Popen[bytes]:
    fetched = components.ensure(progress=False)
    scratch = root.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    env = job_environment(
        class_path=fetched.spark_jars,
        archive=fetched.spark_archive,
        scratch=scratch,
        passfile=None,
        failpoints=None,
        own={},
        secrets=[],
        checkpoint=checkpoint,
    )
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", JOB, str(root)], env=env, cwd=scratch, stdout=output, stderr=subprocess.STDOUT
        )


def prepare(root: Path) -> Recorder:
    """Create the input, with the same paths and file times for each run: the checkpoint contains both."""
    shutil.rmtree(root, ignore_errors=True)
    lines = root / "lines"
    lines.mkdir(parents=True)
    for n in range(3):
        path = lines / f"{n}.json"
        path.write_text("".join(f'{{"id": {i}, "at": "2013-01-01T10:{n:02}:00Z"}}\n' for i in range(5)))
        os.utime(path, (1_000_000 + n, 1_000_000 + n))
    return Recorder(root / "checkpoint")


def test_the_driver_writes_what_spark_writes_and_continues_when_the_harness_dies(tmp_path: Path) -> None:
    jar = components.ensure(progress=False).checkpoint_jar
    assert jar is not None
    root, log = tmp_path / "run", tmp_path / "log"
    recorder = prepare(root)
    assert drive(root, None, log).wait(120) == 0, log.read_text()
    sparks, spark_steps = written(root / "checkpoint"), recorder.stop()

    recorder = prepare(root)
    socket = tmp_path / "socket"
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(socket), str(root / "checkpoint")], stdout=subprocess.PIPE
    )
    try:
        wait_until("the socket", socket.exists, deadline_s=20)
        driver = drive(root, CheckpointFiles(jar, str(socket)), log)
        try:
            assert harness.stdout is not None and harness.stdout.readline() == b"parked plain\n"
            assert (root / "checkpoint/plain/offsets/2").exists() and driver.poll() is None
            assert [p.name for p in (root / "checkpoint/plain/commits").iterdir() if "2" in p.name] == []
            harness.kill()
            assert driver.wait(120) == 0, log.read_text()  # it waits at no point any more
        finally:
            driver.kill()
            driver.wait()
    finally:
        harness.kill()
        harness.wait()
    assert "onceproof: the connection to the harness has ended" in log.read_text()
    ours, our_steps = written(root / "checkpoint"), recorder.stop()

    assert list(ours) == list(sparks)
    assert {name: o for name, o in ours.items() if o != sparks[name]} == {}
    assert any(name.endswith(".delta") for name in ours), "the second query kept no state"
    assert our_steps == spark_steps
    steps = our_steps["plain/commits"]
    assert steps[0] == "CREATE .1.UUID.tmp" and "MOVED_TO 1" in steps and any(s.endswith(".crc") for s in steps), steps
