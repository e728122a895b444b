"""Renders the templates. A page is one file: style and script are in it, and its policy lets it load and send nothing.

Every text is escaped by the template engine, and control characters become visible escapes. The policy names the hashes of our
own style and script, so that a script which came in by any other way would not run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from onceproof.base.version import __version__
from onceproof.base.visible import visible

_PACKAGE = "onceproof.reports.html"
_STYLE = "style.css"


def render(template: str, *, live: bool = False, **values: Any) -> str:
    """The whole file. ``live``: the page of a server (`policy`)."""
    page = _environment().get_template(template)
    # Our own files, not a user's text.
    own = {"style": Markup(_asset(_STYLE)), "script": Markup(_asset(_script(live)))}  # noqa: S704
    # Texts from JSON contain no lone surrogates, but names of files may.
    text = page.render(policy=policy(live=live), version=__version__, **own, **values)
    return text.encode("utf-8", "replace").decode()


@cache
def policy(*, live: bool = False) -> str:
    """What the page may do. ``live``: it also asks the server that it came from, and sends it a form, and nobody else."""
    scripts, styles = _hash(_asset(_script(live))), _hash(_asset(_STYLE))
    own = "connect-src 'self'; form-action 'self'" if live else "form-action 'none'"
    return f"default-src 'none'; style-src {styles}; script-src {scripts}; img-src data:; base-uri 'none'; {own}"


def is_ours(text: str) -> bool:
    """Whether a file begins as pages of this version do, policy included, and has no other instruction to the browser."""
    return text.startswith(_head()) and text.lower().count("http-equiv") == 1


@cache
def _head() -> str:
    empty = {"title": "", "version": "", "style": "", "script": ""}
    page = _environment().get_template("base.html").render(policy=policy(), **empty)
    return page.partition("<title>")[0]


def _script(live: bool) -> str:
    return "runs.js" if live else "script.js"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader(_PACKAGE, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters |= {"count": lambda number: f"{number:,}", "seconds": _seconds}
    return made


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _seconds(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.3f} s"


@cache
def _asset(name: str) -> str:
    return (files(_PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
