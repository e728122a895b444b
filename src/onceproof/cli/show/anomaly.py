"""``explain``: one anomaly in full, or the list of all."""

from __future__ import annotations

import json
import textwrap

from onceproof.base.errors import UsageError
from onceproof.base.registry import suggest
from onceproof.cli.show.layout import WIDTH, table
from onceproof.judge.anomalies import anomalies, anomaly, sections


def explained(name: str | None, as_json: bool) -> str:
    """One anomaly in full, or the list of all. Raises `UsageError` for an unknown name."""

    if name is None:
        entries = [(one.name, one.meaning) for one in anomalies()]
        if as_json:
            return json.dumps({"anomalies": [{"name": name, "meaning": meaning} for name, meaning in entries]})
        return f"{table(entries)}\n\nin full: onceproof explain ANOMALY"
    try:
        one = anomaly(name)
    except KeyError:
        near = suggest(name, [each.name for each in anomalies()])
        raise UsageError(f"there is no anomaly {name!r}; {near}", hint="list them: onceproof explain") from None
    if as_json:
        return json.dumps(one.to_json())
    blocks = [one.name]
    for heading, paragraphs in sections(one):
        item = "- " if len(paragraphs) > 1 else ""
        filled = [
            textwrap.fill(
                f"{item}{text}",
                WIDTH,
                initial_indent="  ",
                subsequent_indent=f"  {' ' * len(item)}",
                break_on_hyphens=False,
            )
            for text in paragraphs
        ]
        blocks.append("\n".join([heading, *filled]))
    return "\n\n".join(blocks)
