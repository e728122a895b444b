"""One item of evidence for or against a hit: what was seen, or was missing, where and when. Reports show items as sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from textwrap import shorten

from pydantic import TypeAdapter

from onceproof.base.masking import masked

_LONGEST = 1000
"""Maximum number of characters of ``what``, and of ``detail``."""


@dataclass(frozen=True)
class Evidence:
    what: str
    """What was seen, or was missing."""
    where: str = ""
    """The position of the fault: ``batch 2 of flights at after-sink-commit``, ``message 3 after take``."""
    at: float | None = None
    """When it became known, seconds of the run's clock."""
    detail: str = ""
    """A quote of a service, of the job or of an error."""

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}" if self.detail else self.what

    def brief(self) -> Evidence:
        """The item masked and shortened: the job, its sinks and Spark, which it quotes, may write secrets and long messages."""
        what, detail = (shorten(masked(text), _LONGEST, placeholder=" ...") for text in (self.what, self.detail))
        return replace(self, what=what, detail=detail)


def items(evidence: Iterable[str | Evidence], where: str, at: float) -> tuple[Evidence, ...]:
    """All evidence as items; those without a place and time get these."""
    given = (one if isinstance(one, Evidence) else Evidence(one) for one in evidence)
    return tuple(replace(one, where=one.where or where, at=at if one.at is None else one.at) for one in given)


_ADAPTER = TypeAdapter(tuple[Evidence, ...])


def to_row(evidence: Iterable[str | Evidence]) -> dict[str, str]:
    """Two columns of the history's table ``faults``: the sentences, one per line, and the same as a JSON list of items."""
    given = tuple(one if isinstance(one, Evidence) else Evidence(one) for one in evidence)
    return {"evidence": "\n".join(map(str, given)), "seen": _ADAPTER.dump_json(given).decode()}


def from_row(evidence: str | None, seen: str | None) -> tuple[Evidence, ...]:
    """The items from these two columns. ``seen`` may be None: an earlier version, and other programs, store only sentences."""
    if seen is not None:
        try:
            return _ADAPTER.validate_json(seen)
        except ValueError:
            pass
    return tuple(map(Evidence, (evidence or "").splitlines()))
