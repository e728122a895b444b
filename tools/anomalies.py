"""Writes `docs/anomalies.md`, and the tables of other pages, from the checkers.

``python tools/anomalies.py`` writes them; with ``--check`` it only reports whether the pages are up to date (exit code 1 if not).
A table is between ``<!-- NAME: ... -->`` and ``<!-- end -->``; the rest of its page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from onceproof.judge.anomalies import Anomaly, anomalies, sections
from onceproof.scenario.outputs import Claim

DOCS = Path(__file__).parent.parent / "docs"

HEAD = """# The anomalies

Written by `python tools/anomalies.py` from the checkers; a test checks that it is up to date. `onceproof explain NAME` shows the same.

All anomalies are computed on every run, whatever is claimed. The claim then subtracts what it allows, each with a written
reason, and the report shows both ([claims](claims.md)).
"""


def main() -> int:
    pages = {DOCS / "anomalies.md": page(), **{DOCS / name: _filled(DOCS / name) for name in TABLES}}
    wrong = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        print(
            f"out of date: {', '.join(p.name for p in wrong)}; run python tools/anomalies.py" if wrong else "up to date"
        )
        return 1 if wrong else 0
    for path in wrong:
        path.write_text(pages[path], encoding="utf-8")
    return 0


def page() -> str:
    listed = list(anomalies())
    rows = ((f"[`{one.name}`](#{one.name})", one.meaning) for one in listed)
    return "\n".join([HEAD, _table(("anomaly", "meaning"), rows), *map(_section, listed)])


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

    return _table(
        ("claim", "of", "allows"), ((f"`{c}`" if ":" in c else c, f"`{n}`", w) for c, n, w in sorted(found, key=place))
    )


def dispensable() -> str:
    counted = ((one.name, one.checker.rule.counted_as) for one in anomalies())
    return _table(("anomaly", "what remains without it"), ((f"`{name}`", why) for name, why in counted if why))


def damages() -> str:
    rows = ((one.name, "; ".join(damage.about for damage in one.checker.damages)) for one in anomalies())
    return _table(("anomaly", "the damage"), ((f"`{name}`", about) for name, about in rows if about))


def company() -> str:
    rows = (
        (f"`{one.name}`", f"`{other}`", why) for one in anomalies() for other, why in one.checker.comes_with.items()
    )
    return _table(("found", "may come with", "because"), rows)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


#: Page -> name of a table -> the function that makes it.
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "claims.md": {"allowances": allowances, "dispensable": dispensable},
    "implications.md": {"damages": damages, "company": company},
}


def _filled(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for name, table in TABLES[path.name].items():
        before, start, rest = text.partition(f"<!-- {name}: written by python tools/anomalies.py -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(f"{path.name} has no place for the table {name!r}")
        text = f"{before}{start}{table()}{end}{after}"
    return text


if __name__ == "__main__":
    raise SystemExit(main())
