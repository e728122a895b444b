"""The HTML pages in a real browser: the script runs, hostile text does not, and axe-core finds nothing to complain about.

The browser is Chromium; without one, the tests are skipped. For axe-core, ``AXE_CORE`` must hold the path of its ``axe.min.js``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from onceproof.qualify import page as qualification_page
from onceproof.reports.html import files
from onceproof.reports.html.run_page import of_run
from onceproof.reports.report import RunSet, reports

from .test_html import hostile, judged, once
from .test_html_other_pages import qualification

__all__ = ["hostile", "judged", "once", "qualification"]  # fixtures

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full]

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on PATH: apt-get install chromium")
AXE = Path(os.environ.get("AXE_CORE", ""))
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="AXE_CORE does not name an axe.min.js: npm install axe-core")
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000")


def in_browser(page: Path, folder: Path, *more: str) -> str:
    """The page's DOM after its scripts have run."""
    command = [str(BROWSER), *HEADLESS, f"--user-data-dir={folder / 'profile'}", *more, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@needs_browser
def test_the_script_runs_and_makes_its_tools_visible(judged: Path, tmp_path: Path) -> None:
    dom = in_browser(files.write(judged), tmp_path)
    assert dom.count("data-needs-script") >= 2 and 'hidden="" data-needs-script' not in dom
    assert 'class="zx" transform="matrix(' in dom, "the policy lets our own script run"


@needs_browser
def test_hostile_text_runs_nothing(hostile: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(of_run(hostile).replace("alert(1)", "document.documentElement.id=&#39;pwned&#39;"))
    assert '<html lang="en">' in in_browser(page, tmp_path)


@needs_browser
def test_an_inline_script_of_others_is_blocked_by_the_policy(judged: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    foreign = "<script>document.documentElement.id='pwned'</script></body>"
    page.write_text(of_run(judged).replace("</body>", foreign))
    assert 'id="pwned"' not in in_browser(page, tmp_path)


@needs_browser
@needs_axe
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("which", ["run", "hostile", "qualification", "index"])
def test_axe_finds_no_violation(
    which: str,
    width: int,
    dark: bool,
    hostile: Path,
    once: Path,
    qualification: Path,
    everything: RunSet,
    tmp_path: Path,
) -> None:
    texts = {
        "run": lambda: of_run(once),
        "hostile": lambda: of_run(hostile),
        "qualification": lambda: qualification_page.write(qualification).read_text(),
        "index": lambda: reports.get("html")().render(everything),
    }
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", texts[which]())
    asks = """axe.run().then((found) => { const box = document.createElement("pre"); box.id = "axe";
              box.textContent = "AXE" + JSON.stringify(found.violations.map((v) => [v.id, v.nodes[0].html])) + "END";
              document.body.append(box); });"""
    page = tmp_path / "page.html"
    page.write_text(text.replace("</body>", f"<script>{AXE.read_text()}</script><script>{asks}</script></body>"))
    theme = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    dom = in_browser(page, tmp_path, f"--window-size={width},900", *theme)
    found = re.search(r'<pre id="axe">AXE(.*?)END', dom, re.DOTALL)
    assert found is not None, "axe has not ended"
    assert json.loads(found[1]) == []
