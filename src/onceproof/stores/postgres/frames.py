"""Requests to Postgres: statements and COMMITs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from onceproof.base.masking import masked
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import POSTGRES_KINDS, WRITES, Hit, writes_to
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Proxy, Stack, Stream
from onceproof.stores.frames import NOTHING_APPLIED, Following, Found, FrameSpec, SeenFrame, Service, Sink, nth_write
from onceproof.stores.postgres.transactions import postgres_status, postgres_xid

_ANSWER_S = 20.0
_WRITES = re.compile(WRITES, re.IGNORECASE)
#: The verb and the table of a statement that writes.
_INTO = re.compile(rf'{WRITES}\s+(?:into\s+|from\s+)?(?:only\s+)?((?:"[^"]*"|[\w.$])+)', re.IGNORECASE)
_MAX_STATEMENTS = 8


class PostgresFrames:
    """Implements `onceproof.stores.frames.StoreFrames`."""

    service: Service = "postgres"
    commit = "commit"
    applying = POSTGRES_KINDS
    kinds = " or ".join(POSTGRES_KINDS)
    keys = ("sql", "transaction")
    in_task: Mapping[str, str] = {"kind": "statement", "sql": WRITES}
    distinctions = "transaction (a table's name) or sql"
    following = Following(
        "statement",
        True,
        "deliver_before is missing: the statement, of which query, before which the late request arrives",
        "for example deliver_before: {kind: statement, sql: my_table}",
    )
    proof = ", and the transaction's status in Postgres"
    #: Toxiproxy closes the connection at the first byte of that direction, so the sink need not time out.
    cuts: tuple[str, Mapping[str, int]] = ("limit_data", {"bytes": 0})
    spans_outputs = False

    def missing(self, scenario: Scenario) -> Complaint | None:
        if scenario.stack.postgres is not None:
            return None
        return Complaint(("target",), "this stack has no Postgres", "add `postgres: {}` to the stack")

    def has(self, kind: str) -> bool:
        return kind in POSTGRES_KINDS

    def usual(self, kind: str | None) -> Mapping[str, Any]:
        return {"transaction": WRITES} if kind in (None, self.commit) else {}

    def identifies_query(self, spec: FrameSpec) -> bool:
        return any(pattern not in (None, WRITES) for pattern in (spec.transaction, spec.sql))

    def unmatchable(self, asked: Mapping[str, Any], kind: str, scenario: Scenario, loc: str) -> Iterator[Complaint]:
        yield from ()

    def proxies(self, stack: Stack) -> list[Proxy]:
        return [] if stack.postgres is None else [stack.postgres.proxy]

    def recorded(self, frame: Frame) -> dict[str, Any] | None:
        facts = frame.facts
        texts = facts.get("transaction", ()) if frame.kind == "commit" else (facts.get("sql") or "",)
        writes = [text for text in texts if _WRITES.search(text)]
        return {"writes": writes[:_MAX_STATEMENTS]} if writes else None

    def similarity(self, recorded: Mapping[str, Any]) -> str:
        """Verbs and tables."""
        into = {f"{verb} {table}".lower() for text in recorded["writes"] for verb, table in _INTO.findall(text)}
        return f"{sorted(into) or recorded['writes']}"

    def sink_of(self, scenario: Scenario, name: str, frames: list[SeenFrame], *, several: bool) -> Found | str:
        place = scenario.outputs[name].place
        table = place.rpartition(".")[2].strip('"')
        # The verb too: Spark's JDBC writer first reads the table, in a transaction of its own that ends in a COMMIT.
        pattern = writes_to(table)
        named = [
            one for one in frames if any(re.search(pattern, t, re.IGNORECASE) for t in one.event.data.get("writes", ()))
        ]
        commits = [one for one in frames if one.event.data["frame"] == "commit"]
        statements = [one for one in named if one.event.data["frame"] == "statement"]
        write = {"kind": "statement", "sql": pattern, "nth": nth_write(statements)} if statements else None
        of_table = [one for one in named if one.event.data["frame"] == "commit"]
        sink = Sink("postgres", "", {"transaction": pattern}, f"COMMIT of {table}", place, write=write)
        if of_table:
            return sink, of_table
        if commits:  # it writes through another table or a function
            return replace(sink, frame={}, words="COMMIT"), commits
        alone = Counter(one.event.data["frame"] for one in frames)["statement"]
        if alone:
            return f"{alone} statements that write and no COMMIT were seen in its batches: each commits by itself"
        return "no COMMIT of a transaction that wrote was seen in any batch with data"

    def describe(self, frame: Frame) -> str:
        return f"{masked(frame.facts['sql'].strip())[:80]!r} of backend {frame.facts['backend_pid']}"

    def describe_answer(self, facts: Mapping[str, Any]) -> str:
        return ", ".join(facts.get("tags") or [f"error {facts.get('sqlstate')}"])

    def written_by(self, frame: Frame, outputs: list[OutputSpec], stack: Stack) -> list[OutputSpec]:
        """A transaction that names none of the tables writes through something else, possibly to any of them."""
        text = "\n".join((*frame.facts.get("transaction", ()), frame.facts["sql"]))
        tables = {one.place: re.escape(one.place.rpartition(".")[2]) for one in outputs}
        own = [one for one in outputs if re.search(rf"\b{tables[one.place]}\b", text, re.IGNORECASE)]
        return own or outputs

    def same_client(self, late: Hit, frame: Frame) -> bool:
        """A client that was cut off must reconnect; connections made before that belong to other clients."""
        return late.cut_at is not None and frame.connected_at > late.cut_at

    def transaction(self, stack: Stack, frame: Frame) -> str | None:
        pid = frame.facts.get("backend_pid")
        if pid is None:
            return None
        assert stack.postgres is not None, "it sent the frame"
        return postgres_xid(stack.postgres, pid)

    def outcome(self, stack: Stack, transaction: str) -> str:
        postgres = stack.postgres
        assert postgres is not None, "it has the transaction"

        def ended() -> str | None:
            status = postgres_status(postgres, transaction)
            return None if status == "in progress" else status

        return wait_until(f"transaction {transaction} to be committed or aborted", ended, deadline_s=_ANSWER_S)

    def why_not_applied(self, frame: Frame, answer: Answer, transaction: str | None) -> str | None:
        if answer.facts.get("sqlstate"):
            return NOTHING_APPLIED
        if frame.kind == "commit" and "COMMIT" not in answer.facts["tags"]:
            return "Postgres did not commit (it rolls back a failed transaction at its COMMIT): nothing was applied"
        if transaction is None:
            return (
                "the transaction had no id when its frame was stopped: it had written nothing by then, "
                "and Postgres cannot be asked for its outcome"
            )
        return None

    def unknown_after_loss(self, frame: Frame, transaction: str | None) -> tuple[bool, str] | None:
        if transaction is not None:
            return None
        if frame.kind == "commit":
            return False, "the transaction had no id: it had written nothing, so nothing was lost"
        return True, "its transaction had no id yet, so Postgres could not be asked for its outcome"

    def parked(self, stack: Stack, facts: Mapping[str, Any]) -> ParkedTransaction:
        return ParkedTransaction(self, stack, str(facts["xid"]))


class ParkedTransaction:
    """Implements `onceproof.stores.frames.ParkedCommit`."""

    def __init__(self, frames: PostgresFrames, stack: Stack, xid: str) -> None:
        self._frames = frames
        self._stack = stack
        self._xid = xid

    def applied(self, stream: Stream) -> tuple[bool, str]:
        wanted = "committed" if stream == "downstream" else "aborted"
        status = self._frames.outcome(self._stack, self._xid)
        return status == wanted, f"pg_xact_status of transaction {self._xid}: {status}"

    def ended(self) -> bool:
        """False: `applied` has asked Postgres, which knows."""
        return False
