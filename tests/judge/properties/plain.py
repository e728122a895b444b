"""A simple judge in plain Python, without SQL: `test_brute_force.py` compares the real judge with it.

It reads the rows of a stored run and reports which effects of which output show which anomaly. It is not optimized: every
question is asked again for every effect. It leaves out transient findings and attribution.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from onceproof.judge.synthetic.world import MODELS, Identity, identity

Content = tuple[tuple[str, str], ...]

#: The anomalies that it judges.
ANOMALIES = {
    "lost-write",
    "stale-tail",
    "duplicate",
    "wrong-value",
    "unexplained",
    "aborted-read",
    "misplaced",
    "reordered",
    "precommitted-read",
    "sink-disagreement",
    "hanging-transaction",
    "input-lost",
}


@dataclass(frozen=True)
class Due:
    """An expected effect."""

    id: Identity
    content: Content
    cause: tuple[int, int]
    key: str


@dataclass(frozen=True)
class Seen:
    """An effect that a reader sees."""

    id: Identity
    content: Content
    lane: int
    pos: int
    key: str | None
    at_ms: int


@dataclass
class Tally:
    """One identity of one output."""

    wrong: int = 0
    extra: int = 0
    unexplained: int = 0
    lost: list[Due] = field(default_factory=list)
    foreign: list[Content] = field(default_factory=list)
    """Contents of visible effects that are not expected."""


class Plain:
    """Judges the rows of one run, made from a `World`."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.found: dict[tuple[str, str], Counter[Identity]] = {}
        self.outputs = list(run.scenario["outputs"])
        self.seen = {output: self._seen(output) for output in self.outputs}
        self.due = {output: self._due(output, with_uncommitted=False) for output in self.outputs}
        self.open = {output: self._open(output) for output in self.outputs}
        self.tallies = {output: self._compare(output) for output in self.outputs}
        self.dirty_reads = {output: self._dirty_reads(output) for output in self.outputs}
        self._misplaced()
        for output in self.outputs:
            self._single_effects(output)
            self._order_and_time(output)
        self._disagreement()
        self._logs()

    def add(self, anomaly: str, output: str, who: Identity, n: int = 1) -> None:
        if n > 0:
            self.found.setdefault((anomaly, output), Counter())[who] += n

    # Expected and visible effects.

    def _due(self, output: str, *, with_uncommitted: bool) -> list[Due]:
        model = MODELS[output]
        effects: list[Due] = []
        states: dict[str, tuple[int, int]] = {}
        for row in sorted(self.run.tables["input"], key=lambda r: (r["partition"], r["offset"])):
            value = json.loads(row["value"])
            if (row["visibility"] != "committed" and not with_uncommitted) or value["n"] <= 0:
                continue
            cause = row["partition"], row["offset"]
            if model.kind == "append":
                if model.parity in (None, row["offset"] % 2):
                    who = identity(p=cause[0], o=cause[1])
                    effects.append(Due(who, (*who, *identity(k=value["k"], n=value["n"])), cause, value["k"]))
                continue
            total, count = states.get(value["k"], (0, 0))
            states[value["k"]] = total + value["n"], count + 1
            content = identity(k=value["k"], total=total + value["n"], c=count + 1)
            effects.append(Due(content[:1], content, cause, value["k"]))
        last = {effect.id: effect for effect in effects}
        if model.kind == "upsert":
            return list(last.values())
        if (
            model.kind == "changelog" and not with_uncommitted
        ):  # a batch may leave states out, but not the last of an identity
            contents = {s.content for s in self.seen[output]}
            return [e for e in effects if e is last[e.id] or e.content in contents]
        return effects

    def _seen(self, output: str) -> list[Seen]:
        model = MODELS[output]
        rows = [r for r in self.run.tables["output"] if r["output"] == output and r["visibility"] == "committed"]
        if not model.table:
            effects = [_record(row, model.identity) for row in rows]
            if model.kind != "upsert":
                return effects
            return list({(effect.lane, effect.key): effect for effect in effects}.values())
        times = {c["commit_order"]: c["commit_time_us"] // 1000 for c in self.run.tables["commits"]}
        current: list[tuple[str, Any]] = []
        for row in rows:
            if row["before"] is not None and model.kind != "changelog":
                current.remove(next(s for s in current if s[0] == row["before"]))
            if row["content"] is not None:
                current.append((row["content"], row))
        return [
            _effect(content, model.identity, -1, row["commit_order"], None, times[row["commit_order"]])
            for content, row in current
        ]

    def _open(self, output: str) -> set[Content]:
        rows = [r for r in self.run.tables["output"] if r["output"] == output and r["visibility"] == "open"]
        return {_record(row, MODELS[output].identity).content for row in rows}

    # Anomalies of single effects.

    def _compare(self, output: str) -> dict[Identity, Tally]:
        tallies: dict[Identity, Tally] = {}
        for who in {e.id for e in [*self.due[output], *self.seen[output]]}:
            tally = tallies[who] = Tally()
            wanted = [e for e in self.due[output] if e.id == who]
            contents = [e.content for e in self.seen[output] if e.id == who]
            known = {e.content for e in wanted}
            tally.foreign = [content for content in contents if content not in known]
            if not wanted:
                tally.unexplained = len(contents)
                continue
            missing = sorted(wanted, key=lambda e: e.cause[1])
            for content in contents:
                for effect in [e for e in missing if e.content == content][:1]:
                    missing.remove(effect)
            unmatched = len(contents) - (len(wanted) - len(missing))
            tally.wrong = max(len(tally.foreign), min(len(missing), unmatched))
            tally.extra = unmatched - tally.wrong
            tally.lost = missing[min(len(missing), unmatched) :]
        return tallies

    def _dirty_reads(self, output: str) -> Counter[Identity]:
        """Effects that no committed input explains, and aborted input does."""
        clean = {(e.id, e.content) for e in self.due[output]}
        would = {(e.id, e.content) for e in self._due(output, with_uncommitted=True)} - clean
        found: Counter[Identity] = Counter()
        for who, tally in self.tallies[output].items():
            for content in tally.foreign:
                if (who, content) in would or (tally.unexplained and any(who == other for other, _ in would)):
                    found[who] += 1
        return found

    def _misplaced(self) -> None:
        """Find misplaced effects, and subtract them from the tallies."""
        strays = [
            (output, effect)
            for output in self.outputs
            for effect in self.seen[output]
            if self.tallies[output][effect.id].unexplained and effect.id not in self.dirty_reads[output]
        ]
        gone = [
            (output, effect)
            for output in self.outputs
            for tally in self.tallies[output].values()
            for effect in tally.lost
            if effect.content not in self.open[output]
        ]
        for output, effect in list(gone):
            for stray in [s for s in strays if s[0] != output and s[1].content == effect.content][:1]:
                self._move(output, effect, *stray)
                gone.remove((output, effect))
                strays.remove(stray)
        for output, effect in list(gone):
            same = [g for g in gone if g[0] == output and _rest(g[1]) == _rest(effect)]
            found = [s for s in strays if s[0] == output and _rest(s[1]) == _rest(effect)]
            if len(same) == len(found) == 1:
                self._move(output, effect, *found[0])
        for output in self.outputs:
            if not MODELS[output].table:
                self._in_other_partitions(output)

    def _move(self, output: str, effect: Due, where: str, stray: Seen) -> None:
        self.add("misplaced", output, effect.id)
        self.tallies[output][effect.id].lost.remove(effect)
        self.tallies[where][stray.id].unexplained -= 1

    def _in_other_partitions(self, output: str) -> None:
        if MODELS[output].kind == "append":  # the oracle gives the partition: that of its cause
            for effect in {e.id: e for e in self.due[output]}.values():
                lanes = [e.lane for e in self.seen[output] if e.id == effect.id]
                if lanes and effect.cause[0] not in lanes:
                    self.add("misplaced", output, effect.id)
            return
        rows = [r for r in self.run.tables["output"] if r["output"] == output and r["visibility"] == "committed"]
        records = Counter((row["key"].decode(), row["partition"]) for row in rows)
        for effect in self.seen[output]:
            of_key = {lane: n for (key, lane), n in records.items() if key == effect.key}
            home = min(of_key, key=lambda lane: (-of_key[lane], lane))
            tally = self.tallies[output][effect.id]
            upsert = MODELS[output].kind == "upsert"
            blamed = tally.unexplained or (not upsert and tally.extra + tally.wrong)
            if effect.lane == home or blamed:
                continue
            self.add("misplaced", output, effect.id)
            if upsert:  # a state in two places was counted as extra or as wrong
                if tally.extra:
                    tally.extra -= 1
                else:
                    tally.wrong = max(tally.wrong - 1, 0)

    def _single_effects(self, output: str) -> None:
        done = {p["partition"]: p["end_offset"] for p in self.run.tables["progress"]}
        for who, tally in self.tallies[output].items():
            dirty_reads = self.dirty_reads[output][who]
            self.add("aborted-read", output, who, dirty_reads)
            if tally.unexplained:
                self.add("unexplained", output, who, tally.unexplained - dirty_reads)
            else:
                tally.wrong = max(tally.wrong - dirty_reads, 0)
            self.add("wrong-value", output, who, tally.wrong)
            self.add("duplicate", output, who, tally.extra)
            for effect in tally.lost:
                covered = effect.cause[1] < done[effect.cause[0]] or self.run.document["drained"]
                if effect.content not in self.open[output]:
                    self.add("lost-write" if covered else "stale-tail", output, who)

    # Anomalies between effects.

    def _order_and_time(self, output: str) -> None:
        """Compare the first effects of the causes. A state belongs to a cause only if the cause produced it."""
        states = MODELS[output].kind != "append"
        due = {(e.id, e.content if states else ()): e for e in self.due[output]}
        ended = {(r["partition"], r["offset"]): r for r in self.run.tables["input"] if r["visibility"] == "committed"}
        firsts: dict[Due, Seen] = {}
        for effect in sorted(self.seen[output], key=lambda e: (e.pos, e.lane)):
            cause = due.get((effect.id, effect.content if states else ()))
            if cause is None:
                continue
            firsts.setdefault(cause, effect)
            if (ended[cause.cause]["txn_end_ms"] or 0) > effect.at_ms:
                self.add("precommitted-read", output, effect.id)
        if MODELS[output].kind == "upsert":
            return
        whole = self.run.scenario["claim"]["order"] == "per-partition"
        for cause, effect in firsts.items():
            for other, before in firsts.items():
                scope = other.cause[0] == cause.cause[0] if whole else other.key == cause.key
                later = scope and other.cause > cause.cause
                if later and before.lane == effect.lane and before.pos < effect.pos:
                    self.add("reordered", output, cause.id)
                    break

    def _disagreement(self) -> None:
        for output in self.outputs:
            for who, tally in self.tallies[output].items():
                for effect in tally.lost:
                    if effect.content not in self.open[output] and any(
                        self._right(other, twin)
                        for other in self.outputs
                        for twin in self.due[other]
                        if other != output and twin.cause == effect.cause
                    ):
                        self.add("sink-disagreement", output, who)
                if (
                    tally.wrong
                    and MODELS[output].kind == "upsert"
                    and any(
                        self._right(other, twin)
                        for other in self.outputs
                        for twin in self.due[other]
                        if other != output and MODELS[other].kind == "upsert" and twin.id == who
                    )
                ):
                    self.add("sink-disagreement", output, who)
                if self._more_copies(output, who, tally):
                    self.add("sink-disagreement", output, who)

    def _more_copies(self, output: str, who: Identity, tally: Tally) -> bool:
        """Whether another output holds a correct effect of the same input, with fewer copies. States have no copies."""
        causes = [(effect.cause[1], effect.cause[0]) for effect in self.due[output] if effect.id == who]
        if not tally.extra or tally.wrong or not causes or MODELS[output].kind == "upsert":
            return False
        offset, partition = min(causes)
        return any(
            self._right(other, twin) and self.tallies[other][twin.id].extra < tally.extra
            for other in self.outputs
            if other != output and MODELS[other].kind != "upsert"
            for twin in self.due[other]
            if twin.cause == (partition, offset)
        )

    def _right(self, output: str, effect: Due) -> bool:
        compared = self._compare(output)[effect.id]
        return not compared.lost and not compared.wrong

    def _logs(self) -> None:
        held = {(r["topic"], r["partition"], r["offset"]) for r in self.run.tables["input"]}
        for row in self.run.tables["sent"]:
            where = row["topic"], row["partition"], row["offset"]
            if row["status"] == "acked" and where not in held:
                self.add("input-lost", row["topic"], identity(topic=where[0], partition=where[1], offset=where[2]))
        for log in self.run.tables["partitions"]:
            behind = [
                row
                for row in self.run.tables["output"]
                if (row["output"], row["partition"]) == (log["topic"], log["partition"])
                and row["offset"] >= log["stable_offset"]
                and row["visibility"] != "aborted"
            ]
            who = identity(topic=log["topic"], partition=log["partition"])
            self.add("hanging-transaction", log["topic"], who, len(behind))


def _record(row: dict[str, Any], names: tuple[str, ...]) -> Seen:
    at_ms = row["timestamp_ms"] if row["txn_end_ms"] is None else row["txn_end_ms"]
    return _effect(row["content"], names, row["partition"], row["offset"], row["key"].decode(), at_ms)


def _effect(text: str, names: tuple[str, ...], lane: int, pos: int, key: str | None, at_ms: int) -> Seen:
    values = json.loads(text)
    who = identity(**{name: values[name] for name in names})
    return Seen(who, identity(**values), lane, pos, key, at_ms)


def _rest(effect: Due | Seen) -> Content:
    return effect.content[len(effect.id) :]
