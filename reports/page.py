"""A page of labelled lines for a terminal or a log: wrapped to its width, with a hanging indent."""

from __future__ import annotations

import io
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from onceproof.base.visible import visible

_LABEL = 10


@dataclass(frozen=True)
class Look:
    """What a text is made for: by default a log."""

    color: bool = False
    width: int = 80
    """Columns. A finding may be longer in a log, where nothing is lost by it."""
    terminal: bool = False


class Page:
    """Labelled lines with a hanging indent. User's values are added as `Text`, so square brackets in them are not markup.

    Every text is passed through `visible`, except the cells of a table: the caller must have done that.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=look.width,
            force_terminal=look.color,
            no_color=not look.color,
            color_system="standard" if look.color else None,
            highlight=False,
            emoji=False,
        )

    def line(self, label: str, value: str | Text, style: str = "") -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_LABEL, no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        grid.add_row(Text(label, style="bold"), _shown(value, style))
        self._console.print(grid)

    def unbroken(self, label: str, value: str) -> None:
        """Add a value that users copy from the screen (path, command): never wrapped."""
        line = Text(f"{label:<{_LABEL}} ", style="bold") + Text(visible(value), style="not bold")
        self._console.print(line, soft_wrap=True)

    def finding(self, what: Text, witness: str | None, *, fix: str | None, more: str, indent: str = "") -> None:
        """Add a finding: what to do, what went wrong with the first row that shows it, where to read more. Three lines at most.

        On a terminal the first two are cut at its width; the row is kept, so that it can be looked up.
        """
        if fix is not None:
            self._one_line(f"{indent}fix", Text(visible(fix)), "")
        self._one_line(
            f"{indent}found", _shown(what, ""), "" if witness is None else f"; first: {visible(_flat(witness))}"
        )
        self.unbroken(f"{indent}explain", more)

    def _one_line(self, label: str, text: Text, end: str) -> None:
        line = Text(f"{label:<{_LABEL}} ", style="bold")
        if self._look.terminal:
            room = self._look.width - len(line)
            end = _cut(Text(end), room * 2 // 3).plain
            text = _cut(text, room - cell_len(end))
        self._console.print(line + text + Text(end, style="not bold"), soft_wrap=True)

    def below(self, value: str | Text | Table, depth: int = 1, style: str = "") -> None:
        shown = value if isinstance(value, Table) else _shown(value, style)
        self._console.print(Padding(shown, (0, 0, 0, 2 * depth)))

    def rule(self) -> None:
        self._console.print(Rule(style="dim"))

    def blank(self) -> None:
        self._console.print()

    def text(self) -> str:
        # Padding and grids fill lines with blanks up to the width, which disturb in a log and in copied text.
        return "\n".join(line.rstrip() for line in self._out.getvalue().splitlines()) + "\n"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cut(text: Text, width: int) -> Text:
    """At most so many columns of the text. Three dots stand for the rest."""
    short = text.copy()
    short.truncate(max(width, 1), overflow="ellipsis")
    return short


def _shown(value: str | Text, style: str) -> Text:
    if isinstance(value, str):
        return Text(visible(value), style=style)
    plain = visible(value.plain)
    # If escapes were inserted, the styles of its parts would be misplaced: keep only the style of the whole.
    return value if plain == value.plain else Text(plain, style=value.style)
