"""The states of a changelog are compared within a tolerance, in their order."""

from __future__ import annotations

from typing import Any

import pytest

from .test_models import STATES, anomalies, put, scenario


@pytest.mark.parametrize("where", ["topic", "table"])
@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((4.0001, 12.0001), {}),
        ((1.4999, 4, 7.5001, 12), {}),
        ((12.009,), {}),
        ((4, 12.02), {"wrong-value": 1}),
        ((7.5001,), {"lost-write": 1}),
        ((4.0001, 4.0002, 12.0001), {"duplicate": 1}),
        ((4.0001, 1.5001, 12.0001), {"reordered": 1}),
    ],
)
def test_states_of_a_changelog_within_the_tolerance(
    stored_run: Any, where: str, found: tuple[float, ...], expected: dict[str, int]
) -> None:
    tolerance = {"total": {"absolute": 0.01}}
    run = scenario(stored_run, STATES, kind="changelog", tolerance=tolerance, **{where: "out"})
    run.scenario["claim"] = {"order": "per-key"}
    for n in (1.5, 2.5, 3.5, 4.5):  # states 1.5, 4, 7.5, 12
        run.send("a", {"k": "a", "n": n})
    for total in found:
        run.insert("out", {"k": "a", "total": total}) if where == "table" else put(run, "a", {"k": "a", "total": total})
    assert anomalies(run) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((1, 1.004, 1.008), {}),
        ((1.003, 1.002, 1.009), {}),  # each is nearer to another state, and within the tolerance of its own
        ((1.008, 1.003), {}),
        ((1.02, 1.008), {"wrong-value": 1}),
        ((0.994, 0.994, 0.994), {"duplicate": 1, "wrong-value": 1}),
        ((1.004, 1.004, 1.004, 1.004), {"duplicate": 2, "wrong-value": 1}),
    ],
)
def test_states_that_are_nearer_than_the_tolerance(
    stored_run: Any, found: tuple[float, ...], expected: dict[str, int]
) -> None:
    """States 1, 1.004 and 1.008: if some choice among those that each value may be is right, the values are right."""
    tolerance = {"n": {"absolute": 0.006}}
    query = 'SELECT k, n, _partition, _offset, _key FROM "in"'
    run = scenario(stored_run, query, kind="changelog", tolerance=tolerance, topic="out")
    run.scenario["claim"] = {"order": "per-key"}
    for n in (1, 1.004, 1.008):
        run.send("a", {"k": "a", "n": n})
    for n in found:
        put(run, "a", {"k": "a", "n": n})
    assert anomalies(run) == expected


def test_a_changelog_with_two_tolerances(stored_run: Any) -> None:
    """A row is a state only if all its columns are those of one state."""
    tolerance = {"a": {"absolute": 0.1}, "b": {"relative": 0.01}}
    query = 'SELECT k, a, b, c, _partition, _offset FROM "in"'
    run = scenario(stored_run, query, kind="changelog", tolerance=tolerance, topic="out")
    for number in (1, 2, 3):
        run.send("k", {"k": "k", "a": number, "b": number * 100, "c": number})
    for number in (1, 3):
        put(run, "k", {"k": "k", "a": number + 0.05, "b": number * 100.5, "c": number})
    assert anomalies(run) == {}
    put(run, "k", {"k": "k", "a": 3.05, "b": 200.5, "c": 3})
    assert anomalies(run) == {"wrong-value": 1}
