"""How the texts are laid out: tables of names with descriptions, and labels with wrapped texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 80


def table(entries: Iterable[tuple[str, str]]) -> str:
    entries = list(entries)
    margin = max(len(name) for name, _ in entries) + 2
    return "\n".join(hanging(name, about, margin) for name, about in entries)


def hanging(label: str, text: str, margin: int = 12) -> str:
    """``label`` and next to it the text, wrapped, its lines aligned."""
    return textwrap.fill(
        text or "-",
        WIDTH,
        initial_indent=f"{label:<{margin - 1}} ",
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
