"""``list``: the shipped scenarios. Imports no registry: only the text of their files is wanted."""

from __future__ import annotations

import itertools
import json
import shutil
import textwrap

from onceproof.cli.show.layout import WIDTH
from onceproof.scenario_files.library import entries

#: If the output is not a terminal: lines of a log may be longer.
_WIDE = 120


def listing_of_scenarios(as_json: bool) -> str:
    """One line per shipped scenario, grouped by the result that it expects: the anomalies, or held."""
    shown = sorted(entries(), key=lambda one: (one.shows != [], one.shows, one.name))
    if as_json:
        documents = [
            {"name": one.name, "about": one.about, "shows": one.shows, "phenomena": one.phenomena} for one in shown
        ]
        return json.dumps({"scenarios": documents})
    margin = max(len(one.name) for one in shown) + 4
    width = max(WIDTH, shutil.get_terminal_size((_WIDE, 24)).columns)
    lines = ["The shipped scenarios, by the verdict or the anomalies that a run of each is expected to show."]
    for what, group in itertools.groupby(shown, key=lambda one: one.shows):
        lines += ["", f"{', '.join(what)}:" if what else "held:"]
        for one in group:
            lines.append(f"  {one.name:<{margin - 2}}{textwrap.shorten(one.about, width - margin, placeholder=' ...')}")
    return "\n".join([*lines, "", "in full: onceproof plan NAME; to run one: onceproof run NAME"])
