"""How often the session starts a query, and what it leaves behind between two starts. What a start does is a function here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.scenario.points import Point
from onceproof.warm import session
from onceproof.warm.attempts import Attempts
from onceproof.warm.gate import SessionGate
from onceproof.warm.session import Session

Start = Callable[[Attempts], str | None]


class Scripted(Session):
    """A session whose starts of the query are these functions, the last one again and again."""

    def __init__(self, gate: SessionGate, *starts: Start) -> None:
        super().__init__(None, gate, "job.py:build")  # type: ignore[arg-type]
        self._starts = starts

    def _start(self, attempts: Attempts, args: dict[str, Any], deadline: float) -> str | None:
        return self._starts[min(attempts.start, len(self._starts) - 1)](attempts)


class Connection:
    """Only what the session does with a connection."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[SessionGate]:
    served = SessionGate(tmp_path / "gate", range(4))
    served.start()
    yield served
    served.close()


def request(tmp_path: Path, **other: Any) -> dict[str, Any]:
    strikes = [{"batch": 1, "point": "after-sink-commit", "attempt": 1}]
    known = {"id": "s1", "checkpoint": str(tmp_path / "q"), "args": {}, "strikes": strikes, "restarts": 6}
    return {**known, "deadline_s": 60.0, **other}


def struck(attempts: Attempts) -> None:
    attempts.begins(1)
    assert attempts.reached(1, Point.AFTER_SINK_COMMIT)


def fails(attempts: Attempts) -> str:
    return "the table is locked"


def ends(attempts: Attempts) -> None:
    return


def test_a_job_that_fails_again_and_again_after_a_fault_is_given_up_as_in_an_ordinary_run(
    gate: SessionGate, tmp_path: Path
) -> None:
    answer = Scripted(gate, struck, fails).execute(request(tmp_path))
    assert answer["gave_up"] and not answer["ended"]
    assert (len(answer["errors"]), answer["last_start"]) == (7, 7)
    fewer = Scripted(gate, struck, fails).execute(request(tmp_path, restarts=2))
    assert len(fewer["errors"]) == 3


def test_a_job_that_fails_before_any_fault_or_ends_after_all_is_not_given_up(gate: SessionGate, tmp_path: Path) -> None:
    before = Scripted(gate, fails).execute(request(tmp_path))
    assert not before["gave_up"] and len(before["errors"]) == 1
    after = Scripted(gate, struck, fails, fails, ends).execute(request(tmp_path))
    assert after["ended"] and not after["gave_up"] and len(after["errors"]) == 2


def test_a_job_that_was_too_slow_is_not_given_up(gate: SessionGate, tmp_path: Path) -> None:
    def slow(attempts: Attempts) -> str:
        deadline = time.monotonic() + 0.02
        wait_until("the deadline to pass", lambda: time.monotonic() > deadline, deadline_s=10, every_s=0.01)
        return "it did not end in time"

    answer = Scripted(gate, struck, slow).execute(request(tmp_path, deadline_s=0.01))
    assert not answer["gave_up"] and len(answer["errors"]) == 1


def test_failures_after_a_committed_batch_are_counted_from_zero(gate: SessionGate, tmp_path: Path) -> None:
    def commits_and_fails(attempts: Attempts) -> str:
        attempts.reached(attempts.start, Point.AFTER_COMMIT_LOG)
        return "it failed in the next batch"

    starts = [commits_and_fails if number % 3 == 0 else fails for number in range(1, 12)]
    answer = Scripted(gate, struck, *starts, ends).execute(request(tmp_path, restarts=2))
    assert answer["ended"] and len(answer["errors"]) == 11


def test_no_start_inherits_the_connections_of_one_that_failed_by_itself(gate: SessionGate, tmp_path: Path) -> None:
    opened: list[Connection] = []

    def opens_and_fails(attempts: Attempts) -> str:
        opened.append(Connection())
        attempts.connections.add(opened[-1])
        return "the replay raises"

    def ends_alone(attempts: Attempts) -> None:
        assert [connection.closed for connection in opened] == [True]

    assert Scripted(gate, struck, opens_and_fails, ends_alone).execute(request(tmp_path))["ended"]


def test_a_report_that_comes_late_is_waited_for(gate: SessionGate, tmp_path: Path) -> None:
    def commits(attempts: Attempts) -> None:
        for log in ("offsets", "commits"):
            (attempts.checkpoint / log).mkdir(parents=True)
            (attempts.checkpoint / log / "6").write_text("v1")
        attempts.reached(6, Point.AFTER_OFFSET_LOG)
        late.append(attempts)
        on_disk.set()

    late: list[Attempts] = []
    on_disk = threading.Event()

    def report() -> None:
        assert on_disk.wait(10)
        late[0].reached(6, Point.AFTER_COMMIT_LOG)

    timer = threading.Timer(0.2, report)
    timer.start()
    answer = Scripted(gate, commits).execute(request(tmp_path, strikes=[]))
    timer.join()
    assert [batch for _, point, batch, _ in answer["events"] if point == Point.AFTER_COMMIT_LOG] == [6]


def test_a_log_write_without_a_report_fails_only_its_own_schedule(
    gate: SessionGate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commits(attempts: Attempts) -> None:
        (attempts.checkpoint / "commits").mkdir(parents=True)
        (attempts.checkpoint / "commits" / "6").write_text("v1")

    monkeypatch.setattr(session, "_REPORTED_S", 0.1)
    with pytest.raises(WaitTimeout, match="no report of commits/6"):
        Scripted(gate, commits).execute(request(tmp_path, strikes=[]))
    gate.add(Attempts(tmp_path / "q", []))  # the gate serves it no longer
