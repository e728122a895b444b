"""Settings of an output that contradict each other are refused with their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceproof.scenario_files.load import load

TOPIC = "copy: {topic: enriched, identity: [src_partition, src_offset]}"
TABLE = "rows: {table: flights_out, identity: [src_partition, src_offset]}"


def of(output: str, **fields: str) -> tuple[str, str]:
    """The change that gives the base scenario's output these fields."""
    text = output.replace("}", "")
    for name, value in fields.items():
        if name == "identity":
            text = text.replace("identity: [src_partition, src_offset]", f"identity: {value}")
        else:
            text += f", {name}: {value}"
    return output, text + "}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (of(TABLE, ignore="[src_offset]"), "column 'src_offset' cannot be both in identity and in ignore"),
        (of(TABLE, compare="[a]", ignore="[a]"), "nothing is left to compare"),
        (of(TABLE, compare="[a, b]", ignore="[a]"), "column 'a' cannot be both in compare and in ignore"),
        (of(TABLE, compare="[]"), "nothing is left to compare: compare is empty"),
        (of(TABLE, tolerance="{src_offset: {absolute: 1}}"), "is in identity, which allows no tolerance"),
        (of(TABLE, ignore="[a]", tolerance="{a: {absolute: 1}}"), "column 'a' is not compared"),
        (of(TABLE, compare="[b]", tolerance="{a: {absolute: 1}}"), "column 'a' is not compared"),
        (of(TABLE, tolerance="{a: {absolute: -1}}"), "-1"),
        (of(TABLE, decode="string"), "rows need no decoding"),
        (of(TOPIC, decode="string"), "gives a single column, 'value'"),
        (of(TOPIC, decode="yaml"), "there is no decoder 'yaml'"),
        (of(TABLE, placement="key"), "rows have no partition"),
        (of(TABLE, kind="upsert", claim="{order: per-key}"), "an upsert keeps only the last state of each identity"),
        (of(TABLE, kind="changelog"), "it would not matter which of its states is the last"),
        (of(TABLE, kind="bag"), "bag"),
    ],
)
def test_contradicting_settings_are_refused(
    problems_of: Callable[..., str], change: tuple[str, str], expected: str
) -> None:
    message = problems_of(change)
    assert expected in message
    assert "mine.yaml:" in message


@pytest.mark.parametrize(
    "change",
    [
        of(TABLE, kind="upsert"),
        of(TABLE, compare="[a]", ignore="[b]", tolerance="{a: {absolute: 0.5, relative: 0.01}}"),
        of(TABLE, source="{partition: src_partition, offset: src_offset}", epoch="epoch"),
        of(TOPIC, kind="changelog", claim="{order: per-key}", placement="key"),
        of(TOPIC, identity="[value]", decode="bytes"),
        of(TOPIC, decode="my_package.wire:decode"),
    ],
)
def test_compatible_settings_are_accepted(write: Callable[..., object], change: tuple[str, str]) -> None:
    load(write(change))  # type: ignore[arg-type]


def test_a_progress_table_needs_postgres(problems_of: Callable[..., str]) -> None:
    progress = "{table: p, partition: part, end_offset: done}"
    message = problems_of(
        ("  postgres: {}\n", ""),
        ('env: {TARGET: "{postgres}"}', "env: {}"),
        (TABLE, TOPIC.replace("copy", "rows").replace("}", f", progress: {progress}}}")),
        (f"  {TOPIC}\n", ""),
    )
    assert "progress table 'p' needs Postgres" in message
