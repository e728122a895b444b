"""What an output's model may not say: each with its place, the value and the mend."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceproof.scenario_files.load import load

TOPIC = "copy: {topic: enriched, identity: [src_partition, src_offset]}"
TABLE = "rows: {table: flights_out, identity: [src_partition, src_offset]}"


def of(output: str, **fields: str) -> tuple[str, str]:
    """The base scenario's output with more fields, or others."""
    text = output.replace("}", "")
    for name, value in fields.items():
        if name == "identity":
            text = text.replace("identity: [src_partition, src_offset]", f"identity: {value}")
        else:
            text += f", {name}: {value}"
    return output, text + "}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of(TABLE, ignore="[src_offset]"), "column 'src_offset' cannot both name an effect and be ignored"),
        (of(TABLE, compare="[a]", ignore="[a]"), "nothing is left to compare"),
        (of(TABLE, compare="[a, b]", ignore="[a]"), "column 'a' cannot both be compared and be ignored"),
        (of(TABLE, compare="[]"), "nothing is left to compare: compare is empty"),
        (of(TABLE, tolerance="{src_offset: {absolute: 1}}"), "a name is equal or it is not"),
        (of(TABLE, ignore="[a]", tolerance="{a: {absolute: 1}}"), "column 'a' is not compared at all"),
        (of(TABLE, compare="[b]", tolerance="{a: {absolute: 1}}"), "column 'a' is not compared at all"),
        (of(TABLE, tolerance="{a: {absolute: -1}}"), "-1"),
        (of(TABLE, decode="string"), "a table's rows need no decoding"),
        (of(TOPIC, decode="string"), "gives one column, 'value'"),
        (of(TOPIC, decode="yaml"), "there is no decoder 'yaml'"),
        (of(TABLE, placement="key"), "a table has no partitions"),
        (of(TABLE, kind="upsert", claim="{order: per-key}"), "an upsert keeps the last state of each identity only"),
        (of(TABLE, kind="changelog"), "its last state would count for no more than its first"),
        (of(TABLE, kind="bag"), "bag"),
    ],
)
def test_refused(told: Callable[..., str], change: tuple[str, str], said: str) -> None:
    message = told(change)
    assert said in message
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
def test_accepted(write: Callable[..., object], change: tuple[str, str]) -> None:
    load(write(change))  # type: ignore[arg-type]


def test_progress_needs_a_database(told: Callable[..., str]) -> None:
    progress = "{table: p, partition: part, end_offset: done}"
    message = told(
        ("  postgres: {}\n", ""),
        ('env: {TARGET: "{postgres}"}', "env: {}"),
        (TABLE, TOPIC.replace("copy", "rows").replace("}", f", progress: {progress}}}")),
        (f"  {TOPIC}\n", ""),
    )
    assert "progress table 'p' needs a Postgres" in message
