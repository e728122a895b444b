"""One item of evidence: what was seen of a fault, or was missing. Reports make sentences of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from textwrap import shorten

from pydantic import TypeAdapter

from onceproof.base.masking import masked

_LONGEST = 1000
"""Characters of what one item says, and of its detail."""


@dataclass(frozen=True)
class Evidence:
    what: str
    """What was seen, or was missing."""
    where: str = ""
    """Where the fault was to strike: ``batch 2 of flights at after-sink-commit``, ``message 3 after take``."""
    at: float | None = None
    """When it was known, seconds on the run's clock."""
    detail: str = ""
    """In the words of a service, of the job or of an error."""

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}" if self.detail else self.what

    def brief(self) -> Evidence:
        """It quotes the job, its sinks and Spark, who may have been told a secret, and may go on for pages."""
        what, detail = (shorten(masked(words), _LONGEST, placeholder=" ...") for words in (self.what, self.detail))
        return replace(self, what=what, detail=detail)


def items(said: Iterable[str | Evidence], where: str, at: float) -> tuple[Evidence, ...]:
    """All of it as items, each with where and when."""
    given = (one if isinstance(one, Evidence) else Evidence(one) for one in said)
    return tuple(replace(one, where=one.where or where, at=at if one.at is None else one.at) for one in given)


_ADAPTER = TypeAdapter(tuple[Evidence, ...])


def to_row(said: Iterable[str | Evidence]) -> dict[str, str]:
    """The columns of the history's table ``faults``: sentences, one a line, and the same as a JSON list of items."""
    given = tuple(one if isinstance(one, Evidence) else Evidence(one) for one in said)
    return {"evidence": "\n".join(map(str, given)), "seen": _ADAPTER.dump_json(given).decode()}


def from_row(evidence: str | None, seen: str | None) -> tuple[Evidence, ...]:
    """From those columns. An earlier version stored sentences only, and other programs may."""
    if seen is not None:
        try:
            return _ADAPTER.validate_json(seen)
        except ValueError:
            pass
    return tuple(map(Evidence, (evidence or "").splitlines()))
