"""The checkpoint gate, over its socket: the tests send what a driver's JVM sends."""

from __future__ import annotations

import threading
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from onceproof.base.waiting import wait_until
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.instruments.checkpoint_mirror import CheckpointMirror
from onceproof.scenario.points import Point

from .gate import Driver, Serve, Struck


def test_a_driver_learns_where_to_wait_and_waits_until_the_strike_is_over(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT), (3, Point.BEFORE_OFFSET_LOG), (4, Point.BEFORE_SINK_COMMIT))
    driver = Driver(gate)
    assert driver.rules == {"park commits 2 create", "park offsets 3 create", "park _spark_metadata 4 create"}
    struck.go.clear()
    driver.send(f"7 create {gate.path.parent}/a%20checkpoint/q/commits/2")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    driver.open(gate.path.parent / "a%20checkpoint", "other")  # the gate goes on reading what other queries report
    struck.go.set()
    assert driver.answer() == "go 7"
    assert struck.points == [("q", 2, Point.AFTER_SINK_COMMIT)]


def test_a_query_is_served_from_its_first_message_and_its_position_is_known(serve: Serve) -> None:
    gate = serve()
    driver = Driver(gate)
    root = gate.path.parent / "a%20checkpoint"
    assert not gate.serves("deep/q")
    driver.open(root, "deep/q")
    assert gate.serves("deep/q") and not gate.serves("other")
    for line in (f"0 create {root}/deep/q/offsets/12", f"0 rename {root}/deep/q/offsets/12"):
        driver.send(line)
    driver.open(root, "again")
    driver.die()
    # The next start of the job will use the checkpoint file system too: the watcher must not place faults in between.
    assert gate.serves("deep/q")


def test_a_driver_does_not_wait_in_a_checkpoint_outside_the_run(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_COMMIT_LOG))
    driver = Driver(gate)
    driver.send("3 renamed /elsewhere/q/commits/1")
    assert driver.answer() == "go 3"
    driver.send("4 open /elsewhere/q/commits")
    assert driver.answer() == "go 4"
    assert struck.points == [] and not gate.serves("q")


def test_all_but_the_first_state_file_of_a_batch_wait_until_the_fault_has_struck(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.STATE_PARTLY_COMMITTED))
    driver = Driver(gate)
    assert driver.rules == {"park state 2 rename", "park state 2 renamed"}  # batch N writes version N+1
    state = f"{gate.path.parent}/a%20checkpoint/q/state/0"
    driver.send(f"4 rename {state}/0/2.changelog")
    assert driver.answer() == "go 4"
    driver.send(f"5 rename {state}/1/2.changelog")
    struck.go.clear()
    driver.send(f"6 renamed {state}/0/2.changelog")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    driver.open(gate.path.parent / "a%20checkpoint", "other")  # this gets an answer; message 5 does not yet
    struck.go.set()
    assert {driver.answer(), driver.answer()} == {"go 5", "go 6"}
    assert struck.points == [("q", 1, Point.STATE_PARTLY_COMMITTED)]


def test_executors_wait_for_each_others_state_files_and_write_none_after_their_driver_was_killed(
    serve: Serve, struck: Struck
) -> None:
    gate = serve((1, Point.STATE_PARTLY_COMMITTED))
    root = gate.path.parent / "a%20checkpoint"
    driver = Driver(gate)
    driver.open(root, "q")
    executors = [Driver(gate, driver.application) for _ in range(3)]
    executors[0].send(f"4 rename {root}/q/state/0/0/2.changelog")
    assert executors[0].answer() == "go 4"
    executors[1].send(f"4 rename {root}/q/state/0/1/2.changelog")
    executors[2].send(f"4 rename {root}/q/state/0/2/2.changelog")
    struck.go.clear()
    executors[0].send(f"5 renamed {root}/q/state/0/0/2.changelog")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    driver.die()
    struck.go.set()
    assert [executor.answer() for executor in executors] == ["go 5", "fail 4", "fail 4"]
    assert struck.points == [("q", 1, Point.STATE_PARTLY_COMMITTED)] and struck.attempts == [1]


def test_executors_go_on_after_a_strike_that_left_their_driver_alive(serve: Serve) -> None:
    gate = serve((1, Point.STATE_PARTLY_COMMITTED))
    root = gate.path.parent / "a%20checkpoint"
    driver = Driver(gate)
    driver.open(root, "q")
    first, second = (Driver(gate, driver.application) for _ in range(2))
    first.send(f"4 rename {root}/q/state/0/0/2.changelog")
    assert first.answer() == "go 4"
    second.send(f"4 rename {root}/q/state/0/1/2.changelog")
    first.send(f"5 renamed {root}/q/state/0/0/2.changelog")
    assert first.answer() == "go 5" and second.answer() == "go 4"


def test_a_port_serves_only_those_who_know_the_secret(serve: Serve, struck: Struck) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT), host="127.0.0.1")
    assert gate.secret is not None and gate.address.startswith("127.0.0.1:") and not gate.path.exists()
    for wrong in (None, "x", gate.secret + "x", gate.secret[:-1]):
        with pytest.raises(ConnectionRefusedError):
            Driver(gate, secret=wrong)
    driver = Driver(gate, secret=gate.secret)
    assert driver.rules == {"park commits 2 create"}
    driver.send(f"7 create {gate.path.parent}/a%20checkpoint/q/commits/2")
    assert driver.answer() == "go 7" and struck.points == [("q", 2, Point.AFTER_SINK_COMMIT)]
    gate.close()
    with pytest.raises(OSError, match="refused"):
        Driver(gate, secret=gate.secret)


def log(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).touch()


def test_an_attempt_begins_when_its_plan_is_written_or_an_uncommitted_plan_is_opened(
    serve: Serve, struck: Struck, tmp_path: Path
) -> None:
    gate = serve((2, Point.AFTER_SINK_COMMIT))
    root, quoted = tmp_path / "a checkpoint", f"{tmp_path}/a%20checkpoint"
    assert gate.attempt("q", 2) is None
    first = Driver(gate)
    first.open(Path(quoted), "q")
    first.send(f"0 create {quoted}/q/offsets/2")
    first.send(f"5 create {quoted}/q/commits/2")
    assert first.answer() == "go 5" and struck.attempts == [1] and gate.attempt("q", 2) == 1
    first.die()
    log(root, "q/offsets/1")
    log(root, "q/commits/1")
    log(root, "q/offsets/2")
    second = Driver(gate)
    second.open(Path(quoted), "q")
    second.send(f"2 open {quoted}/q/commits")  # the same start: its attempt has begun already
    assert second.answer() == "go 2"
    second.send(f"5 create {quoted}/q/commits/2")
    assert second.answer() == "go 5" and struck.attempts == [1, 2]
    log(root, "q/commits/2")
    second.die()
    Driver(gate).open(Path(quoted), "q")  # no batch is uncommitted any more
    assert gate.attempt("q", 2) == 2 and gate.attempt("q", 3) is None


def test_a_plan_that_is_written_again_is_another_attempt(serve: Serve, struck: Struck, tmp_path: Path) -> None:
    gate = serve((1, Point.BEFORE_OFFSET_LOG))
    for attempt in (1, 2):
        driver = Driver(gate)
        driver.open(tmp_path / "a checkpoint", "q")
        driver.send(f"3 create {tmp_path}/a%20checkpoint/q/offsets/1")
        assert driver.answer() == "go 3" and struck.attempts[-1] == attempt
        driver.die()


def test_a_replay_waits_when_its_log_is_opened(serve: Serve, struck: Struck, tmp_path: Path) -> None:
    """Spark does not write the plan again, so the replay begins when it opens the log."""
    log(tmp_path / "a checkpoint", "q/offsets/7")
    gate = serve((7, Point.AFTER_OFFSET_LOG))
    driver = Driver(gate)
    struck.go.clear()
    driver.send(f"1 open {tmp_path}/a%20checkpoint/q/offsets")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    driver.send(f"2 open {tmp_path}/a%20checkpoint/other/offsets")
    assert driver.answer() == "go 2"
    struck.go.set()
    assert driver.answer() == "go 1"
    assert struck.points == [("q", 7, Point.AFTER_OFFSET_LOG)]


def test_the_state_files_of_a_replay_wait_for_their_own_strike(serve: Serve, struck: Struck, tmp_path: Path) -> None:
    gate = serve((1, Point.STATE_PARTLY_COMMITTED))
    quoted = f"{tmp_path}/a%20checkpoint"
    log(tmp_path / "a checkpoint", "q/offsets/1")
    for attempt in (1, 2):
        driver = Driver(gate)
        driver.open(Path(quoted), "q")
        driver.send(f"4 rename {quoted}/q/state/0/0/2.changelog")
        assert driver.answer() == "go 4"
        driver.send(f"5 rename {quoted}/q/state/0/1/2.changelog")
        struck.go.clear()
        driver.send(f"6 renamed {quoted}/q/state/0/0/2.changelog")
        wait_until("the strike", lambda n=attempt: len(struck.points) == n, deadline_s=5)
        driver.open(Path(quoted), "other")  # this gets an answer; message 5 does not yet
        struck.go.set()
        assert {driver.answer(), driver.answer()} == {"go 5", "go 6"}
        driver.die()


def test_the_watcher_and_the_strike_wait_for_each_other(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_COMMIT_LOG))
    driver = Driver(gate)
    root = gate.path.parent / "a%20checkpoint"
    driver.open(root, "q")
    struck_before = []

    def watcher() -> None:
        gate.wait_for_strike("q", 1, Point.AFTER_COMMIT_LOG)
        struck_before.append(list(struck.points))

    driver.send(f"9 renamed {root}/q/commits/1")
    thread = threading.Thread(target=watcher)
    thread.start()
    assert driver.answer() == "go 9"
    thread.join(5)
    assert struck_before == [[("q", 1, Point.AFTER_COMMIT_LOG)]]  # the watcher continued after the strike
    gate.wait_for_strike("q", 2, Point.AFTER_COMMIT_LOG)  # no fault strikes there: no wait


def test_the_watcher_does_not_wait_for_a_driver_that_has_died(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_COMMIT_LOG))
    driver = Driver(gate)
    driver.open(gate.path.parent / "a%20checkpoint", "q")
    thread = threading.Thread(target=gate.wait_for_strike, args=("q", 1, Point.AFTER_COMMIT_LOG))
    thread.start()
    driver.die()
    thread.join(4)  # shorter than the time limit for a report that never comes
    assert not thread.is_alive() and struck.points == []


def test_while_a_driver_is_held_the_watcher_does_not_wait(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_OFFSET_LOG))
    driver, root = Driver(gate), gate.path.parent / "a%20checkpoint"
    driver.open(root, "q")
    struck.held = threading.Event()
    driver.send(f"6 renamed {root}/q/offsets/1")
    gate.wait_for_strike("q", 1, Point.AFTER_OFFSET_LOG)
    assert struck.points == [("q", 1, Point.AFTER_OFFSET_LOG)]
    driver.open(root, "other")  # answered before message 6, although it was sent later
    struck.held.set()
    assert driver.answer() == "go 6"


def test_closing_releases_drivers_that_are_held(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_SINK_COMMIT))
    driver, gone = Driver(gate), Driver(gate)
    struck.held = threading.Event()
    for one in (driver, gone):
        one.send(f"5 create {gate.path.parent}/a%20checkpoint/q/commits/1")
    wait_until("the strikes", lambda: len(struck.points) == 2, deadline_s=5)
    gone.die()
    gate.close()
    assert driver.answer() in ("go 5", "")
    held = [t for t in threading.enumerate() if t.name == "parked-q-1"]
    for thread in held:
        thread.join(5)
    assert not any(t.is_alive() for t in held), "a thread waits for an event that nothing sets"


def test_the_gate_survives_a_driver_that_dies_while_it_waits(serve: Serve, struck: Struck) -> None:
    gate = serve((1, Point.AFTER_SINK_COMMIT))
    driver = Driver(gate)
    struck.go.clear()
    driver.send(f"5 create {gate.path.parent}/a%20checkpoint/q/commits/1")
    wait_until("the strike", lambda: struck.points, deadline_s=5)
    driver._socket.sendall(b"0 create /half a li")
    driver.die()
    struck.go.set()
    assert Driver(gate).rules == {"park commits 1 create"}


def test_a_query_with_another_trigger_or_mode_is_reported(serve: Serve, struck: Struck) -> None:
    gate = serve()
    driver = Driver(gate)
    root = gate.path.parent / "a%20checkpoint"
    for line in ("trigger-15000", "mode-async"):
        driver.send(f"0 {line} {root}/q/offsets")
        driver.send(f"0 {line} {gate.path.parent}/elsewhere/offsets")
    driver.open(root, "q")
    assert struck.queries == [("q", "trigger", "15000"), ("q", "mode", "async")]


def test_a_full_disk_is_full_for_every_driver_until_it_has_room(serve: Serve) -> None:
    gate = serve()
    first = Driver(gate)
    gate.fill_disk(True)
    assert first.answer() == "disk full"
    later = Driver(gate)
    assert later.rules == {"disk full"}
    gate.fill_disk(False)
    assert first.answer() == later.answer() == "disk free"
    assert Driver(gate).rules == set()


def test_closing_ends_the_connections_of_all_drivers(serve: Serve) -> None:
    gate = serve()
    driver = Driver(gate)
    gate.close()
    assert driver.answer() == ""  # the end of the connection: the driver then continues by itself
    assert not gate.path.exists()


def test_closing_a_gate_that_never_served_does_not_hang(tmp_path: Path) -> None:
    gate = CheckpointGate(tmp_path / "s", tmp_path, wanted=list, on_point=lambda *_: None, on_failure=print)
    closing = threading.Thread(target=gate.close, daemon=True)
    closing.start()
    closing.join(5)
    assert not closing.is_alive() and not gate.path.exists()
    gate.start()  # does nothing: the gate is closed
    gate.close()


def test_a_root_with_dots_matches_the_paths_that_drivers_send(
    tmp_path: Path, struck: Struck, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    gate = CheckpointGate(
        tmp_path / "s", Path("../runs"), wanted=list, on_point=struck, on_failure=struck.failures.append
    )
    gate.start()
    try:
        Driver(gate).open(tmp_path / "here" / ".." / "runs", "q")
        assert gate.serves("q")
    finally:
        gate.close()


def test_a_file_sinks_driver_waits_before_the_log_entry_that_lists_the_files(
    serve: Serve, struck: Struck, tmp_path: Path
) -> None:
    """The log is in the output's folder, so the gate takes the query that is at this batch."""
    root = tmp_path / "a checkpoint"
    driver = Driver(serve((9, Point.BEFORE_SINK_COMMIT)))
    assert driver.rules == {"park _spark_metadata 9 create"}
    driver.open(root, "flights")
    driver.send(f"0 create {root}/flights/offsets/9")
    driver.send("2 create /elsewhere/departures/_spark_metadata/9.compact")
    assert driver.answer() == "go 2"
    driver.send("0 renamed /elsewhere/departures/_spark_metadata/9.compact")
    assert struck.points == [("flights", 9, Point.BEFORE_SINK_COMMIT)]
    driver.die()


def test_with_two_queries_at_the_same_batch_a_file_sinks_write_is_not_attributed(
    serve: Serve, struck: Struck, tmp_path: Path
) -> None:
    root = tmp_path / "a checkpoint"
    driver = Driver(serve((1, Point.BEFORE_SINK_COMMIT)))
    for query in ("flights", "weather"):
        driver.open(root, query)
        driver.send(f"0 create {root}/{query}/offsets/1")
    driver.send("2 create /elsewhere/departures/_spark_metadata/1")
    assert driver.answer() == "go 2"
    assert struck.points == []
    driver.die()


def test_a_message_that_cannot_be_parsed_is_reported_as_a_failure(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    gate = CheckpointGate(tmp_path / "s", tmp_path, wanted=list, on_point=lambda *_: None, on_failure=failures.append)
    gate.start()
    try:
        Driver(gate).send("gibberish")
        wait_until("the failure", lambda: failures, deadline_s=5)
    finally:
        gate.close()
    assert "gibberish" in str(failures[0])


def test_a_checkpoint_in_an_object_store_is_read_before_a_report_is_acted_on(tmp_path: Path, struck: Struck) -> None:
    store, copy = MemoryStore(), tmp_path / "copy"
    mirror = CheckpointMirror(store, "runs/7", "s3a://bucket/runs/7", copy, on_failure=struck.failures.append)
    gate = CheckpointGate(
        tmp_path / "socket",
        copy,
        wanted=lambda: [(2, Point.AFTER_SINK_COMMIT), (2, Point.AFTER_OFFSET_LOG)],
        on_point=struck,
        on_failure=struck.failures.append,
        mirror=mirror,
    )
    gate.start()
    try:
        driver = Driver(gate)
        driver.open(Path("/not/of/this/run"), "q")
        driver.send("1 open s3a://another/runs/7/q/offsets")
        assert driver.answer() == "go 1"
        driver.send("2 open s3a://bucket/runs/7/q/offsets")
        assert driver.answer() == "go 2"
        assert gate.serves("q")
        driver.send("3 create s3a://bucket/runs/7/q/commits/2")
        assert driver.answer() == "go 3"
        obstore.put(store, "runs/7/q/offsets/2", b"v1")
        driver.die()
        successor = Driver(gate)
        successor.send("1 open s3a://bucket/runs/7/q/offsets")  # a replay: planned and not committed in the store
        assert successor.answer() == "go 1"
        assert struck.points == [("q", 2, Point.AFTER_SINK_COMMIT), ("q", 2, Point.AFTER_OFFSET_LOG)]
        assert (copy / "q" / "offsets" / "2").read_bytes() == b"v1"
        assert struck.failures == []
    finally:
        gate.close()
