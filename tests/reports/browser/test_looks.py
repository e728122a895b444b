"""What the pages look like, compared with pictures that a person has looked at.

After a wanted change: ``ONCEPROOF_NEW_LOOKS=1 tox -e browser``, look at the pictures in ``references/``, and commit them. They are
small (a third of the size) and compared with tolerance, because fonts are drawn a little differently from one version to the next.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from onceproof.reports.html.run_page import of_run

from ..made_up_flow import flow_run
from . import made_up_look

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full]

REFERENCES = Path(__file__).parent / "references"
WIDTHS = {390: 844, 820: 1180, 1440: 900}
_SMALLER = 3
#: Of 255: the mean difference of all pixels. The same page with another font has about 3, without its style more than 20.
_MOST_DIFFERENT = 6.0


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("looks")
    texts = {
        "run": made_up_look.run_page(folder),
        "qualification": made_up_look.qualification(folder),
        "flow": of_run(flow_run(folder / "flow")),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["run", "qualification", "flow"])
def test_a_page_looks_as_it_did(name: str, width: int, scheme: str, pages: dict[str, Path], chromium: Any) -> None:
    from PIL import Image, ImageChops, ImageStat

    with chromium.new_page(viewport={"width": width, "height": WIDTHS[width]}, color_scheme=scheme) as page:
        page.goto(pages[name].as_uri())
        if name == "flow":
            page.evaluate("document.getElementById('flow').scrollIntoView({behavior: 'instant'})")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nobody scrolls sideways to read"
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.resize((picture.width // _SMALLER, picture.height // _SMALLER), Image.Resampling.LANCZOS)
    file = REFERENCES / f"{name}-{width}-{scheme}.png"
    if os.environ.get("ONCEPROOF_NEW_LOOKS") == "1":
        REFERENCES.mkdir(exist_ok=True)
        small.quantize(32).save(file, optimize=True)
    known = Image.open(file).convert("RGB")
    assert known.size == small.size
    different = sum(ImageStat.Stat(ImageChops.difference(known, small)).mean) / 3
    assert different <= _MOST_DIFFERENT, f"{file.name}: mean difference {different:.1f}"


def test_the_comparison_notices_a_page_without_its_style(pages: dict[str, Path], chromium: Any, tmp_path: Path) -> None:
    from PIL import Image, ImageChops, ImageStat

    bare = tmp_path / "bare.html"
    bare.write_text(pages["run"].read_text().replace("<style>", "<style>/* another hash */"))
    with chromium.new_page(viewport={"width": 1440, "height": 900}) as page:
        page.goto(bare.as_uri())
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    small = picture.resize((480, 300), Image.Resampling.LANCZOS)
    known = Image.open(REFERENCES / "run-1440-light.png").convert("RGB")
    assert sum(ImageStat.Stat(ImageChops.difference(known, small)).mean) / 3 > _MOST_DIFFERENT


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_screen_shows_verdict_fix_and_command(width: int, pages: dict[str, Path], chromium: Any) -> None:
    height = WIDTHS[width]
    with chromium.new_page(viewport={"width": width, "height": height}) as page:
        page.goto(pages["run"].as_uri())
        for words in (
            "violated",
            "Claimed",
            "Injected",
            "Broken",
            "Fix for duplicate",
            "onceproof run /jobs/orders.yaml",
        ):
            box = page.get_by_text(words).first.bounding_box()
            assert box is not None and box["y"] + box["height"] <= height, words
