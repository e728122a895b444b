"""The page about two runs, or two qualifications: what is new, what is gone, what changed."""

from __future__ import annotations

from onceproof.reports.comparison import Comparison, Kind
from onceproof.reports.html.page import render
from onceproof.reports.html.run_page import SYMBOLS

_MARKS = {Kind.NEW: "+", Kind.GONE: "\u2212", Kind.CHANGED: "\u2260", Kind.SAME: "="}


def page(comparison: Comparison) -> str:
    sides = [
        (
            label,
            side,
            "none" if side.outcome is None else side.outcome.value,
            SYMBOLS[side.outcome] if side.outcome else "?",
        )
        for label, side in (("Old", comparison.old), ("New", comparison.new))
    ]
    return render(
        "comparison.html",
        title=comparison.statement,
        statement=comparison.statement,
        name=comparison.new.name,
        sides=sides,
        cautions=comparison.cautions,
        sections=comparison.sections,
        marks={kind.value: mark for kind, mark in _MARKS.items()},
    )
