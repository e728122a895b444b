"""Makes foreign text (a job's log, a key, a path) safe to show: without control characters, and writable in any encoding."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

# Control characters except newline and tab, characters that change the direction of text, and halves of surrogate pairs.
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

#: The characters that reports draw with -> their substitutes on a terminal that has only ASCII.
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

#: Name of an error handler of `codecs`: it writes characters that an encoding lacks as escapes.
READABLE = "onceproof.readable"


def visible(text: str) -> str:
    """``text`` with an escape instead of each character that controls the terminal: ``\\x1b``, ``\\u202e``."""
    return _ACTING.sub(lambda found: _escape(found[0]), text)


@lru_cache(maxsize=4096)
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
