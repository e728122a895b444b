"""The TCP connections of another process, by what the kernel lists of its own network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from onceproof.stack.processes.connections import Connection, connections, peers


@pytest.mark.parametrize(
    ("family", "host", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),  # as a JVM connects
    ],
)
def test_both_ends_are_read_whichever_family_they_have(family: socket.AddressFamily, host: str, shown: str) -> None:
    listens_on = "127.0.0.1" if shown == "127.0.0.1" else host
    with socket.create_server((listens_on, 0), family=family if listens_on == host else socket.AF_INET) as server:
        port = server.getsockname()[1]
        with socket.socket(family) as client:
            client.connect((host, port))
            here, there = (shown, client.getsockname()[1]), (shown, port)
            found = connections(os.getpid())
            assert Connection(here, there, established=True) in found
            assert there in peers(os.getpid(), established=True)
            assert (shown, 0) not in {one.there for one in found}, "a listener has no other end"


def test_a_process_that_is_gone_has_none() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert connections(gone.pid) == [] and peers(gone.pid) == set()
