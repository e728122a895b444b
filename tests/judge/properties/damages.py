"""Damages: each takes a clean world and breaks it in one named way, at one or several places, and says what must be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from hypothesis import assume
from hypothesis import strategies as st

from .world import APPENDS, CAUSED, MODELS, TOPICS, Batch, Identity, Txn, World, Write, at, effect_of, identity, worlds

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]
Named = dict[tuple[str, str], Counter[Identity]]
"""(anomaly, output) -> how many effects of each identity must be found: exactly these."""

#: More than any sum of a world's numbers.
_OFF = 2**55


@dataclass(frozen=True)
class Damage:
    anomaly: str
    outputs: frozenset[str]
    """A world that is broken so has no other outputs."""
    worlds: st.SearchStrategy[World]
    apply: Callable[[World, Draw], Named]


DAMAGES: dict[str, Damage] = {}


def damage(
    anomaly: str, *only: str, outputs: int | None = None, restarted: bool = False
) -> Callable[[Callable[[World, Draw], Named]], Callable[[World, Draw], Named]]:
    """Register a damage under its function's name, for worlds with these outputs."""

    def register(apply: Callable[[World, Draw], Named]) -> Callable[[World, Draw], Named]:
        strategy = worlds(only=only or tuple(MODELS), outputs=outputs, restarted=restarted)
        DAMAGES[apply.__name__.replace("_", "-")] = Damage(anomaly, frozenset(only or MODELS), strategy, apply)
        return apply

    return register


def some(draw: Draw, sites: Sequence[T], most: int = 4) -> list[T]:
    """One or several of them."""
    assume(sites)
    chosen = draw(st.sets(st.integers(0, len(sites) - 1), min_size=1, max_size=most))
    return [sites[index] for index in sorted(chosen)]


def last_of_each(world: World, output: str) -> list[tuple[Txn, Write]]:
    return list({write.identity: (txn, write) for txn, write in world.visible(output)}.values())


def keyed(key: str) -> Identity:
    return identity(k=key)


@damage("lost-write")
def effect_never_written(world: World, draw: Draw) -> Named:
    """Of a changelog its last state; of an upsert all states of an identity."""
    output = draw(st.sampled_from(world.outputs))
    sites = some(draw, last_of_each(world, output))
    for _, write in sites:
        of_it = [w for t in world.txns if t.output == output and t.visibility == "committed" for w in t.writes]
        upsert = MODELS[output].kind == "upsert"
        for other in [w for w in of_it if upsert and w.identity == write.identity] or [write]:
            world.drop(other)
    return {("lost-write", output): Counter(write.identity for _, write in sites)}


@damage("stale-tail", *CAUSED)
def stopped_in_a_batch(world: World, draw: Draw) -> Named:
    """Nothing from some batch on was done, in any output, and the job moves no more."""
    stop = draw(st.integers(0, len(world.batches) - 1))
    due = {output: last_of_each(world, output) for output in world.outputs}
    every = {output: world.visible(output) for output in world.outputs}
    world.txns = [txn for txn in world.txns if txn.batch < stop]
    last = world.batches[stop]
    world.batches = [*world.batches[:stop], replace(last, committed_by=None)]
    world.progress = {partition: start for partition, (start, _) in last.ranges.items()}
    world.document = {"drained": False, "drain_note": "no progress for 60 s", "stuck": True}
    named: Named = {}
    for output in world.outputs:
        if MODELS[output].kind == "append":
            gone = Counter(w.identity for t, w in every[output] if t.batch >= stop)
        elif MODELS[output].kind == "changelog":
            gone = Counter(w.identity for t, w in due[output] if t.batch >= stop)
        else:  # of an identity with an earlier state that one stands
            standing = {w.identity for _, w in world.visible(output)}
            gone = Counter(w.identity for _, w in due[output] if w.identity not in standing)
        if gone:
            named["stale-tail", output] = gone
    assume(named)
    return named


@damage("duplicate", *APPENDS, "totals", "sums", "log", "journal")
def written_again(world: World, draw: Draw) -> Named:
    """In a commit or transaction of its own, right after the first time."""
    output = draw(st.sampled_from(world.outputs))
    sites = some(draw, world.visible(output))
    for txn, write in sites:
        again = Txn(output, txn.batch, txn.start, txn.at_ms + 500, [replace(write, insert=True)])
        world.txns.insert(1 + _place(world, txn), again)
    return {("duplicate", output): Counter(write.identity for _, write in sites)}


@damage("duplicate", *APPENDS, "log", "journal", restarted=True)
def batch_replayed_whole(world: World, draw: Draw) -> Named:
    """Every effect of a batch that two starts of the driver ran, again."""
    output = draw(st.sampled_from(world.outputs))
    replayed = [n for n, batch in enumerate(world.batches) if batch.committed_by != batch.planned_by]
    sites = [t for t in world.txns if t.output == output and t.visibility == "committed" and t.batch in replayed]
    named: Counter[Identity] = Counter()
    for txn in some(draw, sites, most=2):
        start = world.batches[txn.batch].committed_by
        assert start is not None
        again = Txn(output, txn.batch, start, at(txn.batch, 7), deepcopy(txn.writes))
        world.txns.insert(1 + _place(world, txn), again)
        named.update(write.identity for write in txn.writes)
    return {("duplicate", output): named}


@damage("wrong-value")
def other_content(world: World, draw: Draw) -> Named:
    output = draw(st.sampled_from(world.outputs))
    sites = some(draw, world.visible(output))
    for _, write in sites:
        _falsify(write)
    return {("wrong-value", output): Counter(write.identity for _, write in sites)}


@damage("reordered", *APPENDS, "log", "journal")
def two_of_a_key_swapped(world: World, draw: Draw) -> Named:
    """Neighbours among the effects of one key; of a table, in different commits."""
    if world.claim["order"] == "per-partition":  # there each of them may have moved past others, too
        world.claim = {**world.claim, "order": "per-key"}
    output = draw(st.sampled_from(world.outputs))
    seen = world.visible(output)
    pairs = []
    for key in sorted({write.key for _, write in seen}):
        of_key = [(t, w) for t, w in seen if w.key == key]
        near = [(a, b) for a, b in pairwise(of_key) if not MODELS[output].table or a[0] is not b[0]]
        if near:
            pairs.append(draw(st.sampled_from(near)))
    named: Counter[Identity] = Counter()
    for (_, one), (_, other) in some(draw, pairs):
        named[one.identity] += 1
        one.identity, other.identity = other.identity, one.identity
        one.values, other.values = other.values, one.values
    return {("reordered", output): named}


@damage("aborted-read")
def aborted_record_taken(world: World, draw: Draw) -> Named:
    """The source reads uncommitted: an append has its effect, a state counts it."""
    output = draw(st.sampled_from(world.outputs))
    model = MODELS[output]
    records = some(draw, [r for r in world.records if r.visibility == "aborted" and model.takes(r)])
    named: Counter[Identity] = Counter()
    final = {write.identity: write for _, write in world.visible(output)}
    for record in records:
        write = effect_of(record) if model.kind == "append" else world.state_at(record, dirty=True)
        if model.kind == "upsert":
            of_key = [r for r in world.records if r.key == record.key]
            write = world.state_at(max(of_key, key=lambda r: r.offset), dirty=True)
            named.pop(write.identity, None)
            if write.identity in final:
                final[write.identity].values = write.values
                named[write.identity] += 1
                continue
            final[write.identity] = write
        named[write.identity] += 1
        batch = world.batches[record.batch]
        assert batch.committed_by is not None
        world.txns.append(Txn(output, record.batch, batch.committed_by, at(record.batch, 7), [write]))
    return {("aborted-read", output): named}


@damage("precommitted-read", *APPENDS)
def marker_came_late(world: World, draw: Draw) -> Named:
    """The transactions of some input ended long after all its effects could be read."""
    ended = {(r.partition, r.end_offset) for r in world.records if r.end_offset and r.visibility == "committed"}
    late = some(draw, sorted(ended))
    world.records = [replace(r, end_ms=at(900, 0)) if (r.partition, r.end_offset) in late else r for r in world.records]
    named: Named = {}
    for output in world.outputs:
        of_output = [r for r in world.records if (r.partition, r.end_offset) in late and MODELS[output].takes(r)]
        if of_output:
            named["precommitted-read", output] = Counter(effect_of(r).identity for r in of_output)
    assume(named)
    return named


@damage("unexplained")
def effect_of_nothing(world: World, draw: Draw) -> Named:
    output = draw(st.sampled_from(world.outputs))
    sites = [txn for txn in world.txns if txn.output == output and txn.visibility == "committed"]
    assume(sites)
    named: Counter[Identity] = Counter()
    for number in range(draw(st.integers(1, 3))):
        if MODELS[output].kind == "append":
            values = {"p": 0, "o": 10_000 + number, "k": "ghost", "n": _OFF + number}
            write = Write(identity(p=0, o=10_000 + number), values, 0, "ghost")
        else:
            key = f"ghost{number}"
            write = Write(keyed(key), {"k": key, "total": _OFF + number, "c": 1}, 0, key)
        txn = draw(st.sampled_from(sites))
        txn.writes.append(write)
        named[write.identity] += 1
    return {("unexplained", output): named}


@damage("misplaced", "even", "odd", outputs=2)
def in_the_other_topic(world: World, draw: Draw) -> Named:
    output, other = draw(st.permutations(world.outputs)) if len(world.outputs) == 2 else (None, None)
    assume(output)
    sites = some(draw, world.visible(output))
    for txn, write in sites:
        world.drop(write)
        world.txns.append(Txn(other, txn.batch, txn.start, txn.at_ms, [write]))
    return {("misplaced", output): Counter(write.identity for _, write in sites)}


@damage("misplaced", "events", "even", "odd")
def in_another_partition(world: World, draw: Draw) -> Named:
    """The oracle says in which partition each effect is due."""
    output = draw(st.sampled_from(world.outputs))
    sites = some(draw, world.visible(output))
    for _, write in sites:
        write.partition += 5
    return {("misplaced", output): Counter(write.identity for _, write in sites)}


@damage("misplaced", "log")
def away_from_its_key(world: World, draw: Draw) -> Named:
    """One record of a key that has several more."""
    by_key: dict[str, list[Write]] = {}
    for _, write in world.visible("log"):
        by_key.setdefault(write.key, []).append(write)
    keys = some(draw, sorted(key for key, writes in by_key.items() if len(writes) > 2))
    for key in keys:
        draw(st.sampled_from(by_key[key])).partition += 5
    return {("misplaced", "log"): Counter(map(keyed, keys))}


@damage("misplaced", *APPENDS, "totals", "sums", "latest")
def in_another_row(world: World, draw: Draw) -> Named:
    """The content of an effect under an identity that nobody expects."""
    output = draw(st.sampled_from(world.outputs))
    sites = [write.identity for _, write in some(draw, last_of_each(world, output))]
    for txn in world.txns:
        for write in txn.writes:
            if txn.output == output and txn.visibility == "committed" and write.identity in sites:
                column, value = write.identity[-1]
                assert write.values is not None
                odd: Any = int(value) + 20_000 if column == "o" else f"ghost-{value}"
                write.values = {**write.values, column: odd}
                write.identity = (*write.identity[:-1], (column, str(odd)))
                write.key = str(odd) if column == "k" else write.key
    return {("misplaced", output): Counter(sites)}


@damage("hanging-transaction", *TOPICS)
def last_transaction_left_open(world: World, draw: Draw) -> Named:
    output = draw(st.sampled_from(world.outputs))
    committed = [txn for txn in world.txns if txn.output == output and txn.visibility == "committed"]
    assume(committed)
    last = committed[-1]
    last.visibility = "open"
    open_in = Counter(write.partition for write in last.writes)
    return {
        ("hanging-transaction", output): Counter(
            {identity(topic=output, partition=partition): records for partition, records in open_in.items()}
        )
    }


@damage("input-lost")
def broker_lost_input(world: World, draw: Draw) -> Named:
    """Before the job could read it: no output shows it."""
    world.lost = some(draw, [r for r in world.records if r.visibility == "committed"])
    world.records = [r for r in world.records if r not in world.lost]
    taken = [r for r in world.records if r.visibility == "committed"]
    assume(all(any(MODELS[output].takes(r) for r in taken) for output in world.outputs))
    world.work()
    lost = (identity(topic="in", partition=r.partition, offset=r.offset) for r in world.lost)
    return {("input-lost", "in"): Counter(lost)}


@damage("sink-disagreement", "events", "rows", outputs=2)
def in_one_output_only(world: World, draw: Draw) -> Named:
    output = draw(st.sampled_from(world.outputs))
    sites = some(draw, world.visible(output))
    for _, write in sites:
        world.drop(write)
    lacking = Counter(write.identity for _, write in sites)
    return {("sink-disagreement", output): lacking, ("lost-write", output): lacking}


@damage("torn-batch", *APPENDS)
def batch_in_two_commits(world: World, draw: Draw) -> Named:
    """All of it stands in the end, the smaller part of it later than the rest."""
    output = draw(st.sampled_from(world.outputs))
    named: Counter[Identity] = Counter()
    sites = [t for t in world.txns if t.output == output and t.visibility == "committed" and len(t.writes) > 1]
    for txn in some(draw, sites):
        cut = draw(st.integers((len(txn.writes) + 1) // 2, len(txn.writes) - 1))
        late = Txn(output, txn.batch, txn.start, txn.at_ms + 500, txn.writes[cut:])
        txn.writes = txn.writes[:cut]
        world.txns.insert(1 + _place(world, txn), late)
        named.update(write.identity for write in min(late.writes, txn.writes, key=len))
    return {("torn-batch", output): named}


@damage("diverged-replay", *APPENDS, "totals", "sums", "latest", restarted=True)
def first_attempt_wrote_otherwise(world: World, draw: Draw) -> Named:
    """A batch that ran twice wrote other content first. An append keeps both, of an upsert the right one stands."""
    output = draw(st.sampled_from(world.outputs))
    named: Counter[Identity] = Counter()
    replayed = {n for n, batch in enumerate(world.batches) if batch.committed_by != batch.planned_by}
    sites = [t for t in world.txns if t.output == output and t.visibility == "committed" and t.batch in replayed]
    for txn in some(draw, sites):
        second = world.batches[txn.batch].committed_by
        assert second is not None
        txn.start, txn.at_ms = second, at(txn.batch, 6)
        writes = deepcopy(txn.writes)
        for write in writes:
            _falsify(write)
        first = Txn(output, txn.batch, world.batches[txn.batch].planned_by, at(txn.batch, 3), writes)
        world.txns.insert(_place(world, txn), first)
        named.update({write.identity for write in writes})
    return {("diverged-replay", output): named}


@damage("commit-ahead-of-effect", *APPENDS, "log", "journal")
def recorded_before_written(world: World, draw: Draw) -> Named:
    """The checkpoint recorded a batch as done a second before its effects could be read."""
    output = draw(st.sampled_from(world.outputs))
    named: Counter[Identity] = Counter()
    for txn in some(draw, [t for t in world.txns if t.output == output and t.visibility == "committed"]):
        txn.at_ms = at(txn.batch, 9.5)
        named.update(write.identity for write in txn.writes)
    return {("commit-ahead-of-effect", output): named}


@damage("zombie-write", *APPENDS, "log", "journal", restarted=True)
def older_start_writes_on(world: World, draw: Draw) -> Named:
    """A batch once more, written by who planned it, long after another start took over and committed a batch of its own."""
    output = draw(st.sampled_from(world.outputs))
    own = [(n, b.planned_by) for n, b in enumerate(world.batches) if b.planned_by == b.committed_by]
    active = {txn.batch for txn in world.txns if txn.output == output and txn.visibility == "committed"}
    outdated = [
        txn
        for txn in world.txns
        if txn.output == output
        and txn.visibility == "committed"
        and any(_took_over(start, world.batches[txn.batch]) for n, start in own if n in active)
    ]
    named: Counter[Identity] = Counter()
    for txn in some(draw, outdated):
        named.update(write.identity for write in txn.writes)
        start = world.batches[txn.batch].planned_by
        world.txns.append(Txn(output, txn.batch, start, at(900, txn.batch), deepcopy(txn.writes)))
    return {("zombie-write", output): named, ("duplicate", output): named}


def _took_over(start: int, batch: Batch) -> bool:
    return batch.committed_by is not None and start > batch.planned_by and start >= batch.committed_by


def _falsify(write: Write) -> None:
    assert write.values is not None
    column = "n" if "n" in write.values else "total"
    write.values = {**write.values, column: write.values[column] + _OFF}


def _place(world: World, txn: Txn) -> int:
    return next(index for index, other in enumerate(world.txns) if other is txn)
