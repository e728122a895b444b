"""Parts of generated pages: tables, and their places in pages that are otherwise written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


def filled(path: Path, tables: Mapping[str, str]) -> str:
    """Return the text of a page with its tables (name -> text) replaced, each between ``<!-- NAME: ... -->`` and ``<!-- end -->``."""
    text = path.read_text(encoding="utf-8")
    for name, made in tables.items():
        before, start, rest = text.partition(f"<!-- {name}: written by python tools/generate.py -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise SystemExit(f"{path.name} has no place for the table {name!r}")
        text = f"{before}{start}{made}{end}{after}"
    return text
