"""The explanation of each anomaly, from its checker: the text of `onceproof explain` and of generated parts of ``docs/``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from onceproof.judge.checker import Checker, Explanation, checkers


@dataclass(frozen=True)
class Anomaly:
    """One anomaly with its explanation."""

    name: str
    checker: type[Checker]

    @property
    def meaning(self) -> str:
        return self.checker.meaning

    @property
    def explanation(self) -> Explanation:
        return self.checker.explanation

    @property
    def allowed(self) -> tuple[tuple[str, str], ...]:
        """(claim in words, what it allows), in the order in which a finding is checked against them."""
        return tuple((_in_words(dict(one.claim)), one.what) for one in self.checker.rule.allows)

    def to_json(self) -> dict[str, Any]:
        return {
            "anomaly": self.name,
            "meaning": self.meaning,
            "rule": inspect.cleandoc(self.checker.__doc__ or ""),
            **asdict(self.explanation),
            "stops": self.explanation.advice,
            "allowed": [{"claim": dict(one.claim), "what": one.what} for one in self.checker.rule.allows],
            "comes_with": dict(self.checker.comes_with),
        }


def _in_words(claim: dict[str, str]) -> str:
    return ", ".join(f"{promise}: {level}" for promise, level in claim.items()) or "any claim"


def anomalies() -> Iterator[Anomaly]:
    """All registered anomalies, sorted by name."""
    for name, checker in checkers.items():
        yield Anomaly(name, checker)


def anomaly(name: str) -> Anomaly:
    """Look up one anomaly. Raises `KeyError`, with a suggestion, if no checker has this name."""
    return Anomaly(name, checkers.get(name))


def sections(one: Anomaly) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Headings and their paragraphs (several: a list), in reading order, without the empty ones."""
    text = one.explanation
    yield "what it means", (f"{one.meaning[:1].upper()}{one.meaning[1:]}.",)
    for heading, paragraphs in (
        ("for example", (text.example,)),
        ("how it comes about", text.causes),
        ("how it is decided", (text.decided,)),
        ("what a claim allows", tuple(f"With {claim}, {what}." for claim, what in one.allowed) or ("Nothing.",)),
        ("what may come with it", tuple(f"{other}: {why}." for other, why in one.checker.comes_with.items())),
        ("what stops it", text.advice),
        ("read on", text.sources),
    ):
        if any(paragraphs):
            yield heading, paragraphs
