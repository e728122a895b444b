"""The page about two runs, or two qualifications: what is new, what is gone, what changed."""

from __future__ import annotations

from typing import Any

from onceproof.reports.comparison import Comparison, Kind, Trend
from onceproof.reports.html.limits import some
from onceproof.reports.html.page import render_capped
from onceproof.reports.html.run_page import SYMBOLS

_MARKS = {Kind.NEW: "+", Kind.GONE: "\u2212", Kind.CHANGED: "\u2260", Kind.SAME: "="}


#: What became worse comes first.
_ORDER = (Trend.WORSE, Trend.BETTER, Trend.NONE)

#: (rows of a table, characters of a text). The page is rendered with the first with which it is small enough.
_SIZES = ((5_000, 4_000), (1_000, 500), (200, 100), (40, 60))


def page(comparison: Comparison) -> str:
    """The page, with at most `onceproof.reports.html.limits.MOST_BYTES`. Changes come first, so equal rows are left out first."""
    return render_capped("comparison.html", ((text, _values(comparison, rows)) for rows, text in _SIZES))


def _values(comparison: Comparison, most: int) -> dict[str, Any]:
    sections = [
        {
            "title": section.title,
            "changed": len(section.changes),
            "same": len(section.rows) - len(section.changes),
            "trends": [(n, one) for one in _ORDER[:2] if (n := sum(row.trend is one for row in section.rows))],
            "rows": some(sorted(section.rows, key=lambda row: (row.kind is Kind.SAME, _ORDER.index(row.trend))), most),
        }
        for section in comparison.sections
    ]
    sides = [
        (
            label,
            side,
            "none" if side.outcome is None else side.outcome.value,
            SYMBOLS[side.outcome] if side.outcome else "?",
        )
        for label, side in (("Old", comparison.old), ("New", comparison.new))
    ]
    return {
        "title": comparison.statement,
        "statement": comparison.statement,
        "name": comparison.new.name,
        "sides": sides,
        "cautions": comparison.cautions,
        "sections": sections,
        "marks": {kind.value: mark for kind, mark in _MARKS.items()},
    }
