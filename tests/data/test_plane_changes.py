from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from onceproof.data import datasets
from onceproof.data.flights import Flights
from onceproof.data.plane_changes import BEGIN, PlaneChanges, PlaneChangesOptions


def make(seed: int = 7, **options: int) -> PlaneChanges:
    return PlaneChanges(PlaneChangesOptions(**options), seed=seed)


@pytest.fixture(scope="module")
def changes() -> list[dict[str, Any]]:
    made = make(days=10, valid_days=3)
    return [json.loads(record.value) for record in made.records(0, made.rows())]


@pytest.fixture(scope="module")
def by_plane(changes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    planes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for change in changes:
        planes[change["tailnum"]].append(change)
    return planes


def test_plane_changes_are_registered() -> None:
    assert datasets.get("plane_changes") is PlaneChanges


def test_every_change_ends_the_version_of_the_previous_change(by_plane: dict[str, list[dict[str, Any]]]) -> None:
    assert len(by_plane) == Flights.table("planes").num_rows
    for plane in by_plane.values():
        assert all(one["after"] == other["before"] for one, other in pairwise(plane))
        assert all(change["after"]["valid_from"] == change["changed_at"] for change in plane)
        assert [change["before"]["version"] for change in plane] == list(range(len(plane)))


def test_the_first_version_is_that_of_the_package(by_plane: dict[str, list[dict[str, Any]]]) -> None:
    seats = {row["tailnum"]: row["seats"] for row in Flights.table("planes").to_pylist()}
    assert {tailnum: plane[0]["before"]["seats"] for tailnum, plane in by_plane.items()} == seats


def test_versions_cover_the_days_and_respect_the_longest_validity(by_plane: dict[str, list[dict[str, Any]]]) -> None:
    for plane in by_plane.values():
        assert datetime.fromisoformat(plane[0]["before"]["valid_from"]) == BEGIN
        assert datetime.fromisoformat(plane[-1]["changed_at"]) > BEGIN + timedelta(days=10)
        for change in plane:
            valid = datetime.fromisoformat(change["changed_at"]) - datetime.fromisoformat(
                change["before"]["valid_from"]
            )
            assert timedelta(0) < valid <= timedelta(days=3)


def test_records_are_in_order_of_their_event_time_and_keyed_by_plane() -> None:
    records = list(make(days=2).records(0, 3_000))
    assert all(before.timestamp_ms <= after.timestamp_ms for before, after in pairwise(records))
    for record in records:
        change = json.loads(record.value)
        assert record.key == change["tailnum"].encode()
        assert datetime.fromtimestamp(record.timestamp_ms / 1000, UTC) == datetime.fromisoformat(change["changed_at"])


def test_records_depend_only_on_the_seed() -> None:
    assert list(make(1).records(0, 200)) == list(make(1).records(0, 200))
    assert list(make(1).records(0, 200)) != list(make(2).records(0, 200))


def test_a_range_agrees_with_the_whole() -> None:
    made = make(days=1)
    assert list(made.records(100, 300)) == list(made.records(0, 1_000))[100:300]
