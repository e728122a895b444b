"""The checkpoint with which a schedule begins, and its gate: a write that ends in an error leaves the state of a crash there."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.base.errors import HistoryError
from onceproof.instruments.checkpoint_places import uncommitted
from onceproof.scenario.points import Point
from onceproof.warm import checkpoint
from onceproof.warm.attempts import Attempts, Strike
from onceproof.warm.gate import SessionGate

_PLAN = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n'


def write(folder: Path, log: str, batch: int, end: int = 0) -> None:
    (folder / log).mkdir(parents=True, exist_ok=True)
    text = f'{_PLAN}{{"flights":{{"0":{end}}}}}' if log == "offsets" else 'v1\n{"nextBatchWatermarkMs":0}'
    (folder / log / str(batch)).write_text(text)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """The checkpoint of a query that has run on an empty topic."""
    folder = tmp_path / "template"
    write(folder, "offsets", 0)
    write(folder, "commits", 0)
    (folder / "offsets" / ".0.crc").write_text("")
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text('\0v1\n{"flights":{"0":0}}')
    (folder / "metadata").write_text('{"id":"one","name":"x"}')
    (folder / ".metadata.crc").write_text("checksum of the old metadata")
    return folder


def test_a_schedule_begins_with_the_plan_of_batch_0_as_another_query(template: Path, tmp_path: Path) -> None:
    assert checkpoint.is_template(template) is None
    first, second = tmp_path / "a" / "q", tmp_path / "b" / "q"
    for made in (first, second):
        checkpoint.begin_from(template, made)
        assert uncommitted(made) == 0  # so that the sink is called with batch 0, as in any run
        assert not (made / "commits").exists() and not (made / ".metadata.crc").exists()
    ids = {json.loads((made / "metadata").read_text())["id"] for made in (first, second)}
    assert len(ids) == 2 and "one" not in ids
    assert json.loads((first / "metadata").read_text())["name"] == "x"


def test_a_query_that_began_with_input_is_no_template(template: Path) -> None:
    write(template, "offsets", 0, end=5)
    assert "has input" in (checkpoint.is_template(template) or "")


def test_batches_have_the_start_that_wrote_each_log(tmp_path: Path) -> None:
    for batch, end in ((0, 0), (1, 30)):
        write(tmp_path, "offsets", batch, end)
        write(tmp_path, "commits", batch)
    events = [
        (100.5, Point.AFTER_OFFSET_LOG, 0, 0),
        (101.0, Point.AFTER_COMMIT_LOG, 0, 0),
        (102.0, Point.BEFORE_OFFSET_LOG, 1, 0),  # the crash is here: the next start plans it again
        (103.0, Point.BEFORE_OFFSET_LOG, 1, 1),
        (103.5, Point.AFTER_OFFSET_LOG, 1, 1),
        (104.0, Point.AFTER_OFFSET_LOG, 1, 2),  # a replay
        (105.0, Point.AFTER_COMMIT_LOG, 1, 2),
    ]
    stored = [(at, str(point), batch, start) for at, point, batch, start in events]
    first, second = checkpoint.batch_rows(tmp_path, "q", stored, 100.0)
    assert (first["end_offset"], second["start_offset"], second["end_offset"]) == (0, 0, 30)
    assert (second["planned_at"], second["planned_by"]) == (3.5, 1)
    assert (second["committed_at"], second["committed_by"]) == (5.0, 2)
    assert [row["end_offset"] for row in checkpoint.progress_rows(tmp_path, "q")] == [30]


def test_a_log_write_that_the_session_did_not_see_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "offsets", 0)
    write(tmp_path, "offsets", 1, 30)
    with pytest.raises(HistoryError, match="past the session's checkpoint file system"):
        list(checkpoint.batch_rows(tmp_path, "q", [(1.0, str(Point.AFTER_OFFSET_LOG), 0, 0)], 0.0))


def test_faults_strike_in_their_order_and_nothing_follows_in_a_start_that_was_struck(tmp_path: Path) -> None:
    strikes = [Strike(1, Point.AFTER_SINK_COMMIT), Strike(1, Point.AFTER_OFFSET_LOG, 2)]
    attempts = Attempts(tmp_path, strikes)
    attempts.begins(1)
    assert not attempts.reached(1, Point.AFTER_OFFSET_LOG)  # the second fault is for the second attempt
    assert attempts.reached(1, Point.AFTER_SINK_COMMIT)
    assert attempts.is_dead(0) and attempts.reached(
        1, Point.AFTER_COMMIT_LOG
    )  # a sink that swallows the end gets no further
    attempts.begin_start(1)
    assert attempts.is_dead(0) and not attempts.is_dead(1)
    attempts.begins(1)
    assert attempts.reached(1, Point.AFTER_OFFSET_LOG)
    assert len(attempts.fired) == 2


class Driver:
    """The JVM's side of the gate's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._socket.sendall(b"hello 1 none\n")
        self.rules = []
        while (line := self._lines.readline().strip()) != "go":
            self.rules.append(line)

    def ask(self, number: int, moment: str, path: Path) -> str:
        self._socket.sendall(f"{number} {moment} {path}\n".encode())
        return self._lines.readline().strip()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[SessionGate]:
    served = SessionGate(tmp_path / "gate", range(3))
    served.start()
    yield served
    served.close()


def test_only_the_struck_schedule_s_write_ends_in_an_error(gate: SessionGate, tmp_path: Path) -> None:
    struck = Attempts(tmp_path / "a", [Strike(1, Point.AFTER_SINK_COMMIT)])
    other = Attempts(tmp_path / "b", [])
    gate.add(struck)
    gate.add(other)
    driver = Driver(gate.path)
    assert "park commits 1 create" in driver.rules and "park offsets 2 renamed" in driver.rules
    assert driver.ask(1, "create", tmp_path / "a/offsets/1") == "go 1"
    assert driver.ask(2, "create", tmp_path / "b/commits/1") == "go 2"
    assert driver.ask(3, "create", tmp_path / "a/commits/1") == "fail 3"
    assert driver.ask(4, "create", tmp_path / "elsewhere/commits/1") == "go 4"
    driver.close()
    assert [point for _, point, _, _ in other.events] == [Point.AFTER_SINK_COMMIT]


def test_a_replay_begins_when_the_query_opens_its_log(gate: SessionGate, tmp_path: Path) -> None:
    write(tmp_path / "a", "offsets", 1, 30)
    attempts = Attempts(tmp_path / "a", [Strike(1, Point.AFTER_OFFSET_LOG, 2)])
    attempts.begins(1)
    gate.add(attempts)
    driver = Driver(gate.path)
    assert driver.ask(1, "open", tmp_path / "a/commits") == "go 1"
    assert driver.ask(2, "open", tmp_path / "a/offsets") == "fail 2"
    driver.close()
