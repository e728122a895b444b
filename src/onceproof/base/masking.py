"""Keeps secrets out of what is written and shown: in texts of the job and of the services, `masked` replaces them by ``***``.

A secret is found as it is, and as programs print it: escaped for JSON, for Python or for XML, in a URL, in base64 and in hex,
and one of several lines also line by line. Logs stay as the job wrote them, in files that only their owner can read.
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

#: Parts of a secret (a line of it, a piece of its base64) that are shorter say too little, and stand in too many texts.
_LEAST_PART = 4
_LEAST_BASE64 = 6
#: Longer secrets are looked for piece by piece: a pattern has its limits.
_PIECE = 512

#: Keys of events and of ``run.json`` whose values are names that the judge compares, not texts.
_NAMES = frozenset(
    ("name", "query", "topic", "output", "sink", "point", "fault", "target", "service", "consumer", "queue", "columns")
)

#: Each escaping of an escaped text doubles its backslashes: three times, and one more.
_ESCAPES = 8
_SOME = rf"\\{{1,{_ESCAPES}}}"

_hidden: Counter[str] = Counter()
_pattern: re.Pattern[str] | None = None
_lock = threading.Lock()


def hide(secret: str) -> None:
    """Mask this from now on, for as long as the process lives: a password that was made for a service."""
    _change([secret], 1)


@contextmanager
def hiding(secrets: Iterable[str]) -> Iterator[None]:
    """Mask these in here, and in the message of an error that leaves."""
    known = [*secrets]
    _change(known, 1)
    try:
        yield
    except BaseException as error:
        _mask_error(error)
        raise
    finally:
        _change(known, -1)


def of_environment(names: Iterable[str]) -> list[str]:
    """The values of these environment variables."""
    return [os.environ[name] for name in names if os.environ.get(name)]


def masked(text: str) -> str:
    """``text`` without secrets. To be asked of whole texts: of one that was cut, half a secret would stay."""
    return text if _pattern is None else _pattern.sub(MASK, text)


def masked_value(value: Any) -> Any:
    """The same for every text in a value of lists, mappings and dataclasses, but for names (and the keys of mappings)."""
    if _pattern is None:
        return value
    if type(value) is str:  # an enumeration's member is not a text
        return masked(value)
    if isinstance(value, Mapping):
        return {key: each if key in _NAMES else masked_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(masked_value(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        texts = {one.name: getattr(value, one.name) for one in fields(value) if one.init and one.name not in _NAMES}
        return replace(value, **{name: masked_value(each) for name, each in texts.items()})
    return value


def _mask_error(error: BaseException | None) -> None:
    """In place, with all that it was caused by: a traceback shows those too."""
    while error is not None:
        error.args = tuple(masked_value(argument) for argument in error.args)
        if isinstance(error, Ending):
            error.message = masked(error.message)
            error.hint = None if error.hint is None else masked(error.hint)
        error = error.__cause__ or error.__context__


def _change(secrets: Iterable[str], by: int) -> None:
    global _pattern
    with _lock:
        for secret in filter(None, secrets):
            _hidden[secret] += by
        for gone in [secret for secret, count in _hidden.items() if count <= 0]:
            del _hidden[gone]
        forms = sorted({form for secret in _hidden for form in _forms(secret)}, key=len, reverse=True)
        _pattern = re.compile("|".join(forms)) if forms else None


def _forms(secret: str) -> Iterator[str]:
    """Patterns that find the secret, or a part of it that must not be seen either."""
    parts = {secret, *_passwords(secret)}
    parts |= {line.strip() for part in list(parts) for line in part.splitlines() if len(line.strip()) >= _LEAST_PART}
    for part in parts:
        for start in range(0, len(part), _PIECE):
            piece = part[start : start + _PIECE]
            yield _spelled(piece)
            yield from _encoded(piece.encode("utf-8", "surrogateescape"), whole=piece == part)


def _passwords(secret: str) -> Iterator[str]:
    """The password in a URI or in a connection string: an error may quote it alone."""
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


def _spelled(text: str) -> str:
    """A pattern for the text with any of its characters escaped, in whatever way.

    No two of the ways to spell a character begin alike: else a text could keep it busy for ages.
    """
    # A run of backslashes as one: each escaping doubles it.
    runs = re.findall(r"\\+|[^\\]", text)
    return "".join(_backslashes(len(run)) if run.startswith("\\") else _character(run) for run in runs)


def _backslashes(count: int) -> str:
    return rf"(?i:(?:\\|%(?:25)*5c|&#92;){{{count},{_ESCAPES * count}}})"


def _character(one: str) -> str:
    if one.isascii() and one.isalnum():
        return one
    in_bytes = one.encode("utf-8", "surrogateescape")
    units = one.encode("utf-16-be", "surrogatepass")
    escapes = [
        rf"{_SOME}".join(f"x{byte:02x}" for byte in in_bytes),
        rf"{_SOME}".join(f"{byte:03o}" for byte in in_bytes),
        rf"{_SOME}".join(f"u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)),
        rf"U{ord(one):08x}",
    ]
    if not one.isascii() and ord(one) < 0x100:
        escapes.append(rf"x{ord(one):02x}")
    if one in _NAMED:
        escapes.append(_NAMED[one])
    if one == "\n":
        escapes.append(rf"r{_SOME}n")
    ways = [
        rf"{_SOME}(?:{'|'.join(escapes)})",
        "".join(f"%(?:25)*{byte:02x}" for byte in in_bytes),
        rf"&#(?:0*{ord(one)}|x0*{ord(one):x});",
    ]
    if html.escape(one) != one:
        ways.append(html.escape(one))
    if one == "'":
        ways.append("'\"'\"'")  # in a shell's quotes
    if one == " ":
        ways.append(r"\+")
    ways.append(r"\r?\n[ \t]*" if one == "\n" else rf"\\{{0,{_ESCAPES}}}{re.escape(one)}")
    return f"(?i:{'|'.join(ways)})"


#: What is written after a backslash in place of a control character.
_NAMED = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\a": "a", "\v": "v"}


def _encoded(content: bytes, *, whole: bool) -> Iterator[str]:
    """Patterns for base64, also of a text that the secret is a part of, and for hex."""
    if len(content) >= _LEAST_PART:
        yield f"(?i:{':?'.join(f'{byte:02x}' for byte in content)})"
    if whole and len(content) >= _LEAST_PART - 1:
        yield _base64(base64.b64encode(content).decode().rstrip("=")) + "=*"
    for before in range(3):
        # What stands before and after the secret shares a character with it at either end: those are left out.
        letters = base64.b64encode(bytes(before) + content).decode().rstrip("=")
        letters = letters[before + 1 if before else 0 :]
        if (before + len(content)) % 3:
            letters = letters[:-1]
        if len(letters) >= _LEAST_BASE64:
            yield _base64(letters)


def _base64(letters: str) -> str:
    """In either alphabet, escaped for a URL or for JSON, broken into lines or not."""
    spelled = {"+": "(?:[+-]|%(?:25)*2[bB])", "/": r"(?:\\{0,8}/|_|%(?:25)*2[fF])"}
    return rf"(?:\s|{_SOME}[rn])*".join(spelled.get(letter, letter) for letter in letters)
