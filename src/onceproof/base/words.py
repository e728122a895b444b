"""Counted nouns for messages."""

from __future__ import annotations


def times(count: int, noun: str) -> str:
    """``1 row``, ``1,986 rows``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith(("s", "ch", "x")) else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"
