"""Draws a timeline and its plots as inline SVG. What it shows needs no script; a script can zoom it.

Shapes are in groups of class ``zx``, which a zoom stretches; labels are in groups ``zm`` with their place in ``data-x``, which
a zoom only moves. Every shape has a ``<title>``, which browsers show on hover and screen readers read.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from markupsafe import Markup

from onceproof.base.visible import visible
from onceproof.reports import xml_text
from onceproof.reports.html.limits import short
from onceproof.reports.html.timeline import Bar, Lane, Plot, Tick, Timeline, Window

_LEFT, _WIDTH, _LANE, _TOP, _AXIS = 192, 798, 30, 34, 26
_PLOT = 96
_NAME = 25
#: Below this many pixels a bar has no label.
_ROOM = 12
_LONGEST = 300


def draw_timeline(timeline: Timeline, rows: frozenset[str]) -> Markup:
    """The lanes with the windows of the faults. ``rows``: the anchors that exist in the page, of events and of faults."""
    return _Lanes(timeline, rows).markup()


def draw_plot(plot: Plot, timeline: Timeline) -> Markup:
    return _Plotted(plot, timeline).markup()


class _Drawing:
    def __init__(self, timeline: Timeline, height: float, name: str) -> None:
        self.timeline = timeline
        self._per_s = _WIDTH / max(timeline.span, 1e-6)
        total = height + _AXIS
        box = {
            "viewBox": f"0 0 {_LEFT + _WIDTH + 10} {total:g}",
            "role": "group",
            "aria-label": _clean(name),
            "class": "time",
        }
        self.root = ET.Element("svg", box)
        self.clip = _shape(self.root, "svg", "clip", x=_LEFT, y=0, width=_WIDTH, height=total)
        self.below = ET.SubElement(self.clip, "g", {"class": "zx"})
        self.shapes = ET.SubElement(self.clip, "g", {"class": "zx"})
        self.labels = ET.SubElement(self.clip, "g")
        axis = {
            "class": "axis",
            "aria-hidden": "true",
            "data-start": f"{timeline.start:.6f}",
            "data-span": f"{timeline.span:.6f}",
            "data-width": f"{_WIDTH}",
            "data-height": f"{height:g}",
        }
        self.axis = ET.SubElement(self.clip, "g", axis)
        for number in range(6):
            at = timeline.start + timeline.span * (number + 0.5) / 6
            self._text(self.axis, self.x(at), height + 18, f"{at:.1f} s", "tick", middle=True)

    def x(self, at: float) -> float:
        return round((at - self.timeline.start) * self._per_s, 2)

    def markup(self) -> Markup:
        # ET has escaped every text and attribute; there is nothing in it but SVG elements of this module.
        return Markup(ET.tostring(self.root, encoding="unicode"))  # noqa: S704

    def _text(
        self, parent: ET.Element, x: float, y: float, text: str, style: str, *, middle: bool = False
    ) -> ET.Element:
        made = _shape(parent, "text", style, x=x, y=y)
        if middle:
            made.set("text-anchor", "middle")
        made.text = _clean(text)
        return made

    def _rule(self, y: float, style: str = "rule") -> None:
        _shape(self.below, "line", style, x1=0, x2=_WIDTH, y1=y, y2=y)

    def _label(self, at: float, y: float, text: str, style: str, room: float | None = None) -> None:
        """A label that a zoom moves. ``room``: hidden until a zoom has made its bar this wide."""
        x = self.x(at)
        place = {"data-x": f"{x:g}", "data-y": f"{y:g}", "transform": f"translate({x:g} {y:g})"}
        group = ET.SubElement(self.labels, "g", {"class": "zm", **place, "aria-hidden": "true"})
        if room is not None:
            group.set("data-room", f"{room:g}")
            if room < 7 * len(text) + 4:
                group.set("class", "zm off")
        self._text(group, 4, 0, text, style)


class _Lanes(_Drawing):
    def __init__(self, timeline: Timeline, rows: frozenset[str]) -> None:
        super().__init__(timeline, _TOP + _LANE * len(timeline.lanes), "Timeline of the run")
        self._rows = rows
        bottom = _TOP + _LANE * len(timeline.lanes)
        free = -1.0
        for window in timeline.windows:
            if window.fired is not None:
                free = self._window(window, bottom, free)
        for number, lane in enumerate(timeline.lanes):
            self._lane(lane, _TOP + _LANE * number)

    def _lane(self, lane: Lane, top: float) -> None:
        name = self._text(self.root, 4, top + 20, _shortened(lane.name), "lane")
        if len(lane.name) > _NAME:
            ET.SubElement(name, "title").text = _clean(lane.name)
        self._rule(top + _LANE)
        for bar in lane.bars:
            self._bar(bar, top)
        for tick in lane.ticks:
            self._tick(tick, top)

    def _bar(self, bar: Bar, top: float) -> None:
        x, width = self.x(bar.start), max(self.x(bar.end) - self.x(bar.start), 1.5)
        parent = self._linked(bar.anchor, bar.title, keyed=bar.style in ("driver", "broken"))
        _shape(parent, "rect", f"bar {bar.style}", bar.title, x=x, y=top + 5, width=width, height=_LANE - 10)
        self._label(bar.start, top + 20, bar.label, "on", width)

    def _tick(self, tick: Tick, top: float) -> None:
        x = self.x(tick.at)
        parent = self._linked(tick.anchor, tick.title)
        _shape(parent, "line", "mark", tick.title, x1=x, x2=x, y1=top + 6, y2=top + _LANE - 6)
        if tick.label:
            self._label(tick.at, top + 20, tick.label, "on")

    def _window(self, window: Window, bottom: float, free: float) -> float:
        """Draw the window of a fault; return where the next label has room."""
        fired = window.fired if window.fired is not None else self.timeline.start
        healed = window.healed if window.healed is not None else self.timeline.end
        x, width = self.x(fired), max(self.x(healed) - self.x(fired), 2)
        healed_at = "never" if window.healed is None else f"{window.healed:.3f} s"
        armed = "" if window.armed is None else f"armed at {window.armed:.3f} s, "
        title = (
            f"fault {window.number}, {window.title}: {window.state}; {armed}fired at {fired:.3f} s, healed: {healed_at}"
        )
        style = "window hit" if window.hit else "window missed"
        parent = self._linked(f"fault-{window.number}", title, keyed=True, below=True)
        _shape(parent, "rect", style, title, x=x, y=4, width=width, height=bottom - 4)
        for at in (fired, window.settled, window.healed):
            if at is not None:
                _shape(self.below, "line", style, x1=self.x(at), x2=self.x(at), y1=4, y2=bottom)
        text = f"F{window.number} {window.state}"
        if x >= free:
            self._label(fired, 22, text, "fault")
            return x + 8 * len(text)
        return free

    def _linked(self, anchor: str | None, title: str, *, keyed: bool = False, below: bool = False) -> ET.Element:
        """The parent of a shape: a link to its row if the page has one. Only ``keyed`` links are stops of the Tab key."""
        parent = self.below if below else self.shapes
        if anchor is None or anchor not in self._rows:
            return parent
        link = {"href": f"#{anchor}", "aria-label": _clean(title)}
        return ET.SubElement(parent, "a", link if keyed else {**link, "tabindex": "-1"})


class _Plotted(_Drawing):
    def __init__(self, plot: Plot, timeline: Timeline) -> None:
        super().__init__(timeline, _PLOT, f"{plot.title}. {plot.summary()}")
        self._top = max(plot.top, 1e-9)
        self._rule(_PLOT)
        self._rule(10, "rule faint")
        for y, text in ((14, f"{plot.top:,.4g} {plot.unit}"), (_PLOT, "0")):
            self._text(self.root, _LEFT - 8, y, text, "scale").set("text-anchor", "end")
        for series in plot.series:
            if plot.kind == "steps":
                self._steps(series.points, series.style)
            else:
                for at, value in series.points:
                    self._bar(at, value, series.name, plot, series.style)
        y = 34
        for series in plot.series if len(plot.series) > 1 else ():
            _shape(self.root, "rect", f"data {series.style}", x=12, y=y - 10, width=14, height=10)
            self._text(self.root, 32, y, series.name, "scale")
            y += 18

    def y(self, value: float) -> float:
        return round(_PLOT - (_PLOT - 10) * value / self._top, 2)

    def _bar(self, at: float, value: float, name: str, plot: Plot, style: str) -> None:
        half = plot.width_s * self._per_s / 2
        x, width = (self.x(at) + (half if style == "two" else 0), max(half * 0.9, 1)) if half else (self.x(at) - 1.5, 3)
        title = f"{name}: {value:,.4g} {plot.unit} at {at:.1f} s"
        height = _PLOT - self.y(value)
        _shape(self.shapes, "rect", f"data {style}", title, y=self.y(value), height=height, x=x, width=width)

    def _steps(self, points: tuple[tuple[float, float], ...], style: str) -> None:
        path, before = f"M{self.x(self.timeline.start):g} {self.y(0):g}", self.y(0)
        for at, value in points:
            path += f"H{self.x(at):g}V{self.y(value):g}"
            before = self.y(value)
        if before != self.y(0):
            path += f"V{self.y(0):g}"
        ET.SubElement(self.shapes, "path", {"d": f"{path}Z", "class": f"data {style} area"})


def _shape(parent: ET.Element, tag: str, style: str, title: str | None = None, **numbers: float) -> ET.Element:
    made = ET.SubElement(parent, tag, {**{name: f"{number:g}" for name, number in numbers.items()}, "class": style})
    if title is not None:
        ET.SubElement(made, "title").text = _clean(title)
    return made


def _shortened(text: str) -> str:
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}\u2026"


def _clean(text: str) -> str:
    """At most `_LONGEST` characters, without those that no XML may contain, and with control characters as escapes."""
    return xml_text.legal(visible(short(text, _LONGEST)))
