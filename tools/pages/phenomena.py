"""`docs/phenomena.md`, from the list of phenomena and the shipped scenarios that name them."""

from __future__ import annotations

import itertools
from pathlib import Path

from onceproof.scenario_files.rows import Row, rows
from pages.page import DOCS, table

HEAD = """# What the scenarios show

Written by `python tools/generate.py` from `onceproof.scenario.phenomena` and the shipped scenarios; a test checks that it is up to date.
`onceproof list --by row` prints the same table, with the result of the last run of each scenario.

A phenomenon is something that a streaming system does to its data when something fails. Each one is shown twice on real services: by
naive scenarios, which a run finds violated, and by remedies, which hold under the same fault. A naive scenario and its remedy differ
only in the remedy ([`base:`](scenario-files.md#a-scenario-that-changes-another-one)). A scenario file says with `phenomena:` what it
shows.

Some phenomena have several cases, which are shown one by one. What is **not shown yet** is listed with the reason; a test fails if
anything else lacks a naive scenario or a remedy.
"""


def files() -> dict[Path, str]:
    return {DOCS / "phenomena.md": page(rows())}


def page(found: list[Row]) -> str:
    shown = sum(not row.lacks for row in found)
    parts = [HEAD, f"{shown} of {len(found)} are shown.\n"]
    for group, members in itertools.groupby(found, key=lambda row: row.phenomenon.group):
        heading = f"## {group}\n"
        head = ("", "what happens", "anomaly", "naive", "remedy")
        parts += [heading, table(head, (_cells(row) for row in members))]
    gaps = [(row.name, row.case.missing) for row in found if row.case.missing]
    limits = {row.phenomenon.id: row.phenomenon.limit for row in found if row.phenomenon.limit}
    missing = table(("", "what is missing"), gaps) if gaps else "Nothing is missing: every case above is shown.\n"
    parts += ["## Not shown yet\n", missing]
    parts += ["## What cannot be shown here\n", table(("", "what, and why"), limits.items())]
    return "\n".join(parts).rstrip("\n") + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    naive = ", ".join(f"`{one.name}`" for one in row.naive) or ("none: a property" if not row.case.anomalies else "")
    remedies = ", ".join(f"`{one.name}`" for one in row.remedies)
    anomalies = ", ".join(f"`{anomaly}`" for anomaly in row.case.anomalies)
    gap = " **Not shown yet.**" if row.case.missing else ""
    return row.name, f"**{row.phenomenon.title}.** {row.phenomenon.about}{gap}", anomalies, naive, remedies
