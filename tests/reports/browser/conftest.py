"""The Chromium of the system, driven by Playwright. Without one the tests are skipped; with ``ONCEPROOF_BROWSER=1`` they fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from ..test_html import hostile, judged, once
from ..test_html_other_pages import qualification

__all__ = ["hostile", "judged", "once", "qualification"]  # fixtures

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def _missing(what: str) -> NoReturn:
    if os.environ.get("ONCEPROOF_BROWSER") == "1":
        pytest.fail(f"{what}; ONCEPROOF_BROWSER=1 requires it")
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A `playwright.sync_api.Browser`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("no Playwright: uv sync --group browser")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        _missing("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        # As root, Chromium starts only without its sandbox. The pages are our own files.
        launched = playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    try:
        from axe_playwright_python.base import AXE_FILE_PATH
    except ImportError:
        _missing("no axe-core: uv sync --group browser")
    return str(AXE_FILE_PATH.read_text(encoding="utf-8"))
