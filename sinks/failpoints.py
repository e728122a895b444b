"""Named points in a sink at which a harness can pause or observe it. Without a harness every call returns at once.

``ONCEPROOF_FAILPOINTS`` names a Unix socket. Each call opens one connection, sends one JSON line, and waits until the
other side answers a line or closes the connection. Only the standard library is used, because this runs inside the
user's job.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

SOCKET_VARIABLE = "ONCEPROOF_FAILPOINTS"

# No fault lasts longer. After this time the harness has died without closing the connection, and the job must not hang.
_LONGEST_PAUSE_S = 120.0


def socket_path() -> str | None:
    """The harness's socket, for tasks: executors do not have the driver's environment."""
    return os.environ.get(SOCKET_VARIABLE)


def join(path: str | None) -> None:
    """In a task: reach points at the harness of the driver, whose `socket_path` is ``path``."""
    if path is not None:
        os.environ.setdefault(SOCKET_VARIABLE, path)


def reach(point: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
    """Report that ``sink`` has reached ``point`` of ``batch``, and wait until the harness lets it continue."""
    _send({"point": point, "sink": sink, "batch": batch, "query_id": query_id, "facts": facts})


def report(event: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
    """Report an event of the sink (``committed``, ``skipped``, ``commit-failed``, ``attempt-failed``)."""
    _send({"event": event, "sink": sink, "batch": batch, "query_id": query_id, "facts": facts})


def _send(message: dict[str, Any]) -> None:
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_LONGEST_PAUSE_S)
            connection.connect(path)
            connection.sendall(json.dumps(message).encode() + b"\n")
            connection.makefile("rb").readline()
    except OSError:
        # There is no harness (any more): the job continues without it.
        return
