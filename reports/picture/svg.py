"""The picture of a run of consumers as one self-contained SVG, for light and dark displays; or as SVG in an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree as ET

from onceproof.base.visible import visible
from onceproof.reports import xml_text
from onceproof.reports.picture.picture import DrawnEffect, Hold, Picture, Row
from onceproof.reports.picture.words import in_words, label_of, message_of

_LEFT, _LANE, _TOP, _ROW = 52, 168, 92, 26
_CHIP, _CHIP_HEIGHT, _GAP, _HEADING = 152, 40, 12, 30
_NAME, _KEY = 20, 18

#: Rows within one lane that are drawn as a cross, and their labels.
_CROSSED = {"crash": "crash", "cut": "cut off", "stop": "stopped", "delete": "m{m} deleted", "skip": "m{m} skipped"}
_STYLE = """
:root { color-scheme: light dark; }
svg { --back: #ffffff; --ink: #1f2328; --faint: #6e7781; --line: #d0d7de; --box: #ddf4ff; --edge: #0969da; --bad: #cf222e; --badbox: #ffebe9; }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --box: #0f2d4a; --edge: #4493f8; --bad: #f85149; --badbox: #4b1113; }
}
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.title { font-size: 17px; font-weight: 600; } .head { font-weight: 600; } .small { font-size: 11px; fill: var(--faint); }
.lane { stroke: var(--line); stroke-width: 1.5; } .gone { stroke: var(--back); stroke-width: 4; } .dead { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 2 5; }
.hold { fill: var(--box); stroke: var(--edge); } .hold.bad { fill: var(--badbox); stroke: var(--bad); }
.arrow { stroke: var(--ink); stroke-width: 1.5; fill: none; } .arrow.ack { stroke: var(--faint); stroke-width: 1; stroke-dasharray: 3 3; }
.arrow.bad { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 7 4; } .tip { fill: var(--ink); } .tip.ack { fill: var(--faint); } .tip.bad, .badtext { fill: var(--bad); }
.badtext { font-weight: 600; } .cross { stroke: var(--bad); stroke-width: 4; } .back { fill: var(--back); }
.band { fill: transparent; } .event:hover .band { fill: var(--edge); fill-opacity: 0.12; }
.label { paint-order: stroke; stroke: var(--back); stroke-width: 5px; stroke-linejoin: round; }
"""


def render(picture: Picture) -> str:
    """The whole file. Texts of the scenario are escaped, and shortened if they are long: a tooltip then shows all of it."""
    drawing = _Drawing(picture)
    drawing.file()
    return drawing.text()


def inline(picture: Picture, anchor: str) -> tuple[str, str]:
    """Two pieces of SVG for a page that has a style for them: the names of the lanes, and the picture below them.

    Each event is a group of the class ``event`` that names its message and links to ``#<anchor><number>``, from 0.
    """
    head, body = _Drawing(picture), _Drawing(picture, anchor)
    head.head()
    body.body()
    return head.text(), body.text()


class _Drawing:
    def __init__(self, picture: Picture, anchor: str | None = None) -> None:
        """``anchor``: as `inline` takes it; None: no links."""
        self._picture = picture
        self._anchor = anchor
        self._width = max(_LEFT * 2 + _LANE * len(picture.lanes), 560)
        self._bottom = _TOP + _ROW * (len(picture.rows) + 1)
        self._across = max((self._width - 2 * _LEFT) // _CHIP, 1)
        lines = sum(-(-len(results) // self._across) for results in picture.by_queue().values())
        self._height = self._bottom + 24 + len(picture.by_queue()) * _HEADING + lines * (_CHIP_HEIGHT + _GAP)
        self._svg = ET.Element("svg")
        self._at = self._svg
        """What shapes are added to: the whole, or the group of an event."""

    def file(self) -> None:
        self._svg.attrib |= {"xmlns": "http" + "://www.w3.org/2000/svg", "role": "img"}
        self._box(0, self._height)
        ET.SubElement(self._svg, "title").text = _clean(self._picture.title)
        ET.SubElement(self._svg, "style").text = _STYLE
        self._add("rect", "back", width="100%", height="100%")
        self._write(16, 28, self._picture.title, "title", most=60)
        self._names()
        self._events()

    def head(self) -> None:
        self._svg.attrib |= {"class": "flow", "aria-hidden": "true"}
        self._box(_TOP - 52, 40)
        self._names()

    def body(self) -> None:
        self._svg.attrib |= {"class": "flow", "role": "group", "aria-label": "Which consumer had which message when"}
        self._box(_TOP - 12, self._height - _TOP + 12)
        self._events()

    def text(self) -> str:
        return ET.tostring(self._svg, encoding="unicode") + "\n"

    def _box(self, top: float, height: float) -> None:
        size = {"width": str(self._width), "height": str(height)}
        self._svg.attrib |= {"viewBox": f"0 {top} {self._width} {height}", **size}

    def _names(self) -> None:
        for number, lane in enumerate(self._picture.lanes):
            x = self._x(number)
            self._write(x, _TOP - 36, lane.name, "head", most=_NAME, middle=True)
            self._write(x, _TOP - 20, "" if lane.kind == lane.name else lane.caption or lane.kind, "small", middle=True)

    def _events(self) -> None:
        picture = self._picture
        for number in range(len(picture.lanes)):
            self._line("lane", self._x(number), _TOP - 12, self._x(number), self._bottom)
        for lane, first, last in picture.absences:
            self._absence(lane, first, last)
        for hold in picture.holds:
            self._hold(hold)
        tick = -1
        for number, row in enumerate(picture.rows):
            if row.tick != tick:
                self._write(12, self._y(number) + 4, f"t={row.tick}", "small")
                tick = row.tick
            with self._group(number, row):
                self._row(number, row)
        self._results()

    @contextmanager
    def _group(self, number: int, row: Row) -> Iterator[None]:
        """The shapes of one event, with a band across all lanes that answers to a pointer between them."""
        outer = self._at
        if self._anchor is not None:
            outer = ET.SubElement(outer, "a", {"href": f"#{self._anchor}{number}", "tabindex": "-1"})
        message = message_of(self._picture, number)
        self._at = ET.SubElement(outer, "g", {"class": "event", "data-message": f"m{message}" if message else ""})
        ET.SubElement(self._at, "title").text = _clean(f"t={row.tick}: {in_words(self._picture, number)}")
        self._add("rect", "band", x=0, y=self._y(number) - _ROW / 2, width=self._width, height=_ROW)
        yield
        self._at = self._svg

    def _absence(self, lane: int, first: int, last: int) -> None:
        x = self._x(lane)
        below = self._y(last) if last < len(self._picture.rows) else self._bottom
        self._line("gone", x, self._y(first), x, below)
        self._line("dead", x, self._y(first), x, below)

    def _hold(self, hold: Hold) -> None:
        x, top, below = self._x(hold.lane), self._y(hold.first), self._y(hold.last)
        style, message = "hold bad" if hold.crashed else "hold", f"m{hold.message}"
        height = below - top + 12
        made = self._add("rect", style, data_message=message, x=x - 7, y=top - 6, width=14, height=height, rx=4)
        ET.SubElement(made, "title").text = _clean(f"{self._picture.lanes[hold.lane].name} has {message}")

    def _row(self, number: int, row: Row) -> None:
        y, bad = (
            self._y(number),
            row.kind in ("again", "return", "refuse", "retry", "lost", "fenced", "fail", "dead-letter"),
        )
        if row.kind in _CROSSED:
            x = self._x(row.source)
            for one, other in ((-9, 9), (9, -9)):
                self._line("cross", x - 9, y + one, x + 9, y + other)
            self._write(x + 16, y + 5, _CROSSED[row.kind].format(m=row.message), "badtext label")
        elif row.kind in ("start", "resume"):
            self._write(
                self._x(row.source) + 12, y + 5, "back again" if row.kind == "start" else "resumed", "small label"
            )
        else:
            late = self._picture.is_late(row)
            style = " bad" if bad else " ack" if row.kind == "acknowledge" else ""
            self._arrow(self._x(row.source), self._x(row.target), y, style)
            kind = "badtext label" if bad or late else "small label" if row.kind == "acknowledge" else "label"
            self._write(self._mid(row), y - 6, label_of(row), kind, middle=True)

    def _mid(self, row: Row) -> float:
        """The place of an arrow's label: near its head, because arrows to distant lanes cross others on their way."""
        near = 1 if row.target > row.source else -1
        return self._x(row.target) - near * _LANE / 2

    def _arrow(self, start: float, end: float, y: float, style: str) -> None:
        way = 1 if end > start else -1
        start, end = start + 8 * way, end - 8 * way
        self._line(f"arrow{style}", start, y, end - 7 * way, y)
        self._add("polygon", f"tip{style}", points=f"{end},{y} {end - 9 * way},{y - 5} {end - 9 * way},{y + 5}")

    def _results(self) -> None:
        """One list per queue, because order is promised per queue."""
        several = len(self._picture.by_queue()) > 1
        y = self._bottom + 24.0
        for queue, results in self._picture.by_queue().items():
            of = f" of {queue}" if several else ""
            self._write(16, y, f"what came out{of}, in this order", "head", most=80)
            for number, result in enumerate(results):
                line, column = divmod(number, self._across)
                self._chip(_LEFT + column * _CHIP, y + 14 + line * (_CHIP_HEIGHT + _GAP), result)
            y += _HEADING + -(-len(results) // self._across) * (_CHIP_HEIGHT + _GAP)

    def _chip(self, x: float, y: float, result: DrawnEffect) -> None:
        bad = result.late or result.repeated
        self._at = self._add("g", "result", data_message=f"m{result.message}")
        remark = "  out of order" if result.late else "  again" if result.repeated else ""
        style = "hold bad" if bad else "hold"
        self._add("rect", style, x=x, y=y, width=_CHIP - 10, height=_CHIP_HEIGHT, rx=6)
        self._write(x + 10, y + 17, f"m{result.message}{remark}", "badtext" if bad else "head")
        self._write(x + 10, y + 32, result.key, "small", most=_KEY)
        self._at = self._svg

    def _x(self, lane: int) -> float:
        return _LEFT + _LANE * lane + _LANE / 2

    def _y(self, row: int) -> float:
        return _TOP + _ROW * row + _ROW / 2

    def _line(self, style: str, x1: float, y1: float, x2: float, y2: float) -> None:
        self._add("line", style, x1=x1, y1=y1, x2=x2, y2=y2)

    def _write(self, x: float, y: float, text: str, style: str, *, most: int = 80, middle: bool = False) -> None:
        text = _clean(text)
        anchor = {"text_anchor": "middle"} if middle else {}
        written = self._add("text", style, x=x, y=y, **anchor)
        written.text = text if len(text) <= most else f"{text[: most - 1]}\u2026"
        if len(text) > most:
            ET.SubElement(written, "title").text = text

    def _add(self, tag: str, style: str, **attributes: float | str) -> ET.Element:
        """A shape; ``_`` in the name of an attribute stands for ``-``."""
        named = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
        return ET.SubElement(self._at, tag, {"class": style, **named})


def _clean(text: str) -> str:
    """The text without characters that no XML document may contain, not even escaped. Control characters become visible."""
    return xml_text.legal(visible(text))
