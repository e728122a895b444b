"""Which user is at the other end of a connection on loopback. Any user of the machine can connect to a port, and a run's files
are private: a log may hold secrets.
"""

from __future__ import annotations

import os
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: 127.0.0.1 as the kernel writes it, in the order of the machine's bytes, and the same for a socket of IPv6.
_LOOPBACK = ("0100007F", "7F000001", "0000000000000000FFFF00000100007F")

#: The kernel does not write a table all at once, so that a row may be missed.
_TRIES = 5


def is_foreign(client: tuple[str, int], server_port: int, tables: tuple[Path, ...] = _TABLES) -> bool:
    """Whether the connection of the ``client`` (address and port) may be another user's.

    False if the kernel shows no connections at all; root may read everything anyway. An address of the loopback network other
    than 127.0.0.1 is foreign: browsers do not use one.
    """
    address, port = client
    if address != "127.0.0.1":
        return True
    for _ in range(_TRIES):
        owner, shown = _owner(port, server_port, tables)
        if owner is not None or not shown:
            return owner is not None and owner not in (0, os.getuid())
    return True


def _owner(client_port: int, server_port: int, tables: tuple[Path, ...]) -> tuple[int | None, bool]:
    """The user of the client's end, None if no table has it; and whether a table could be read."""
    ends = (f":{client_port:04X}", f":{server_port:04X}")
    shown = False
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        shown = True
        for line in lines:
            parts = line.split()
            if len(parts) > 7 and all(_is_at(parts[1 + side], ends[side]) for side in (0, 1)):
                return int(parts[7]), True
    return None, shown


def _is_at(address: str, end: str) -> bool:
    return address.endswith(end) and address.removesuffix(end) in _LOOPBACK
