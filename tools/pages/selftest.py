"""The tables of `docs/selftest.md`, from the catalogue of planted bugs and from `docs/selftest.json`, which `selftest --store` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onceproof.planted import catalogue, results
from onceproof.planted.catalogue import Bug
from onceproof.planted.results import Results
from onceproof.planted.table import HEAD, cells, problems, summary
from pages.page import DOCS, filled, table

PAGE = DOCS / "selftest.md"
RESULTS = DOCS / "selftest.json"
#: Of all versions that a run stores.
SHOWN = ("kafka", "postgres", "pyspark", "python")


def files() -> dict[Path, str]:
    bugs = catalogue.read()
    found = results.read(RESULTS).items()
    # A result about another finding than the one that is named now is none.
    stored = {name: result for name, result in found if name in bugs and result.named == bugs[name].named}
    return {
        PAGE: filled(
            PAGE,
            {
                "results": _results(bugs, stored),
                "runs": table(("onceproof", "services", "dates of the runs", "in all"), _runs(stored)),
                "differences": table(("planted bug", "run", "why"), _differences(stored)),
                "bugs": table(("planted bug", "what is wrong", "what people think"), _bugs(bugs)),
            },
        )
    }


def _results(bugs: dict[str, Bug], stored: Results) -> str:
    rows = (cells(bug, stored.get(name)) for name, bug in bugs.items())
    return table(HEAD, ((f"`{first}`", *rest) for first, *rest in rows))


def _runs(stored: Results) -> Iterator[tuple[str, ...]]:
    if not stored:
        yield "", "", "not run", ""
        return
    dates = sorted({result.date for result in stored.values()})
    versions = sorted({result.onceproof for result in stored.values()})
    services = sorted({f"{k} {v}" for result in stored.values() for k, v in result.versions.items() if k in SHOWN})
    shown = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    yield ", ".join(versions), ", ".join(services), shown, summary(stored)


def _differences(stored: Results) -> Iterator[tuple[str, ...]]:
    for name, result in stored.items():
        for what, each in problems(result):
            yield f"`{name}`", what, each.why.replace("|", "/")


def _bugs(bugs: dict[str, Bug]) -> Iterator[tuple[str, ...]]:
    for name, bug in bugs.items():
        yield f"`{name}`", bug.wrong, bug.belief
