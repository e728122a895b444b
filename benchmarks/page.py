"""How soon can the page of a large run be used? A run with as many findings, batches and events as its page can show, in Chromium.

``python benchmarks/page.py [RECORDS]``: needs Chromium and ``uv sync --group browser``. The time is from the start of the navigation
until all scripts have run and the browser has answered a click (the zoom of the timeline) with a new picture.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from onceproof.judge.findings import BatchReport, Finding, Outcome, StatedClaim, Verdict, Witness
from onceproof.judge.verdict import write_verdict
from onceproof.reports.html import files

_TIMES = 7
_BATCH = 1_000


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        page = files.write(made_up(Path(folder) / "run", records))
        print(f"{records:,} records: {page.stat().st_size:,} bytes")
        measured = sorted(measure(page))
    print(
        f"usable after {statistics.median(measured):.0f} ms (median of {_TIMES}; {measured[0]:.0f} to {measured[-1]:.0f})"
    )


def made_up(run: Path, records: int) -> Path:
    """A run directory with a violated verdict: every 50th record was written twice, over all batches."""
    run.mkdir()
    batches = records // _BATCH
    scenario = {"name": "large", "chaos": [], "outputs": {}}
    (run / "run.json").write_text(json.dumps({"scenario": scenario, "scenario_path": "large.yaml", "observed": True}))
    with (run / "events.jsonl").open("w") as events:
        for number in range(batches):
            chunk = {"topic": "in", "chunk": number + 1, "of": batches, "records": _BATCH}
            of = {"query": "q", "batch": number}
            for event in (
                {"at": number * 1.0, "kind": "feed.chunk", **chunk},
                {"at": number + 0.1, "kind": "batch.planned", **of},
                {"at": number + 0.9, "kind": "batch.committed", **of, "records": _BATCH},
            ):
                events.write(json.dumps(event) + "\n")
    witnesses = tuple(
        Witness(
            {"id": n},
            f"Input in/0@{n} is committed.\nBut the table holds 2 rows.",
            f"in/0@{n}",
            n // _BATCH,
            ("t xid 1",),
        )
        for n in range(0, records, max(records // 32, 1))
    )
    one = Finding("duplicate", "t", records // 50, f"{records // 50:,} extra rows", witnesses[:32])
    found = tuple(replace(one, output=f"t{n}") for n in range(40))
    reports = tuple(
        BatchReport("q", n, 0, 0, _BATCH, (), Outcome.VIOLATED, {"duplicate": _BATCH // 50}) for n in range(batches)
    )
    verdict = Verdict(
        "large",
        Outcome.VIOLATED,
        StatedClaim({"delivery": "effectively-once"}),
        ("duplicates",),
        found,
        batches=reports,
    )
    write_verdict(run, verdict)
    return run


def measure(page: Path) -> list[float]:
    """Milliseconds, each in a new context, so that nothing is cached."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        return [_usable_after(browser, page) for _ in range(_TIMES)]


_CLICK = """() => new Promise((done) => {
  document.querySelector('[data-zoom="in"]').click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0));
})"""


def _usable_after(browser: Any, page: Path) -> float:
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(page.as_uri(), wait_until="load")
    after: float = tab.evaluate(_CLICK)
    context.close()
    return after


if __name__ == "__main__":
    main()
