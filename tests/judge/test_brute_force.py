"""The per-identity checkers against a judge of some plain lines, on histories that nobody thought of."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceproof.judge.verdict import judge

Effect = tuple[int, str | None]

effects = st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None]))


def brute_force(expected: list[Effect], actual: list[Effect]) -> Counter[str]:
    """One identity after another, one effect after another."""
    found: Counter[str] = Counter()
    for identity in {i for i, _ in expected + actual}:
        wanted = [content for i, content in expected if i == identity]
        standing = [content for i, content in actual if i == identity]
        if not wanted:
            found["unexplained"] += len(standing)
            continue
        known = set(wanted)
        for content in list(standing):
            if content in wanted:
                wanted.remove(content)
                standing.remove(content)
        foreign = [content for content in standing if content not in known]
        copies = len(standing) - len(foreign)
        missing = len(wanted)
        found["wrong-value"] += len(foreign)
        missing -= min(missing, len(foreign))
        in_place = min(missing, copies)
        found["wrong-value"] += in_place
        found["duplicate"] += copies - in_place
        found["lost-write"] += missing - in_place
    return +found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    expected=st.lists(effects, min_size=1, max_size=12),
    actual=st.lists(effects, max_size=12),
    batches=st.lists(st.booleans(), min_size=3, max_size=3),
    table=st.booleans(),
)
def test_same_counts(
    make_run: Callable[[Path], Any], expected: list[Effect], actual: list[Effect], batches: list[bool], table: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        run.scenario["outputs"] = {"out": {"table" if table else "topic": "out", "identity": ["i"]}}
        query = 'SELECT i, v, _partition, _offset, _key FROM "in"'
        run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
        for identity, content in expected:
            run.send("k", {"i": identity, "v": content})
        for number, replayed in enumerate(batches):
            run.batch(number, {0: (5 * number, 5 * number + 5)}, by=(0, int(replayed)))
        run.progress({0: len(expected)})
        for identity, content in actual:
            if table:
                run.insert("out", {"i": identity, "v": content})
            else:
                run.record("out", {"i": identity, "v": content})
        verdict = judge(run.save())
    assert verdict.not_evaluated == {}
    counted = Counter(verdict.anomalies())
    del counted["reordered"]
    assert counted == brute_force(expected, actual)
    named = {w.identity["i"] for f in verdict.findings if f.anomaly != "reordered" for w in f.witnesses}
    differing = (Counter(expected) - Counter(actual)) + (Counter(actual) - Counter(expected))
    assert named == {str(identity) for identity, _ in differing}
