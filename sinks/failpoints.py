"""Named places in a sink at which a harness can hold or observe it. Without a harness every call returns at once.

``ONCEPROOF_FAILPOINTS`` names a Unix socket. Each call makes one connection and sends one JSON line; `reach` then waits
until the other side answers a line, or closes. Standard library only: this runs inside the user's job.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

SOCKET_VARIABLE = "ONCEPROOF_FAILPOINTS"

# A harness that holds a sink longer than any fault lasts has died without closing; the job must not hang for it.
_HELD_AT_MOST_S = 120.0


def reach(point: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
    """Say that ``sink`` has reached ``point`` of ``batch``, and wait until told to go on."""
    _say({"point": point, "sink": sink, "batch": batch, "query_id": query_id, "facts": facts})


def tell(event: str, *, sink: str, batch: int, query_id: str, **facts: Any) -> None:
    """Report something that happened (``committed``, ``skipped``, ``commit-failed``, ``attempt-failed``)."""
    _say({"event": event, "sink": sink, "batch": batch, "query_id": query_id, "facts": facts})


def _say(message: dict[str, Any]) -> None:
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_HELD_AT_MOST_S)
            connection.connect(path)
            connection.sendall(json.dumps(message).encode() + b"\n")
            connection.makefile("rb").readline()
    except OSError:
        # The harness is gone or never was: the job goes on as if nobody watched.
        return
