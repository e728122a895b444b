"""The HTML pages in a real browser: the script runs, hostile text does not, and axe-core finds nothing to complain about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceproof.qualify import page as qualification_page
from onceproof.reports.html import comparison_page, files
from onceproof.reports.html.run_page import of_run
from onceproof.reports.report import RunSet, reports

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full]


def test_the_script_runs_and_makes_its_tools_visible(judged: Path, chromium: Any) -> None:
    with chromium.new_page() as page:
        page.goto(files.write(judged).as_uri())
        tools = page.locator("[data-needs-script]")
        assert tools.count() >= 2 and all(tool.is_visible() for tool in tools.all())
        before = page.locator(".zx").first.get_attribute("transform")
        page.get_by_role("button", name="Zoom in").click()
        assert page.locator(".zx").first.get_attribute("transform") != before


def test_without_scripts_the_page_says_the_same(judged: Path, chromium: Any) -> None:
    """Some CI servers block the scripts of what a build wrote."""
    with chromium.new_context(java_script_enabled=False) as context, context.new_page() as page:
        page.goto(files.write(judged).as_uri())
        assert page.get_by_text("onceproof explain wrong-value").is_visible()
        assert page.locator("mark").first.is_visible() and page.locator("svg.time").first.is_visible()
        assert not any(tool.is_visible() for tool in page.locator("[data-needs-script]").all())


def test_the_search_narrows_the_findings(judged: Path, chromium: Any) -> None:
    with chromium.new_page() as page:
        page.goto(files.write(judged).as_uri())
        shown = page.locator(".witness:visible")
        every = shown.count()
        page.get_by_label("Search the findings").fill("999")
        assert 0 < shown.count() < every
        assert page.locator("#matches").inner_text() == f"{shown.count()} of {every} shown rows match"


def test_hostile_text_runs_nothing(hostile: Path, tmp_path: Path, chromium: Any) -> None:
    written = tmp_path / "page.html"
    written.write_text(of_run(hostile).replace("alert(1)", "document.documentElement.id=&#39;pwned&#39;"))
    with chromium.new_page() as page:
        dialogs: list[object] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
        page.goto(written.as_uri())
        assert page.evaluate("document.documentElement.id") == "" and dialogs == []


def test_an_inline_script_of_others_is_blocked_by_the_policy(judged: Path, tmp_path: Path, chromium: Any) -> None:
    written = tmp_path / "page.html"
    foreign = "<script>document.documentElement.id='pwned'</script></body>"
    written.write_text(of_run(judged).replace("</body>", foreign))
    with chromium.new_page() as page:
        page.goto(written.as_uri())
        assert page.evaluate("document.documentElement.id") == ""


def test_the_page_asks_no_server(judged: Path, chromium: Any) -> None:
    with chromium.new_page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        written = files.write(judged)
        page.goto(written.as_uri())
        page.wait_for_load_state("networkidle")
    assert asked == [written.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize("which", ["run", "hostile", "qualification", "index", "comparison"])
def test_axe_finds_no_violation(
    which: str,
    width: int,
    scheme: str,
    hostile: Path,
    once: Path,
    qualification: Path,
    everything: RunSet,
    tmp_path: Path,
    chromium: Any,
    axe: str,
) -> None:
    texts = {
        "run": lambda: of_run(once),
        "hostile": lambda: of_run(hostile),
        "qualification": lambda: qualification_page.write(qualification).read_text(),
        "index": lambda: reports.get("html")().render(everything),
        "comparison": lambda: comparison_page.page(qualification_page.compared(qualification, qualification)),
    }
    written = tmp_path / "page.html"
    written.write_text(texts[which]())
    with chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.goto(written.as_uri())
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]] == []
    assert len(found["passes"]) > 10, "it looked at the page"
