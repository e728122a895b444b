"""The picture of a run of consumers as plain text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from onceproof.reports.picture.picture import Picture, Row
from onceproof.reports.picture.words import label_of

_WIDTH = 80
_TICK = 6
_LANE = 14
_NAME = _LANE - 2
_STROKE = {
    **dict.fromkeys(("again", "return", "retry", "dead-letter"), "="),
    **dict.fromkeys(("refuse", "fail"), "~"),
    **dict.fromkeys(("lost", "fenced", "acknowledge"), "."),
}


def render(picture: Picture) -> str:
    """One line per event, lanes as columns; then the effects in the order of the output."""
    head = [" " * _TICK, *(_short(lane.name, _NAME).center(_LANE) for lane in picture.lanes)]
    lines = ["".join(head).rstrip()]
    stems = _stems(picture)
    tick = -1
    for number, row in enumerate(picture.rows):
        mark = f"t={row.tick}" if row.tick != tick else ""
        tick = row.tick
        lines.append((mark.ljust(_TICK) + _row(len(picture.lanes), stems, number, row)).rstrip())
    lines.append("")
    for line in results(picture):
        lines.append(textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False))
    return "\n".join(lines)


def results(picture: Picture) -> Iterator[str]:
    """The effects in the order of the output, one line for each queue."""
    several = len(picture.by_queue()) > 1
    for queue, found in picture.by_queue().items():
        order = [
            f"m{result.message}" + (" (out of order)" if result.late else " (again)" if result.repeated else "")
            for result in found
        ]
        yield f"what came out{f' of {_short(queue, 40)}' if several else ''}: {', '.join(order)}"
    if not picture.results:
        yield "nothing came out"


def _row(lanes: int, stems: Mapping[tuple[int, int], str], number: int, row: Row) -> str:
    cells = [" "] * (_LANE * lanes + _LANE)
    for lane in range(lanes):
        cells[_middle(lane)] = stems.get((lane, number), "|")
    if row.source == row.target:
        own = {"crash": " X crash", "cut": " X cut off", "stop": " X stopped", "resume": " resumed"}
        own |= {"delete": f" X m{row.message} deleted", "skip": f" X m{row.message} skipped"}
        place = 1 if row.kind in ("start", "resume") else -1
        _put(cells, _middle(row.source) + place, own.get(row.kind, " back again"))
        return "".join(cells)
    one, other = _middle(row.source), _middle(row.target)
    way = 1 if other > one else -1
    stroke = _STROKE.get(row.kind, "-")
    for place in range(one + way, other, way):
        cells[place] = stroke
    cells[other - way] = "x" if row.kind in ("lost", "fenced", "fail") else ">" if way > 0 else "<"
    text = " refused " if row.kind == "refuse" else f" {label_of(row)} "
    # Near the end that the message goes to: the middle of a long arrow may lie on another lane.
    centre = other - way * _LANE // 2
    _put(cells, centre - len(text) // 2, text)
    return "".join(cells)


def _stems(picture: Picture) -> dict[tuple[int, int], str]:
    """How a lane looks in a row where its consumer has a message or is dead, by lane and row."""
    held = {(hold.lane, row): "#" for hold in picture.holds for row in range(hold.first, hold.last + 1)}
    return held | {(lane, row): " " for lane, first, last in picture.absences for row in range(first + 1, last)}


def _put(cells: list[str], at: int, text: str) -> None:
    for offset, letter in enumerate(text):
        if 0 <= at + offset < len(cells):
            cells[at + offset] = letter


def _middle(lane: int) -> int:
    return _LANE * lane + _LANE // 2


def _short(name: str, most: int) -> str:
    """``name`` as printable characters, cut to ``most``."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in name)
    return clean if len(clean) <= most else f"{clean[: most - 1]}~"
