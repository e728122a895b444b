"""The version of a stored run's format, and what to say about a run of another version."""

from __future__ import annotations

from onceproof.base.errors import HistoryError

VERSION = 2
JUDGE_THERE = "judge it with the onceproof that wrote it, or run the scenario again"


def other_version(schema: object, onceproof: object) -> str | None:
    """One sentence if the fields of a ``run.json`` say that it is of another version. Without a schema it is of this one."""
    if schema is None or schema == VERSION or isinstance(schema, bool) or not isinstance(schema, int | float | str):
        return None
    age = "another" if isinstance(schema, str) else "an older" if schema < VERSION else "a newer"
    who = f"{age} version of onceproof ({onceproof})" if isinstance(onceproof, str) else f"{age} version of onceproof"
    return f"{who} wrote this run: run.json has schema {schema!r}, and this onceproof reads schema {VERSION}"


def refuse_other_version(schema: object, onceproof: object) -> None:
    """Raises `HistoryError` if a record with these fields is of another version."""
    if (other := other_version(schema, onceproof)) is not None:
        raise HistoryError(other, hint=JUDGE_THERE)
