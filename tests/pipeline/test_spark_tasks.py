"""Finding the process that holds a connection, and stopping its tree, on processes with Spark's command lines."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.pipeline.spark_tasks import Role, Tree, holds, sender
from onceproof.stack.processes import procfs

#: Starts nested processes with the argument lists in its last argument, outermost first; the innermost one connects. Each
#: process gets this program's text as SOURCE.
NEST = """
import ast, os, socket, subprocess, sys
port, rest = int(sys.argv[-2]), ast.literal_eval(sys.argv[-1])
if rest and rest[0] == ["fork"]:
    if os.fork():
        os.wait()
        sys.exit()
    rest = rest[1:]
if not rest:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(str(os.getpid()).encode() + b"\\n")
    connection.recv(1)
else:
    subprocess.run([sys.executable, "-c", SOURCE, *rest[0], str(port), repr(rest[1:])])
"""
PROGRAM = f"SOURCE = {NEST!r}\nSOURCE = 'SOURCE = ' + repr(SOURCE) + chr(10) + SOURCE\n" + NEST
EXECUTOR = ["org.apache.spark.executor.CoarseGrainedExecutorBackend", "--executor-id", "7"]
SUBMIT = ["org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
DAEMON = ["-m", "pyspark.daemon", "pyspark.worker"]
WORKER = ["-m", "pyspark.worker"]


@contextmanager
def connected(*nested: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], int, str, str]]:
    """Nested processes: the outermost, the pid of the innermost, and the addresses that it is connected from and to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        argv = [sys.executable, "-c", PROGRAM, str(port), repr(list(nested))]
        outer = subprocess.Popen(argv)
        try:
            connection, (host, client) = server.accept()
            with connection:
                pid = int(connection.makefile().readline())
                yield outer, pid, f"{host}:{client}", f"{host}:{port}"
        finally:
            if outer.poll() is None:
                for process in [*psutil.Process(outer.pid).children(recursive=True), outer]:
                    with suppress(psutil.NoSuchProcess):  # the innermost ends by itself when its connection ends
                        process.kill()
            outer.wait()


@pytest.mark.parametrize(
    ("nested", "role", "executor"),
    [
        ((EXECUTOR,), "executor", "7"),
        ((EXECUTOR, DAEMON, ["fork"]), "python-worker", "7"),
        ((EXECUTOR, WORKER), "python-worker", "7"),  # spark.python.use.daemon=false
        ((SUBMIT,), "driver-jvm", None),
        ((SUBMIT, DAEMON, ["fork"]), "python-worker", None),
        ((["job.py"],), "driver", None),
    ],
)
def test_the_process_that_holds_a_connection_is_found_with_its_role(
    nested: tuple[list[str], ...], role: Role, executor: str | None
) -> None:
    with connected(*nested) as (outer, pid, client, to):
        family = [outer.pid, *(p.pid for p in psutil.Process(outer.pid).children(recursive=True))]
        found = sender(client, family, to)
        assert found is not None
        assert (found.pid, found.role, found.executor) == (pid, role, executor)
        if role == "python-worker":
            jvm = psutil.Process(found.jvm).cmdline()
            assert (EXECUTOR if executor else SUBMIT)[0] in jvm and found.jvm != pid
        assert holds(found, client, to)
        assert sender(client, [os.getpid()], to) is None, "this process does not hold the connection"
        elsewhere = "127.0.0.1:1"
        assert sender(client, family, elsewhere) is None, "the same local port, connected to another service"
        assert not holds(found, client, elsewhere)


def test_a_dead_process_holds_no_connection() -> None:
    with connected(EXECUTOR) as (_outer, pid, client, to):
        found = sender(client, [pid], to)
        assert found is not None
        Tree.freeze(pid).kill()
        assert not holds(found, client, to)


def test_killing_an_executors_tree_kills_its_descendants_and_nothing_else() -> None:
    with connected(EXECUTOR, DAEMON, ["fork"]) as (outer, pid, client, to):
        found = sender(client, [pid], to)
        assert found is not None
        tree = Tree.freeze(found.jvm)
        below = {p.pid for p in psutil.Process(outer.pid).children(recursive=True)}
        assert pid in below and {stat.pid for stat in tree.stats} == below
        assert all(stopped(one) for one in tree.alive())
        assert not stopped(outer.pid)
        tree.kill()
        assert tree.alive() == [] and outer.wait(10) is not None


def test_a_thawed_tree_runs_again() -> None:
    with connected(EXECUTOR) as (_outer, pid, *_):
        tree = Tree.freeze(pid)
        assert stopped(pid) and tree.awake() == []
        tree.thaw()
        wait_until("it to run again", lambda: not stopped(pid), deadline_s=10)
        assert tree.alive() == tree.awake() == [pid]


def test_a_tree_that_could_not_be_stopped_entirely_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: object, **_more: object) -> None:
        wait_until("it to be stopped", lambda: stopped(pid), deadline_s=10)
        raise WaitTimeout("gave up")

    with connected(EXECUTOR) as (_outer, pid, *_):
        monkeypatch.setattr("onceproof.pipeline.spark_tasks.wait_until", never)
        with pytest.raises(WaitTimeout):
            Tree.freeze(pid)
        wait_until("it to run again", lambda: not stopped(pid), deadline_s=10)


def stopped(pid: int) -> bool:
    stat = procfs.stat(pid)
    return stat is not None and stat.state == "T"
