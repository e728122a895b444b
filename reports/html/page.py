"""Renders the templates. A page is one file: style and script are in it, and its policy lets it load and send nothing.

Every text is escaped by the template engine, and control characters become visible escapes. The policy names the hashes of our
own style and script, so that a script which came in by any other way would not run.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from onceproof.base.version import __version__
from onceproof.base.visible import visible
from onceproof.base.words import times
from onceproof.reports.html.limits import MOST_BYTES, WHOLE_COMMAND, short

_PACKAGE = "onceproof.reports.html"
_STYLE = "style.css"


def render(template: str, *, live: bool = False, most_text: int | None = None, **values: Any) -> str:
    """The whole file. ``live``: the page of a server (`policy`). ``most_text``: characters of each text; more are cut off."""
    return "".join(_parts(template, live, most_text, values))


def render_capped(template: str, sizes: Iterable[tuple[int, dict[str, Any]]]) -> str:
    """The whole file, with the first of ``sizes`` (characters of each text, values) with which it has at most `MOST_BYTES`.

    If all are larger: with the last one, which should be small enough whatever the values are.
    """
    most_text, values = 0, dict[str, Any]()
    for most_text, values in sizes:
        made = _render_within(MOST_BYTES, template, most_text, values)
        if made is not None:
            return made
    return render(template, most_text=most_text, **values)


def _render_within(most_bytes: int, template: str, most_text: int, values: dict[str, Any]) -> str | None:
    """The whole file, or None if it has more bytes. It is measured while it is made, so that a huge one never exists."""
    size, parts = 0, []
    for part in _parts(template, False, most_text, values):
        size += len(part.encode())
        if size > most_bytes:
            return None
        parts.append(part)
    return "".join(parts)


def _parts(template: str, live: bool, most_text: int | None, values: dict[str, Any]) -> Iterator[str]:
    page = _environment(most_text).get_template(template)
    # Our own files, not a user's text.
    own = {"style": Markup(_asset(_STYLE)), "script": Markup(_asset(_script(live)))}  # noqa: S704
    # Never cut off: without it the page has no style and no script.
    allowed = escape(policy(live=live))
    for part in page.generate(policy=allowed, version=__version__, **own, **values):
        # Texts from JSON contain no lone surrogates, but names of files may.
        yield part.encode("utf-8", "replace").decode()


@cache
def policy(*, live: bool = False) -> str:
    """What the page may do. ``live``: it also asks the server that it came from, and sends it a form, and nobody else."""
    scripts, styles = _hash(_asset(_script(live))), _hash(_asset(_STYLE))
    own = "connect-src 'self'; form-action 'self'" if live else "form-action 'none'"
    return f"default-src 'none'; style-src {styles}; script-src {scripts}; base-uri 'none'; {own}"


def is_ours(text: str) -> bool:
    """Whether a file begins as pages of this version do, policy included, and has no other instruction to the browser."""
    return text.startswith(_head()) and text.lower().count("http-equiv") == 1


@cache
def _head() -> str:
    empty = {"title": "", "version": "", "style": "", "script": ""}
    page = _environment(None).get_template("base.html").render(policy=escape(policy()), **empty)
    return page.partition("<title>")[0]


def _script(live: bool) -> str:
    return "runs.js" if live else "script.js"


@cache
def _environment(most_text: int | None) -> Environment:
    def shown(value: Any) -> Any:
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return visible(value if most_text is None else short(value, most_text))

    def joined(items: Sequence[str], most: int, separator: str = ", ") -> Markup:
        # Each item is cut off, but not the end of the whole, which says how many there are.
        more = f"{separator}and {len(items) - most:,} more" if len(items) > most else ""
        return escape(separator.join(shown(one) for one in items[:most]) + more)

    made = Environment(
        loader=PackageLoader(_PACKAGE, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters |= {
        "count": lambda number: f"{number:,}",
        "seconds": _seconds,
        "link": _link,
        "command": _command,
        "times": times,
        "joined": joined,
    }
    return made


def _command(text: str) -> Markup | str:
    """A command, which is whole even where other texts are cut off."""
    return text if len(text) > WHOLE_COMMAND else escape(visible(text))


def _link(path: str) -> Markup:
    """The path of a file as a link, which is never cut off. Only characters without a meaning in HTML are left of it."""
    return Markup(quote(os.fsencode(path)))  # noqa: S704


def _seconds(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.3f} s"


@cache
def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
