"""Which user is at the other end of a connection on loopback. Any user of the machine can connect to a port, and a run's files
are private: a log may hold secrets.
"""

from __future__ import annotations

import os
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
#: 127.0.0.1 as the kernel writes it, in the order of the machine's bytes, and the same for a socket of IPv6.
_LOOPBACK = ("0100007F", "7F000001", "0000000000000000FFFF00000100007F")


def is_foreign(client_port: int, server_port: int, tables: tuple[Path, ...] = _TABLES) -> bool:
    """Whether the connection is another user's. False if the kernel does not say; root may read everything anyway."""
    owner = _owner(client_port, server_port, tables)
    return owner is not None and owner not in (0, os.getuid())


def _owner(client_port: int, server_port: int, tables: tuple[Path, ...]) -> int | None:
    ends = (f":{client_port:04X}", f":{server_port:04X}")
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            parts = line.split()
            if len(parts) > 7 and all(_is_at(parts[1 + side], ends[side]) for side in (0, 1)):
                return int(parts[7])
    return None


def _is_at(address: str, end: str) -> bool:
    return address.endswith(end) and address.removesuffix(end) in _LOOPBACK
