"""Text of others (a job's log, a key, a path) as it can be shown: nothing in it acts on a terminal, and all of it can be written."""

from __future__ import annotations

import codecs
import re

# Control characters but newline and tab, what turns the direction of text around, and halves of surrogate pairs.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: What reports draw with, for a terminal that knows ASCII alone.
_IN_ASCII = {
    "─": "-",
    "━": "=",
    "│": "|",
    "┃": "|",
    "…": "...",
    "→": "->",
    "←": "<-",
    "•": "*",
    "\u2013": "-",
    "\u2014": "-",
}

#: Name of a handler of `codecs`: what an encoding has no character for is written as an escape.
READABLE = "onceproof.readable"


def visible(text: str) -> str:
    """``text`` with an escape in place of each character that acts instead of being shown: ``\\x1b``, ``\\u202e``."""
    return _ACTING.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    return (
        character.encode("ascii", "backslashreplace").decode("ascii")
        if character > "\x7f"
        else f"\\x{ord(character):02x}"
    )


def _readable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(one) or _escape(one) for one in characters), error.end


codecs.register_error(READABLE, _readable)
