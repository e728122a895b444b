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


def render(template: str, **values: Any) -> str:
    """The whole file."""
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    # Our own files, not a user's text.
    own = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
    # Texts from JSON contain no lone surrogates, but names of files may.
    return page.render(policy=policy, version=__version__, **own, **values).encode("utf-8", "replace").decode()


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
