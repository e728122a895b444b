"""Keeps secrets out of stored and shown texts: `masked` replaces them by ``***`` in texts of the job and of the services.

It finds a secret as it is and as programs print it: escaped for JSON, Python or XML, in a URL, in base64 and in hex. It
also finds each line of a multi-line secret. Logs stay as the job wrote them, in files that only their owner can read.
"""

from __future__ import annotations

import base64
import html
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from onceproof.base.errors import Ending

MASK = "***"

#: Shorter parts of a secret (a line, a piece of its base64) reveal too little, and occur in too many texts.
_LEAST_PART = 4
_LEAST_BASE64 = 6
#: Longer secrets are searched for in pieces, because the size of a pattern is limited.
_PIECE = 512

#: Keys of events and of ``run.json`` whose values are names that the judge compares. They are not masked.
_UNMASKED_KEYS = frozenset(
    ("name", "query", "topic", "output", "sink", "point", "fault", "target", "service", "consumer", "queue", "columns")
)

#: Most backslashes before an escaped character: each further escaping of the text doubles them, so 8 are three more escapings.
_MOST_BACKSLASHES = 8
_BACKSLASHES = rf"\\{{1,{_MOST_BACKSLASHES}}}"

_hidden: Counter[str] = Counter()
_pattern: re.Pattern[str] | None = None
_lock = threading.Lock()


def hide(secret: str) -> None:
    """Mask this secret until the process ends: a password that was created for a service."""
    _add([secret], 1)


@contextmanager
def hiding(secrets: Iterable[str]) -> Iterator[None]:
    """Mask these secrets inside the block, and in the message of an error that leaves it."""
    known = [*secrets]
    _add(known, 1)
    try:
        yield
    except BaseException as error:
        _mask_error(error)
        raise
    finally:
        _add(known, -1)


def of_environment(names: Iterable[str]) -> list[str]:
    """The values of these environment variables."""
    return [os.environ[name] for name in names if os.environ.get(name)]


def masked(text: str) -> str:
    """``text`` without secrets. Mask a text before truncating it, because half a secret is not found."""
    return text if _pattern is None else _pattern.sub(MASK, text)


def masked_value(value: Any) -> Any:
    """``value`` with every text in its lists, mappings and dataclasses masked, except names and the keys of mappings."""
    if _pattern is None:
        return value
    if type(value) is str:  # not a member of an enumeration
        return masked(value)
    if isinstance(value, Mapping):
        return {key: each if key in _UNMASKED_KEYS else masked_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(masked_value(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        texts = {
            one.name: getattr(value, one.name) for one in fields(value) if one.init and one.name not in _UNMASKED_KEYS
        }
        return replace(value, **{name: masked_value(each) for name, each in texts.items()})
    return value


def _mask_error(error: BaseException | None) -> None:
    """Mask the error in place, with all its causes, which a traceback also shows."""
    while error is not None:
        error.args = tuple(masked_value(argument) for argument in error.args)
        if isinstance(error, Ending):
            error.message = masked(error.message)
            error.hint = None if error.hint is None else masked(error.hint)
        error = error.__cause__ or error.__context__


def _add(secrets: Iterable[str], count: int) -> None:
    """Count each secret ``count`` times more (or less), and rebuild the pattern of those with a positive count."""
    global _pattern
    with _lock:
        for secret in filter(None, secrets):
            _hidden[secret] += count
        for ended in [secret for secret, uses in _hidden.items() if uses <= 0]:
            del _hidden[ended]
        patterns = sorted({pattern for secret in _hidden for pattern in _patterns(secret)}, key=len, reverse=True)
        _pattern = re.compile("|".join(patterns)) if patterns else None


def _patterns(secret: str) -> Iterator[str]:
    """Patterns that find the secret or a part of it that must not be shown either."""
    parts = {secret, *_passwords(secret)}
    parts |= {line.strip() for part in list(parts) for line in part.splitlines() if len(line.strip()) >= _LEAST_PART}
    for part in parts:
        for start in range(0, len(part), _PIECE):
            piece = part[start : start + _PIECE]
            yield _text_pattern(piece)
            yield from _encoded_patterns(piece.encode("utf-8", "surrogateescape"), whole=piece == part)


def _passwords(secret: str) -> Iterator[str]:
    """The password in a URI or a connection string: an error may quote only the password."""
    if "://" in secret:
        try:
            password = urlsplit(secret).password
        except ValueError:
            password = None
        if password:
            yield password
            yield unquote(password)
    for found in re.finditer(r"password\s*=\s*(?:'([^']*)'|([^\s'&;]+))", secret, re.IGNORECASE):
        yield from filter(None, (found[1] or found[2], unquote(found[1] or found[2])))


def _text_pattern(text: str) -> str:
    """A pattern for the text with any of its characters escaped in any way.

    No two alternatives for a character begin alike: otherwise matching could take exponential time (backtracking).
    """
    # Several backslashes in a row as one unit: each escaping doubles their number.
    runs = re.findall(r"\\+|[^\\]", text)
    return "".join(_backslashes_pattern(len(run)) if run.startswith("\\") else _character_pattern(run) for run in runs)


def _backslashes_pattern(count: int) -> str:
    return rf"(?i:(?:\\|%(?:25)*5c|&#92;){{{count},{_MOST_BACKSLASHES * count}}})"


def _character_pattern(one: str) -> str:
    if one.isascii() and one.isalnum():
        return one
    in_bytes = one.encode("utf-8", "surrogateescape")
    units = one.encode("utf-16-be", "surrogatepass")
    escapes = [
        rf"{_BACKSLASHES}".join(f"x{byte:02x}" for byte in in_bytes),
        rf"{_BACKSLASHES}".join(f"{byte:03o}" for byte in in_bytes),
        rf"{_BACKSLASHES}".join(f"u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)),
        rf"U{ord(one):08x}",
    ]
    if not one.isascii() and ord(one) < 0x100:
        escapes.append(rf"x{ord(one):02x}")
    if one in _ESCAPE_LETTERS:
        escapes.append(_ESCAPE_LETTERS[one])
    if one == "\n":
        escapes.append(rf"r{_BACKSLASHES}n")
    ways = [
        rf"{_BACKSLASHES}(?:{'|'.join(escapes)})",
        "".join(f"%(?:25)*{byte:02x}" for byte in in_bytes),
        rf"&#(?:0*{ord(one)}|x0*{ord(one):x});",
    ]
    if html.escape(one) != one:
        ways.append(html.escape(one))
    if one == "'":
        ways.append("'\"'\"'")  # in a shell's quotes
    if one == " ":
        ways.append(r"\+")
    ways.append(r"\r?\n[ \t]*" if one == "\n" else rf"\\{{0,{_MOST_BACKSLASHES}}}{re.escape(one)}")
    return f"(?i:{'|'.join(ways)})"


#: Control character -> the letter after the backslash in its escape.
_ESCAPE_LETTERS = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\a": "a", "\v": "v"}


def _encoded_patterns(content: bytes, *, whole: bool) -> Iterator[str]:
    """Patterns for hex and base64, also for the base64 of a longer text that contains the secret."""
    if len(content) >= _LEAST_PART:
        yield f"(?i:{':?'.join(f'{byte:02x}' for byte in content)})"
    if whole and len(content) >= _LEAST_PART - 1:
        yield _base64_pattern(base64.b64encode(content).decode().rstrip("=")) + "=*"
    for before in range(3):
        # Omit the characters at both ends that also encode bits of the text before and after the secret.
        letters = base64.b64encode(bytes(before) + content).decode().rstrip("=")
        letters = letters[before + 1 if before else 0 :]
        if (before + len(content)) % 3:
            letters = letters[:-1]
        if len(letters) >= _LEAST_BASE64:
            yield _base64_pattern(letters)


def _base64_pattern(letters: str) -> str:
    """A pattern for base64 in either alphabet, escaped for a URL or for JSON, in one or several lines."""
    spelled = {"+": "(?:[+-]|%(?:25)*2[bB])", "/": r"(?:\\{0,8}/|_|%(?:25)*2[fF])"}
    return rf"(?:\s|{_BACKSLASHES}[rn])*".join(spelled.get(letter, letter) for letter in letters)
