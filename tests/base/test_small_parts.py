"""Small parts that every other module uses: waiting, the registry, the timeline, the run directory."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from socketserver import StreamRequestHandler

import pytest

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.line_server import LineServer
from onceproof.base.paths import temporary
from onceproof.base.registry import Registry, suggest
from onceproof.base.timeline import Event, Timeline
from onceproof.base.waiting import wait_until
from onceproof.history.run_directory import RunDir


def test_a_wait_returns_the_probes_first_truthy_value() -> None:
    answers = iter([None, "", "here"])
    assert wait_until("an answer", lambda: next(answers), deadline_s=5, every_s=0.001) == "here"


def test_the_time_out_error_has_the_reason_and_the_last_state() -> None:
    with pytest.raises(WaitTimeout, match=r"waiting for the moon; last seen: clouds"):
        wait_until("the moon", lambda: None, deadline_s=0.05, every_s=0.01, explain=lambda: "clouds")


def test_a_wait_that_was_delayed_past_its_deadline_looks_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, happened = [100.0], False
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def probe() -> str | None:
        nonlocal happened
        found, happened = "here" if happened else None, True  # it happens after this probe has looked
        clock[0] += 10.0  # and then this thread is delayed
        return found

    assert wait_until("an answer", probe, deadline_s=5, every_s=0.0) == "here"


def test_a_wait_gives_up_after_a_probe_that_began_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, began = [100.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def probe() -> None:
        began.append(clock[0])
        clock[0] += 4.0

    with pytest.raises(WaitTimeout, match=r"gave up after 12\.0 s"):
        wait_until("an answer", probe, deadline_s=5, every_s=0.0)
    assert began == [100.0, 104.0, 108.0]


def test_a_wait_can_be_abandoned() -> None:
    def abandon() -> None:
        raise EnvironmentProblem("the service died")

    with pytest.raises(EnvironmentProblem, match="the service died"):
        wait_until("an answer", lambda: None, deadline_s=60, abandon=abandon)


def test_a_part_of_a_registry_has_its_own_namespace() -> None:
    registry: Registry[str] = Registry("thing", "onceproof.oracle", "nobody.registers.here", part="plain")
    registry.register("one")("of plain")
    registry.of("fancy").register("one")("of fancy")
    assert registry.of("plain") is registry and registry.get("one") == "of plain"
    assert registry.of("fancy").get("one") == "of fancy" and registry.of("fancy").names() == ["one"]
    with pytest.raises(KeyError, match="unknown thing of fancy 'two'"):
        registry.of("fancy").get("two")


def test_a_name_can_be_registered_once_and_an_unknown_name_gets_a_suggestion() -> None:
    registry: Registry[type] = Registry("thing", "onceproof.oracle", "nobody.registers.here")
    registry.register("crash")(int)
    with pytest.raises(ValueError, match="two things are named 'crash'"):
        registry.register("crash")(str)
    with pytest.raises(KeyError, match="did you mean 'crash'"):
        registry.get("crahs")


def test_a_name_can_have_an_item_for_each_of_its_variants() -> None:
    registry: Registry[type] = Registry("thing", "onceproof.oracle", "nobody.registers.here")
    registry.register("crash", "driver")(int)
    registry.register("crash", "broker")(str)
    registry.register("crash", "broker", "in-tasks")(float)
    registry.register("crash", "controller")(str)
    registry.register("fence")(bool)
    assert registry.get("crash", "broker", "in-tasks") is float
    assert registry.get("crash", "broker", "after-offset-log") is str, "the most specific one that there is"
    assert registry.get("fence", "driver") is bool
    assert registry.find("crash") is None and registry.find("crash", "driverr") is None
    with pytest.raises(KeyError, match="unknown thing 'crash driverr'; did you mean 'crash driver'"):
        registry.get("crash", "driverr")
    with pytest.raises(ValueError, match="two things are named 'crash driver'"):
        registry.register("crash", "driver")(bool)
    assert registry.names() == ["crash", "fence"]
    assert list(registry.items()) == [("crash", str), ("crash", float), ("crash", int), ("fence", bool)]


@pytest.mark.parametrize(
    ("value", "known", "expected"),
    [
        ("x", [], "none is known"),
        ("zzz", ["a", "b"], "known: a, b"),
        ("partitoin", ["partition"], "'partition'"),
        ("dup", ["lost-write", "duplicate"], "did you mean 'duplicate'?"),
        ("zqx", [f"scenario-{n}" for n in range(99)] + ["jazz"], "nearest: 'jazz' and 'scenario-"),
    ],
)
def test_suggestions(value: str, known: list[str], expected: str) -> None:
    assert expected in suggest(value, known)


def test_the_timeline_records_every_event_of_every_thread_in_order(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "events.jsonl")
    heard: list[Event] = []
    timeline.listen(heard.append)
    threads = [
        threading.Thread(target=lambda n=n: [timeline.emit("tick", thread=n) for _ in range(50)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(lines) == len(heard) == 200
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)


def test_latest_links_to_the_last_run_directory_and_run_json_accumulates_updates(tmp_path: Path) -> None:
    first = RunDir.create(tmp_path, "demo")
    second = RunDir.create(tmp_path, "demo")
    assert first.path != second.path and (tmp_path / "latest").resolve() == second.path.resolve()
    second.update(seed=1)
    second.update(drained=True)
    assert json.loads((second.path / "run.json").read_text()) == {"interrupted": False, "seed": 1, "drained": True}


def test_the_error_for_a_run_directory_that_cannot_be_created_has_its_path_and_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"file.*\n.*--runs DIR"):
        RunDir.create(tmp_path / "file", "demo")


def test_a_socket_with_too_long_a_path_is_an_environment_problem(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot be made: .*\n.*TMPDIR"):
        LineServer(tmp_path / ("x" * 120), "made-for-a-test", lambda _handler: None)


def test_a_socket_is_closed_at_once_and_its_connections_stay_open(tmp_path: Path) -> None:
    """At once: `serve_forever` itself looks only every half second whether it is to end, and each run closes three sockets."""

    def echo(handler: StreamRequestHandler) -> None:
        for line in handler.rfile:
            handler.wfile.write(line)

    def answers(client: socket.socket, line: bytes) -> bool:
        client.sendall(line)
        return client.recv(100) == line

    seconds = 0.0
    for number in range(8):
        server = LineServer(tmp_path / str(number), "made-for-a-test", echo)
        server.start()
        with socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as late:
            client.connect(server.address)
            assert answers(client, b"before\n")
            began = time.monotonic()
            server.close()
            seconds += time.monotonic() - began
            assert answers(client, b"after\n")
            with pytest.raises(FileNotFoundError):
                late.connect(server.address)
        server.close()
    assert seconds < 1.0


@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_a_temporary_folder_that_cannot_be_used_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / kind))
    with pytest.raises(EnvironmentProblem, match=f"TMPDIR is '{tmp_path / kind}', which is not a folder"):
        temporary()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary().is_dir()


def test_no_temporary_folder_at_all_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_usable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", none_usable)
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files"):
        temporary()
