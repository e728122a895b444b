"""A shipped scenario says what differs from its base, and repeats nothing that the base says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from onceproof.scenario.problem import Loc
from onceproof.scenario_files.load import MAX_BASES, folder, read
from onceproof.scenario_files.merge import NOT_INHERITED, Merged, merge

pytestmark = pytest.mark.sources

#: Two scenarios that differ in fewer values than this are copies of each other if more values are alike in both than differ. When
#: this rule was made, copies differed in at most 8. The nearest pair that cannot share a base has 9: `between-sinks` writes to a
#: table and a topic, `zombie-driver-kafka` only to the topic, and a file has one base.
FEWEST = 9
#: Texts of which most lines must be repeated, because only a part of a mapping can be changed -> the part that differs.
REPEATED = {
    ("a-year-of-flights", "oracle.queries.departures_table"): "the query gives two more columns, of one more table",
    ("a-year-of-flights", "oracle.queries.departures_topic"): "the query gives two more columns, of one more table",
    ("foreign-jdbc-append", "oracle.queries.departures_table"): "the query gives one more column",
    ("replay-diverges", "oracle.queries.departures_table"): "the query gives one more column",
}


@cache
def shipped() -> dict[str, Merged]:
    """The shipped scenarios and their bases, each with its own bases merged in."""
    return {
        path.relative_to(folder()).with_suffix("").as_posix(): read(path)
        for path in sorted([*folder().glob("*.yaml"), *folder().glob("base/*.yaml")])
    }


def leaves(node: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Every value that is merged as a whole: all but mappings with entries."""
    if isinstance(node, dict) and (node or not loc):
        for key, value in node.items():
            if loc or key not in NOT_INHERITED:
                yield from leaves(value, (*loc, key))
    else:
        yield loc, node


def parts(value: Any) -> list[Any]:
    """The lines of a text, the items of a list."""
    return value.splitlines() if isinstance(value, str) else list(value) if isinstance(value, list) else [value]


def repeats(source: Merged) -> list[str]:
    """What the file repeats of its base: equal values, and texts and commands of which most parts are equal."""
    if len(source.files) < 2:
        return []
    inherited = dict(leaves(merge(source.files[1:]).data))
    found = []
    for loc, value in leaves(source.files[0].data):
        if loc not in inherited:
            continue
        old = parts(inherited[loc])
        same = sum(part in old for part in parts(value))
        # A list is replaced as a whole, but the options of a command can be changed one by one, with `args`.
        partial = isinstance(value, str) or loc == ("pipeline", "command")
        if value == inherited[loc] or (partial and 2 * same > max(len(parts(value)), len(old))):
            found.append(".".join(map(str, loc)))
    return found


def differing_and_alike(one: Merged, other: Merged) -> tuple[int, int]:
    """In how many values they differ, and how many are alike without coming from a base of both."""
    mine, others = dict(leaves(one.data)), dict(leaves(other.data))
    of_both = {file.file for file in other.files}
    base = (
        dict(leaves(merge([file for file in one.files if file.file in of_both]).data)) if _related(one, other) else {}
    )
    alike = {loc for loc in mine.keys() & others.keys() if mine[loc] == others[loc]}
    shared = sum(loc not in base or base[loc] != mine[loc] for loc in alike)
    return len(mine.keys() | others.keys()) - len(alike), shared


def _related(one: Merged, other: Merged) -> bool:
    return one.files[-1].file == other.files[-1].file


def copies(scenarios: dict[str, Merged]) -> list[str]:
    found = []
    for (name, one), (other_name, other) in combinations(scenarios.items(), 2):
        based = {one.files[0].file, other.files[0].file} & {f.file for f in (*one.files[1:], *other.files[1:])}
        if not based:
            differing, alike = differing_and_alike(one, other)
            if differing < FEWEST and differing < alike:
                found.append(f"{name} and {other_name} differ in {differing} values, and repeat {alike}")
    return found


@pytest.mark.parametrize("name", shipped())
def test_a_scenario_repeats_nothing_of_its_base(name: str) -> None:
    assert [loc for loc in repeats(shipped()[name]) if (name, loc) not in REPEATED] == []


def test_the_exceptions_are_needed() -> None:
    assert [(name, loc) for name, loc in REPEATED if loc not in repeats(shipped()[name])] == []


def test_no_two_scenarios_are_copies_of_each_other() -> None:
    assert copies(shipped()) == []


def test_a_shipped_scenario_can_be_a_base() -> None:
    """A chain of the most bases that are allowed would leave no room for a user's own file."""
    assert [name for name, source in shipped().items() if len(source.files) > MAX_BASES] == []


def test_no_scenario_writes_down_its_name() -> None:
    assert [name for name, source in shipped().items() if "name" in source.files[0].data] == []


WHOLE = """\
stack: {kafka: {brokers: 1}}
pipeline:
  command: ["{python}", "{here}/one.py", "--kafka={kafka}", "--topic={topic.orders}", "--checkpoint={checkpoint}/orders"]
  prepare:
    sql:
      orders: |
        CREATE TABLE orders (
          id bigint,
          key text
        );
claim: {delivery: effectively-once, order: per-key}
"""


@pytest.mark.parametrize(
    ("change", "repeated"),
    [
        ("claim: {order: per-partition}", []),
        ("claim: {order: per-key}", ["claim.order"]),
        ("chaos: []", []),
        (
            'pipeline: {command: ["{python}", "{here}/two.py", "--kafka={kafka}", "--topic={topic.orders}"]}',
            ["pipeline.command"],
        ),
        ('pipeline: {command: ["{python}", "{here}/two.py"]}', []),
        ("pipeline: {prepare: {sql: {key: ALTER TABLE orders ADD PRIMARY KEY (id);}}}", []),
        (
            'pipeline: {prepare: {sql: {orders: "CREATE TABLE orders (\\n  id bigint,\\n  key int\\n);\\n"}}}',
            ["pipeline.prepare.sql.orders"],
        ),
    ],
)
def test_what_a_file_repeats_of_its_base_is_found(tmp_path: Path, change: str, repeated: list[str]) -> None:
    (tmp_path / "whole.yaml").write_text(WHOLE)
    path = tmp_path / "change.yaml"
    path.write_text(f"base: ./whole.yaml\n{change}\n")
    assert repeats(read(path)) == repeated


def test_a_copy_is_found_and_a_change_is_not(tmp_path: Path) -> None:
    (tmp_path / "whole.yaml").write_text(WHOLE)
    (tmp_path / "copy.yaml").write_text(WHOLE.replace("per-key", "none"))
    (tmp_path / "change.yaml").write_text("base: ./whole.yaml\nclaim: {order: per-partition}\n")
    (tmp_path / "sibling.yaml").write_text("base: ./whole.yaml\nclaim: {order: per-partition}\nseed: 1\n")
    found = copies({path.stem: read(path) for path in sorted(tmp_path.glob("*.yaml"))})
    assert found == [
        "change and copy differ in 1 values, and repeat 4",
        "copy and sibling differ in 2 values, and repeat 4",
        "copy and whole differ in 1 values, and repeat 4",
    ]
