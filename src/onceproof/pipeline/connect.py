"""A program (``python -m``): runs a Spark Connect server and a job that is its client (``pipeline.connect``), as a cluster would.

The server is the driver: it plans the batches, writes the checkpoint and runs ``foreachBatch``. A client that is killed is started
again, and its query continues meanwhile. A client does not notice that its server has died (measured: it was still connecting
after 60 s), so it is ended with its server; then this program ends, and the supervisor starts it again.

Arguments: the server's settings as ``--conf NAME=VALUE``, then ``--`` and the client's command. The client finds the server's address
in ``SPARK_REMOTE``, which PySpark reads by itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from onceproof.base.waiting import wait_until
from onceproof.pipeline.tiers import spark_home
from onceproof.stack.processes import procfs

ROLE = "ONCEPROOF_CONNECT"
"""The variable in the environment of both and of their children that says to which of the two a process belongs."""
CLIENT = "client"
SERVER = "server"

_LISTENS_S = 60.0
"""A Connect server listens after 4 s on an idle machine."""
_ENDS_S = 5.0


def main(words: Sequence[str]) -> int:
    """Runs both until one has ended for good. Returns the exit code: the client's, or that of a server that ended first."""
    settings, command = _arguments(words)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    signal.signal(signal.SIGTERM, _end)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        server = _start(SERVER, _server_command({**settings, "spark.connect.grpc.binding.port": str(port)}))
        processes.append(server)
        wait_until("the Connect server to listen", lambda: _listens(server, port), deadline_s=_LISTENS_S)
        while server.poll() is None:
            client = _start(CLIENT, command, SPARK_REMOTE=f"sc://127.0.0.1:{port}")
            processes.append(client)
            wait_until(
                "the server or its client to end",
                lambda: any(process.poll() is not None for process in processes),
                deadline_s=float("inf"),
            )
            if client.poll() not in (None, -signal.SIGKILL):
                return client.returncode
            if server.poll() is None:
                processes.remove(client)
                sys.stderr.write("the client was killed: it is started again, the Connect server runs on\n")
        sys.stderr.write(f"the Connect server ended with exit code {server.returncode}\n")
        return 1  # also for one that was killed: it is not this program that got the signal
    finally:
        _stop(processes)


def processes(of: Iterable[int], role: str) -> list[procfs.Stat]:
    """Those of these live processes that have the role, the oldest first."""
    pids = set(of)
    return sorted((one for one in procfs.marked(ROLE, role) if one.pid in pids), key=lambda one: one.start_ticks)


def kill(pids: Callable[[], Iterable[int]], role: str) -> None:
    """SIGKILL the processes of that role until none is left. Raises `WaitTimeout`."""

    def gone() -> bool:
        left = processes(pids(), role)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        return not left

    wait_until(f"the Connect {role} to be gone after SIGKILL", gone, deadline_s=_ENDS_S, every_s=0.01)


def _arguments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    parser = argparse.ArgumentParser(prog="onceproof.pipeline.connect")
    parser.add_argument("--conf", action="append", default=[], help="a setting of the server, NAME=VALUE")
    parser.add_argument("command", nargs="+", help="the client's command")
    args = parser.parse_args(words)
    return dict(setting.split("=", 1) for setting in args.conf), args.command


def _server_command(settings: dict[str, str]) -> list[str]:
    own = {"spark.connect.grpc.binding.address": "127.0.0.1", **settings}
    return [
        str(spark_home.pyspark() / spark_home.SUBMIT),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(word for name, value in own.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]


def _start(role: str, command: list[str], **env: str) -> subprocess.Popen[bytes]:
    """Start a process whose environment says its role, by which a fault finds it and its children."""
    return subprocess.Popen(command, env={**os.environ, ROLE: role, **env})


def _listens(server: subprocess.Popen[bytes], port: int) -> bool:
    if server.poll() is not None:
        raise SystemExit(f"the Connect server ended with exit code {server.returncode} before it listened")
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in reversed(processes):  # the client first: it may still stop its query
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_S)
        process.kill()


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
