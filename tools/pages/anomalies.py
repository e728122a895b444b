"""`docs/anomalies.md`, and the tables of other pages about anomalies, from the checkers."""

from __future__ import annotations

from pathlib import Path

from onceproof.judge.anomalies import Anomaly, anomalies, sections
from onceproof.scenario.outputs import Claim
from pages.page import DOCS, filled, table

HEAD = """# The anomalies

Written by `python tools/generate.py` from the checkers; a test checks that it is up to date. `onceproof explain NAME` shows the same.

All anomalies are computed on every run, whatever is claimed. The claim then subtracts what it allows, each with a written
reason, and the report shows both ([claims](claims.md)).
"""


def files() -> dict[Path, str]:
    claims = {"allowances": allowances(), "dispensable": dispensable()}
    implications = {"damages": damages(), "company": company()}
    return {
        DOCS / "anomalies.md": page(),
        DOCS / "claims.md": filled(DOCS / "claims.md", claims),
        DOCS / "implications.md": filled(DOCS / "implications.md", implications),
    }


def page() -> str:
    listed = list(anomalies())
    rows = ((f"[`{one.name}`](#{one.name})", one.meaning) for one in listed)
    return "\n".join([HEAD, table(("anomaly", "meaning"), rows), *map(_section, listed)])


def _section(one: Anomaly) -> str:
    lines = [f"## {one.name}", ""]
    for heading, paragraphs in sections(one):
        if len(paragraphs) == 1:
            lines += [f"**{heading.capitalize()}.** {paragraphs[0]}", ""]
        else:
            lines += [f"**{heading.capitalize()}.**", "", *(f"- {text}" for text in paragraphs), ""]
    return "\n".join(lines)


def allowances() -> str:
    """Return the table, claim by claim in the order of the model's fields; what every claim allows comes last."""
    found = [(claim, one.name, what) for one in anomalies() for claim, what in one.allowed]
    fields = list(Claim.model_fields)

    def place(row: tuple[str, str, str]) -> tuple[int, str]:
        promise = row[0].partition(":")[0]
        return (fields.index(promise) if promise in fields else len(fields), row[0])

    return table(
        ("claim", "of", "allows"), ((f"`{c}`" if ":" in c else c, f"`{n}`", w) for c, n, w in sorted(found, key=place))
    )


def dispensable() -> str:
    counted = ((one.name, one.checker.rule.counted_as) for one in anomalies())
    return table(("anomaly", "what remains without it"), ((f"`{name}`", why) for name, why in counted if why))


def damages() -> str:
    rows = ((one.name, "; ".join(damage.about for damage in one.checker.damages)) for one in anomalies())
    return table(("anomaly", "the damage"), ((f"`{name}`", about) for name, about in rows if about))


def company() -> str:
    rows = (
        (f"`{one.name}`", f"`{other}`", why) for one in anomalies() for other, why in one.checker.comes_with.items()
    )
    return table(("found", "may come with", "because"), rows)
