"""Converts histories of Jepsen's Kafka workload to stored runs.

A Jepsen history is a list of completed operations of processes, each of which has a producer and a consumer. `docs/jepsen.md`
describes the mapping and what has no counterpart. One history gives two runs:

- `readers`: the input is the log, as far as sends and polls show it; the outputs are what consumers read;
- `writers`: the input is what producers sent, in their order; the output is the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

At = tuple[int, Any]
"""Offset and value."""


@dataclass(frozen=True)
class Op:
    """One operation: ``process`` did ``f``, which ended as ``type`` (ok, fail or info: unknown)."""

    process: int
    type: str
    f: str
    value: Any
    """send, poll, txn: a list of ``("send", key, offset or None, value)`` and ``("poll", {key: [(offset, value), ...]})``;
    subscribe, assign: the keys."""

    def sends(self) -> Iterator[tuple[str, int | None, str]]:
        for act in self.value if self.f in ("send", "poll", "txn") else ():
            if act[0] == "send":
                yield act[1], act[2], str(act[3])

    def polls(self) -> Iterator[tuple[str, int, str]]:
        for act in self.value if self.f in ("send", "poll", "txn") else ():
            if act[0] == "poll":
                for key, records in act[1].items():
                    for offset, value in records:
                        yield key, offset, str(value)


@dataclass(frozen=True)
class Sent:
    """One value that some operation sent."""

    process: int
    op: int
    key: str
    value: str
    offsets: tuple[int, ...]
    """All its known offsets, by the producer's answer or a consumer's poll."""
    acked: int | None
    outcome: str
    """committed, aborted or unknown. An operation that may have crashed was committed if any of its values was read."""


class Workload:
    """The logs and the consumers' sessions of a history."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = list(ops)
        keys = {key for op in ops for key, *_ in [*op.sends(), *op.polls()]}
        self.partitions = {key: number for number, key in enumerate(sorted(keys))}
        self.sent = list(self._sent())

    def _sent(self) -> Iterator[Sent]:
        polled = {(key, value) for op in self.ops for key, _, value in op.polls()}
        for index, op in enumerate(self.ops):
            seen = any((key, value) in polled for key, _, value in op.sends())
            outcome = {"ok": "committed", "fail": "aborted"}.get(op.type, "committed" if seen else "unknown")
            for key, acked, value in op.sends():
                shown = {o for other in self.ops for k, o, v in other.polls() if (k, v) == (key, value)}
                offsets = tuple(sorted(shown | ({acked} - {None})))
                yield Sent(op.process, index, key, value, offsets, acked, outcome)

    def log(self) -> dict[tuple[str, int], Sent]:
        """(key, offset) -> the value there. Of several values at one offset, the one that a consumer read, or the last."""
        polled = {(key, offset): value for op in self.ops for key, offset, value in op.polls()}
        log: dict[tuple[str, int], Sent] = {}
        for sent in self.sent:
            for offset in sent.offsets:
                there = sent.key, offset
                if sent.outcome != "unknown" and polled.get(there, sent.value) == sent.value:
                    log[there] = sent
        return dict(sorted(log.items()))

    def sessions(self) -> list[dict[str, int]]:
        """For each operation, the session of its process that each key is in. Assigning a key again starts a new session."""
        current: dict[int, dict[str, int]] = {}
        found = []
        for op in self.ops:
            mine = current.setdefault(op.process, dict.fromkeys(self.partitions, 0))
            if op.f in ("subscribe", "assign"):
                mine |= {key: mine[key] + 1 for key in mine if key not in op.value}
            found.append(dict(mine))
        return found


def readers(run: Any, ops: Sequence[Op], output: str) -> None:
    """The log as input, and one output. ``seen``: what any consumer read; ``sessions``, ``polls``: what each one read,
    in its order.

    Within a session (or within one operation), a consumer reads a log without gaps, so the oracle expects of each
    all committed records from its first to its last position. ``seen`` covers the log up to the highest offset that was
    polled: that is recorded progress, and the records after it are the tail.
    """
    work = Workload(ops)
    log = work.log()
    for (key, offset), sent in log.items():
        _log_record(run, work, key, offset, sent)
    _ledger(run, work)
    spec: dict[str, Any] = {"topic": output, "identity": ["s", "v"]}
    if output == "seen":
        spec |= {"identity": ["k", "v"], "kind": "upsert"}
        query = _seen_by_any(run, work)
    else:
        query = _consumed(run, work, output)
    run.scenario["outputs"] = {output: spec}
    run.scenario["oracle"] = {"kind": "sql", "queries": {output: query}}
    ends = {work.partitions[key]: 0 for key in work.partitions}
    for op in ops:
        for key, offset, _ in op.polls():
            ends[work.partitions[key]] = max(ends[work.partitions[key]], offset + 1)
    run.progress(ends)
    run.document |= {"drained": False, "drain_note": "the workload is over", "stuck": True}


# By position: a view has only the columns that occur in committed values, and there may be none.
_LOG = """(SELECT decode(_value)->>'k' AS k, decode(_value)->>'v' AS v, _partition, _offset FROM "in")"""


def _seen_by_any(run: Any, work: Workload) -> str:
    for index, op in enumerate(work.ops):
        for key, _, value in op.polls():
            if op.type == "ok":
                _output(run, "seen", work.partitions[key], {"k": key, "v": value}, f"{key}/{value}", index)
    return f"SELECT k, v, any_value(_partition) AS _partition, min(_offset) AS _offset FROM {_LOG} GROUP BY k, v"


def _consumed(run: Any, work: Workload, output: str) -> str:
    """Write what each scope read, one partition per scope and key; return the oracle's query for it.

    The scope is a session of a process, or an operation.

    The polls of a failed operation were rolled back, and so was its consumer's position; a crashed operation counts as
    failed. But its first poll shows the position that its consumer had committed.
    """
    sessions = work.sessions()
    lanes: dict[tuple[str, str], int] = {}
    stretches: list[tuple[str, str, int, int]] = []
    position: dict[tuple[str, str], int] = {}
    shown = [(index, op, *record) for index, op in enumerate(work.ops) for record in op.polls()]
    last_op: dict[tuple[str, str], int] = {}
    for index, op, key, offset, value in shown:
        scope = f"{op.process}/{sessions[index][key]}" if output == "sessions" else f"op {index}"
        here = scope, key
        lane = lanes.setdefault(here, len(lanes))
        done = op.type == "ok"
        before = position.get(here)
        if done or last_op.get(here) != index:  # the first of an operation that was rolled back
            lo = offset if before is None or before >= offset else before
            stretches.append((scope, key, lo, offset if done else offset - 1))
        last_op[here] = index
        if done:
            position[here] = offset
        row = {"s": scope, "k": key, "v": value}
        _output(run, output, lane, row, scope, index, "committed" if done else "aborted")
    ranges = ", ".join(f"('{s}', '{k}', {lo}, {hi})" for s, k, lo, hi in stretches) or "(NULL, NULL, 0, 0)"
    return f"""SELECT DISTINCT w.s, i.k, i.v, i._partition, i._offset, w.s || '/' || i.k AS _key
               FROM {_LOG} i JOIN (VALUES {ranges}) w(s, k, lo, hi) ON w.k = i.k AND i._offset BETWEEN w.lo AND w.hi"""


def writers(run: Any, ops: Sequence[Op]) -> None:
    """What producers sent as input, one partition each; the log as output. Only values whose place is known."""
    work = Workload(ops)
    sessions = work.sessions()
    offsets: dict[int, int] = {}
    for sent in work.sent:
        if sent.outcome == "unknown" or not sent.offsets:
            continue
        offset = offsets[sent.process] = offsets.get(sent.process, -1) + 1
        row = {"topic": "in", "partition": sent.process, "offset": offset, "timestamp_ms": _at(sent.op)}
        scope = f"{sent.process}/{sessions[sent.op][sent.key]}/{sent.key}"
        value = json.dumps({"k": sent.key, "v": sent.value}).encode()
        run.add("input", {**row, "key": scope.encode(), "value": value, "visibility": sent.outcome})
    for (key, offset), sent in work.log().items():
        where = {"partition": work.partitions[key], "offset": offset, "timestamp_ms": _at(sent.op)}
        content = json.dumps({"k": key, "v": sent.value})
        run.add("output", {"output": "log", "op": "insert", **where, "content": content, "visibility": sent.outcome})
    run.scenario["outputs"] = {"log": {"topic": "log", "identity": ["k", "v"]}}
    query = 'SELECT k, v, _partition, _offset, _key FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"log": query}}
    run.scenario["claim"] = {"order": "per-key"}
    run.progress({process: offset + 1 for process, offset in offsets.items()})


def _at(op: int) -> int:
    """The wall clock in ms at which an operation ended. It read what it polled half a second before."""
    return 1_000_000 + 1_000 * op


def _log_record(run: Any, work: Workload, key: str, offset: int, sent: Sent) -> None:
    """The end of its transaction is unknown, except that it was not before its own operation polled the value. Any other
    transaction counts as being as old as the log: a history lists operations by the time of their answers."""
    own = (key, sent.value) in {(k, v) for k, _, v in work.ops[sent.op].polls()}
    row = {"topic": "in", "partition": work.partitions[key], "offset": offset, "key": key.encode()}
    ended = _at(sent.op if own else -1)
    value = json.dumps({"k": key, "v": sent.value}).encode()
    txn = {
        "producer_id": sent.process,
        "producer_epoch": sent.op,
        "txn_end_offset": offset + 1_000,
        "txn_end_ms": ended,
    }
    run.add("input", {**row, "value": value, "timestamp_ms": ended - 500, "visibility": sent.outcome, **txn})


def _ledger(run: Any, work: Workload) -> None:
    for seq, sent in enumerate(s for s in work.sent if s.outcome == "committed" and s.acked is not None):
        where = {"partition": work.partitions[sent.key], "offset": sent.acked}
        run.add("sent", {"topic": "in", "seq": seq, "status": "acked", **where})


def _output(
    run: Any, output: str, lane: int, row: dict[str, str], key: str, op: int, visibility: str = "committed"
) -> None:
    run.record(output, row, partition=lane, visibility=visibility)
    run.tables["output"][-1].update(key=key.encode(), timestamp_ms=_at(op) - 500)


def send(key: str, value: Any, offset: int | None = None) -> tuple[str, str, int | None, Any]:
    return "send", key, offset, value


def poll(**records: list[At]) -> tuple[str, dict[str, list[At]]]:
    return "poll", records
