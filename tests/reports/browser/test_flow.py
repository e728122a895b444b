"""The picture of the message flow in a real browser: pointer, keyboard, zoom, without scripts, on a phone, in print, and for axe-core."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.reports.html import files

from ..made_up_flow import STEPS, flow_run

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files.write(flow_run(tmp_path_factory.mktemp("flow") / "run"))


@pytest.fixture
def opened(written: Path, chromium: Any) -> Iterator[Any]:
    with chromium.new_page(viewport={"width": 1200, "height": 900}) as page:
        page.goto(written.as_uri())
        yield page


def now(page: Any) -> str:
    return str(page.locator("#flow-now").inner_text())


def followed(page: Any) -> set[str]:
    """The messages of what is not faint."""
    return set(page.evaluate("[...document.querySelectorAll('.following .followed')].map(one => one.dataset.message)"))


def event(page: Any, number: int) -> Any:
    return page.locator(".event").nth(number)


def point_at(page: Any, number: int) -> None:
    event(page, number).scroll_into_view_if_needed()
    box = event(page, number).locator(".band").bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + box["height"] / 2)


def test_hovering_an_event_says_what_it_is_and_emphasises_its_message(opened: Any) -> None:
    assert now(opened) == "No event is selected."
    point_at(opened, STEPS.index("c1 again 2"))
    assert now(opened) == "t=6: c1 takes m2 from orders, which had been given out before"
    assert followed(opened) == {"m2"}
    faint = opened.evaluate("getComputedStyle(document.querySelector('.event[data-message=m1]')).opacity")
    assert float(faint) < 0.5
    point_at(opened, STEPS.index("c2 crash"))
    assert now(opened) == "t=4: c2 dies while it has m2", "the message that it had, though its event names none"
    opened.mouse.move(5, 5)
    assert followed(opened) == set() and now(opened) == "No event is selected."


def test_a_click_selects_an_event_and_a_second_one_follows_its_message(opened: Any) -> None:
    point_at(opened, 5)
    opened.mouse.down(), opened.mouse.up()
    assert opened.locator(".event.current").count() == 1 and "#flow-" not in opened.url
    opened.mouse.down(), opened.mouse.up()
    opened.mouse.move(5, 5)
    assert followed(opened) == {"m2"} and opened.locator("#flow-message").input_value() == "m2"
    assert now(opened) == "t=2: c2 takes m2 from orders", "the selected event, once the pointer is elsewhere"


def test_the_keyboard_walks_through_the_events_and_along_one_message(opened: Any) -> None:
    region = opened.locator(".flowbox")
    region.focus()
    said = []
    for key in ("ArrowDown", "ArrowDown", "End", "ArrowDown", "Home", "ArrowDown", "ArrowDown", "Enter"):
        opened.keyboard.press(key)
        said.append(now(opened))
    first, last = "t=0: m1 is published to orders", "t=9: c2 acknowledges m4"
    assert said[:5] == [first, "t=0: c1 takes m1 from orders", last, last, first]
    along = [now(opened)]
    for _ in range(20):
        opened.keyboard.press("ArrowDown")
        along.append(now(opened))
    assert list(dict.fromkeys(along)) == [
        "t=1: m2 is published to orders",
        "t=2: c2 takes m2 from orders",
        "t=4: c2 dies while it has m2",
        "t=4: orders has m2 of c2 again",
        "t=6: c1 takes m2 from orders, which had been given out before",
        "t=6: c1 writes m2 to processed, out of order",
        "t=7: c1 acknowledges m2",
    ]
    opened.keyboard.press("Escape")
    assert followed(opened) == set() and now(opened) == "No event is selected."


def test_a_message_is_chosen_by_name(opened: Any) -> None:
    choice = opened.locator("#flow-message")
    assert choice.locator("option").all_inner_texts() == ["all messages", "m1", "m2", "m3", "m4"]
    choice.select_option("m3")
    assert followed(opened) == {"m3"} and now(opened) == "t=3: m3 is published to orders"
    opened.get_by_role("button", name="Next event").click()
    assert now(opened) == "t=3: c1 takes m3 from orders"
    choice.select_option("")
    assert followed(opened) == set()


def test_the_picture_zooms_and_the_names_of_the_lanes_stay_in_place(opened: Any) -> None:
    head, body = (opened.locator("svg.flow").nth(number) for number in (0, 1))
    width = body.bounding_box()["width"]
    for _ in range(4):
        opened.get_by_role("button", name="Zoom in").nth(-1).click()
    assert body.bounding_box()["width"] == pytest.approx(width * 1.25**4, rel=0.01)
    opened.locator(".flowbox").focus()
    opened.keyboard.press("End")
    assert head.bounding_box()["width"] == pytest.approx(body.bounding_box()["width"])
    # At one moment: the page may still scroll.
    region, *tops = opened.evaluate(
        "[...document.querySelectorAll('.flowbox, svg.flow')].map(one => one.getBoundingClientRect().top)"
    )
    assert tops[0] == pytest.approx(region, abs=2) and tops[1] < region - 100, (
        "the picture is scrolled, and not the names"
    )
    region = opened.locator(".flowbox").bounding_box()
    opened.get_by_role("button", name="Fit the width").click()
    assert body.bounding_box()["width"] == pytest.approx(region["width"], abs=30)
    opened.locator(".flowbox").focus()
    opened.keyboard.press("0")
    assert body.bounding_box()["width"] == pytest.approx(width)


def test_on_a_phone_a_step_shows_the_event_and_the_page_does_not_scroll_sideways(written: Path, chromium: Any) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with chromium.new_context(**phone) as context, context.new_page() as page:
        page.goto(written.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for _ in range(9):
            page.get_by_role("button", name="Next event").tap()
        assert now(page) == "t=4: c2 dies while it has m2"
        region, cross = (
            page.locator(".flowbox").bounding_box(),
            page.locator(".event.current .cross").first.bounding_box(),
        )
        assert region["x"] <= cross["x"] and cross["x"] + cross["width"] <= region["x"] + region["width"]
        event(page, 9).locator("text").first.tap()
        assert now(page) == "t=4: orders has m2 of c2 again"


def test_without_scripts_an_event_leads_to_its_words(written: Path, chromium: Any) -> None:
    with chromium.new_context(java_script_enabled=False) as context, context.new_page() as page:
        page.goto(written.as_uri())
        assert page.locator("svg.flow").nth(1).is_visible() and not page.locator("#flow-message").is_visible()
        assert event(page, 8).locator("title").text_content() == "t=4: c2 dies while it has m2"
        event(page, 8).click()
        row = page.locator("#flow-8")
        assert page.url.endswith("#flow-8") and row.is_visible(), "the browser opens the list"
        assert row.inner_text().split("\t") == ["4", "m2", "c2 dies while it has m2"]
        assert page.get_by_text("what came out: m1, m3, m2 (out of order), m4").is_visible()


def test_in_print_the_whole_picture_is_there_and_nothing_is_faint(opened: Any) -> None:
    opened.locator("#flow-message").select_option("m3")
    opened.set_viewport_size({"width": 700, "height": 900})
    opened.emulate_media(media="print")
    body, region = opened.locator("svg.flow").nth(1).bounding_box(), opened.locator(".flowbox").bounding_box()
    assert body["width"] <= 700 and body["height"] <= region["height"], "it is not cut off at the height of its region"
    assert opened.evaluate("getComputedStyle(document.querySelector('.event[data-message=m1]')).opacity") == "1"
    assert not opened.locator("#flow-message").is_visible()
    assert len(opened.pdf()) > 10_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_axe_finds_no_violation_and_dark_is_dark(
    width: int, scheme: str, written: Path, chromium: Any, axe: str
) -> None:
    from PIL import Image, ImageStat

    with chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        page.goto(written.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found["violations"]] == []
        picture = Image.open(io.BytesIO(page.locator(".flowbox").screenshot())).convert("L")
    assert (ImageStat.Stat(picture).mean[0] < 60) is (scheme == "dark")


def test_hostile_names_do_nothing(tmp_path: Path, chromium: Any) -> None:
    name = "</title></svg><img src=x onerror=document.documentElement.id='pwned'>\u202e"
    page_file = files.write(flow_run(tmp_path / "run", queue=name))
    with chromium.new_page() as page:
        page.goto(page_file.as_uri())
        assert page.evaluate("document.documentElement.id") == "" and page.locator("img").count() == 0
        point_at(page, 1)
        assert now(page).startswith("t=0: c1 takes m1 from </title>") and r"\u202e" in now(page)


def test_the_largest_picture_that_a_page_has_is_usable_at_once(tmp_path: Path, chromium: Any) -> None:
    steps = [
        w for n in range(1, 201) for w in (f"publish {n}", f"c1 take {n}", f"c1 effect {n}", f"c1 acknowledge {n}")
    ]
    page_file = files.write(flow_run(tmp_path / "run", *steps))
    assert page_file.stat().st_size < 1_000_000
    with chromium.new_page() as page:
        page.goto(page_file.as_uri())
        assert page.locator(".event").count() == 800
        page.locator(".flowbox").focus()
        took = page.evaluate(
            """() => new Promise((done) => { const began = performance.now();
              document.querySelector('.flowbox').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}));
              document.querySelector('.flowbox').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
              requestAnimationFrame(() => setTimeout(() => done(performance.now() - began), 0)); })"""
        )
        assert now(page) == "t=399: c1 acknowledges m200" and took < 1_000
