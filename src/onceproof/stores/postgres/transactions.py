"""Reads the outcome of a transaction past every proxy: its client cannot know it once the connection is broken."""

from __future__ import annotations

from typing import Literal

import psycopg

from onceproof.stack.api import Postgres

Status = Literal["committed", "aborted", "in progress"]

ASK_S = 10.0
"""Faults never affect the harness's own listeners; if an answer takes longer, the service is gone."""


def postgres_status(postgres: Postgres, xid: str) -> Status:
    """The status of transaction ``xid`` (a 64-bit id, as ``pg_current_xact_id()`` prints it)."""
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(ASK_S), autocommit=True) as connection:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", (xid,)).fetchone()
    status = row[0] if row else None
    if status not in ("committed", "aborted", "in progress"):
        raise ValueError(f"Postgres no longer knows the status of transaction {xid}")
    return status  # type: ignore[no-any-return]  # narrowed above; psycopg's row is untyped


def postgres_xid(postgres: Postgres, backend_pid: int) -> str | None:
    """The 64-bit id of a backend's current transaction; None if it has written nothing."""
    with psycopg.connect(postgres.harness_conninfo, connect_timeout=int(ASK_S), autocommit=True) as connection:
        row = connection.execute(_XID_SQL, (backend_pid,)).fetchone()
    return None if row is None or row[0] is None else str(row[0])


#: pg_stat_activity shows the lower half of the id; the upper half is taken from the newest transaction.
_XID_SQL = """
SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint >> 32 << 32) | backend_xid::text::bigint
FROM pg_stat_activity WHERE pid = %s
"""
