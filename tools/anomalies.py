"""Write `docs/anomalies.md` from what the checkers say of themselves: a section an anomaly.

``python tools/anomalies.py`` writes it; with ``--check`` it only tells whether the page is still true (exit code 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

from onceproof.judge.anomalies import Anomaly, anomalies, sections

PAGE = Path(__file__).parent.parent / "docs" / "anomalies.md"

HEAD = """# The anomalies

Written by `python tools/anomalies.py` from the checkers; a test holds the two together. `onceproof explain NAME` shows the same.

All of them are computed on every run, whatever is claimed. The claim then subtracts what it allows, each with a written
reason, and the report shows both.
"""


def main() -> int:
    page = render()
    if "--check" in sys.argv[1:]:
        true = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page
        print("true" if true else f"{PAGE.name} is out of date: run python tools/anomalies.py")
        return 0 if true else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def render() -> str:
    listed = list(anomalies())
    table = [f"| [`{one.name}`](#{one.name}) | {one.meaning} |" for one in listed]
    return "\n".join([HEAD, "| anomaly | meaning |", "| --- | --- |", *table, "", *map(_section, listed)])


def _section(one: Anomaly) -> str:
    lines = [f"## {one.name}", ""]
    for heading, paragraphs in sections(one):
        if len(paragraphs) == 1:
            lines += [f"**{heading.capitalize()}.** {paragraphs[0]}", ""]
        else:
            lines += [f"**{heading.capitalize()}.**", "", *(f"- {text}" for text in paragraphs), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
