"""Compares the judge with a simple one in plain Python, on random histories that are damaged in several ways at once."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import event, given, note
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from onceproof.judge.findings import MAX_WITNESSES
from onceproof.judge.synthetic.world import CAUSED, World
from onceproof.judge.verdict import judge

from .properties.plain import ANOMALIES, Plain
from .properties.values import Values, values
from .properties.world import DAMAGES, Drawn, histories, store, worlds


@histories(200)
@given(world=worlds(only=CAUSED), data=st.data())
def test_both_judges_find_the_same(make_run: Callable[[Path], Any], world: World, data: st.DataObject) -> None:
    fitting = [name for name, (_, damage) in DAMAGES.items() if set(world.outputs) <= set(damage.only)]
    applied = []
    for name in data.draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=4)):
        broken = deepcopy(world)
        if _applies(name, broken, data):
            world = broken
            applied.append(name)
    event(f"{len(applied)} kinds of damage")
    note(f"damages: {applied}")
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        store(world, run)
        plain = Plain(run).found
        verdict = judge(run.save())
    found: dict[tuple[str, str], int] = Counter()
    who: dict[tuple[str, str], set[Any]] = {}
    for finding in verdict.findings:
        note(f"{finding.anomaly} in {finding.output}: {finding.total}, {finding.source}, {finding.attribution}")
        if finding.anomaly in ANOMALIES:
            what = finding.anomaly, finding.output
            found[what] += finding.total
            assert len(finding.witnesses) <= MAX_WITNESSES
            who.setdefault(what, set()).update(
                tuple((name, str(value)) for name, value in w.identity.items()) for w in finding.witnesses
            )
    assert found == {what: sum(effects.values()) for what, effects in plain.items()}
    for what, effects in plain.items():
        assert who[what] <= set(effects)
        assert who[what] == set(effects) or sum(effects.values()) > MAX_WITNESSES


def _applies(name: str, world: World, data: st.DataObject) -> bool:
    """Apply one damage if it fits this world; return whether it did."""
    try:
        DAMAGES[name][1].apply(world, Drawn(data))
    except UnsatisfiedAssumption:
        return False
    return True


Effect = tuple[int, str | None]

_COUNTED = {"unexplained", "wrong-value", "duplicate", "lost-write"}

_EFFECTS = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None]))


def counts(expected: list[Effect], actual: list[Effect]) -> Counter[str]:
    """Count anomalies identity by identity and effect by effect."""
    found: Counter[str] = Counter()
    for identity in {i for i, _ in expected + actual}:
        wanted = [content for i, content in expected if i == identity]
        left = [content for i, content in actual if i == identity]
        if not wanted:
            found["unexplained"] += len(left)
            continue
        known = set(wanted)
        for content in list(left):
            if content in wanted:
                wanted.remove(content)
                left.remove(content)
        foreign = [content for content in left if content not in known]
        copies = len(left) - len(foreign)
        missing = len(wanted)
        found["wrong-value"] += len(foreign)
        missing -= min(missing, len(foreign))
        in_place = min(missing, copies)
        found["wrong-value"] += in_place
        found["duplicate"] += copies - in_place
        found["lost-write"] += missing - in_place
    return +found


@histories(200)
@given(
    expected=st.lists(_EFFECTS, min_size=1, max_size=12),
    actual=st.lists(_EFFECTS, max_size=12),
    batches=st.lists(st.booleans(), min_size=3, max_size=3),
    table=st.booleans(),
)
def test_both_judges_count_equal_effects_alike(
    make_run: Callable[[Path], Any], expected: list[Effect], actual: list[Effect], batches: list[bool], table: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        run.scenario["outputs"] = {"out": {"table" if table else "topic": "out", "identity": ["i"]}}
        # Repeat the identity in the content, so that no content counts as that of another effect in the wrong row.
        query = 'SELECT i, i AS j, v, _partition, _offset, _key FROM "in"'
        run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
        for identity, content in expected:
            run.send("k", {"i": identity, "v": content})
        for number, replayed in enumerate(batches):
            run.batch(number, {0: (5 * number, 5 * number + 5)}, by=(0, int(replayed)))
        run.progress({0: len(expected)})
        for identity, content in actual:
            if table:
                run.insert("out", {"i": identity, "j": identity, "v": content})
            else:
                run.record("out", {"i": identity, "j": identity, "v": content})
        verdict = judge(run.save())
    assert verdict.not_evaluated == {}
    counted = Counter({anomaly: n for anomaly, n in verdict.anomalies().items() if anomaly in _COUNTED})
    assert counted == counts(expected, actual)
    named = {w.identity["i"] for f in verdict.findings if f.anomaly in _COUNTED for w in f.witnesses}
    differing = (Counter(expected) - Counter(actual)) + (Counter(actual) - Counter(expected))
    assert named == {str(identity) for identity, _ in differing}


@histories(60)
@given(history=values())
def test_both_judges_find_the_same_in_values(make_run: Callable[[Path], Any], history: Values) -> None:
    """Numbers of any size, several kinds in one field, batches without input, and several outputs."""
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        history.store(run)
        verdict = judge(run.save())
    assert verdict.not_evaluated == {}, verdict.not_evaluated
    note("; ".join(verdict.reasons))
    found: Counter[tuple[str, str]] = Counter()
    named: dict[tuple[str, str], set[int]] = {}
    for finding in verdict.findings:
        if finding.anomaly in {*_COUNTED, "misplaced"}:
            found[finding.anomaly, finding.output] += finding.total
            who = {int(witness.identity["id"]) for witness in finding.witnesses}
            named.setdefault((finding.anomaly, finding.output), set()).update(who)
    expected: Counter[tuple[str, str]] = Counter()
    for (anomaly, output, number), times in history.found().items():
        expected[anomaly, output] += times
        assert number in named.get((anomaly, output), set())
    assert found == expected
    assert verdict.outcome == ("violated" if expected else "held")
