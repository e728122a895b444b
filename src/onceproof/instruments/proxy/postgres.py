"""Parses a Postgres connection: statements of the simple and the extended protocol, and the answer to each.

Format: frontend/backend protocol 3.0 and 3.2 (Postgres' manual, chapter 54). A message is a type byte, a length and a body;
only the first packets of a connection have no type byte.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from onceproof.base.masking import masked
from onceproof.instruments.proxy.frames import (
    Answer,
    ChannelBound,
    Encrypted,
    Frame,
    Interest,
    Piece,
    Refused,
    Reply,
    SplitConversation,
    Splitter,
)

#: A longer statement passes unread, so that no more than this is kept in memory.
LONGEST_HELD = 8 * 1024 * 1024
#: How much of a statement's text is kept: conditions look for a table's name or for COMMIT, not for data.
_TEXT_KEPT = 16 * 1024
#: How many different statements of one transaction are kept.
_MOST_STATEMENTS = 256
#: How far from its end a text is searched for a COMMIT, so that long inserts are not searched in full.
_END_LOOKED_AT = 512
_MOST_PREPARED = 4096

_LENGTH = Struct(">i")
_STARTUP = Struct(">ii")
_MESSAGE = Struct(">ci")
_LONGEST = 0x40000000 + 64  # 1 GiB is the server's own limit
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_STARTUP_LONGEST = 64 * 1024

_MAY_COMMIT = re.compile(rb"\b(?:COMMIT|END)\b", re.IGNORECASE)
_COMMIT = re.compile(rb"(?:COMMIT|END)(?:\s+(?:WORK|TRANSACTION))?(?:\s+AND\s+(?:NO\s+)?CHAIN)?", re.IGNORECASE)
_ATOMIC = re.compile(rb"\bBEGIN\s+ATOMIC\b", re.IGNORECASE)
#: Comments, and quoted text, in which a semicolon does not end a statement: E'', '', "", $tag$ $tag$.
_COMMENT_OR_QUOTED = re.compile(
    rb"""(?P<comment>--[^\n]*|/\*.*?\*/)
    |\bE'(?:[^'\\]|\\.|'')*+' | '(?:[^']|'')*+' | "[^"]*+" | (?<![\w$])\$(?P<tag>(?:[A-Za-z_]\w*)?)\$.*?\$(?P=tag)\$""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)

_PLAIN = "set sslmode=disable and gssencmode=disable in the job's connection string (JDBC: sslmode=disable&gssEncMode=disable)"


def is_commit(sql: bytes) -> bool:
    """Whether a statement, or the last of several in one text, commits."""
    end = sql[-_END_LOOKED_AT:]
    if _MAY_COMMIT.search(end) is None:
        return False
    # A text that was shortened may have lost a quote, so only its end is searched; "-" keeps a cut word from being a statement.
    text = sql if len(sql) < _TEXT_KEPT else b"-" + end
    text = _COMMENT_OR_QUOTED.sub(lambda found: b" " if found["comment"] is not None else b"''", text)
    statements = [part.strip() for part in text.split(b";")]
    while statements and not statements[-1]:
        statements.pop()
    if not statements or _COMMIT.fullmatch(statements[-1]) is None:
        return False
    return not _ends_a_body(statements)


def _ends_a_body(statements: list[bytes]) -> bool:
    """Whether the last END closes a function's BEGIN ATOMIC, whose statements are not quoted."""
    begun = [index for index, statement in enumerate(statements) if _ATOMIC.search(statement)]
    ends = [statement.upper() == b"END" for statement in statements[begun[-1] + 1 :]] if begun else []
    return ends.count(True) == 1 and ends[-1]


#: What pools and drivers send to find out whether a connection works, or to give it back; never part of a write.
_CHECK = re.compile(
    rb"""\s*(?:SELECT\s+(?:\d+|'[^']*'|NULL|TRUE|version\(\)|pg_advisory_unlock_all\(\))(?:\s+AS\s+\w+)?
    |SHOW\s+[\w.\s]+|ROLLBACK|ABORT|DISCARD\s+\w+|RESET\s+ALL|UNLISTEN\s+\*|CLOSE\s+ALL|DEALLOCATE\s+[\w\s"]+)?\s*""",
    re.IGNORECASE | re.VERBOSE,
)
#: Stands for a request whose statement is unknown; never a check.
_UNKNOWN = b"?"
#: Messages that carry data, or call a function.
_CARRY_DATA = frozenset((b"d", b"c", b"f", b"F"))


def is_check(sql: bytes) -> bool:
    """Whether a text only checks that the connection works, or gives it back to a pool."""
    plain = _COMMENT_OR_QUOTED.sub(lambda found: b" " if found["comment"] is not None else b"''", sql)
    return all(_CHECK.fullmatch(statement) is not None for statement in plain.split(b";"))


@dataclass
class _Watch:
    """A statement whose answer is awaited."""

    frame: Frame
    cycle: int
    """The number of its cycle on the connection. Each Query, Sync or FunctionCall makes a cycle, which ReadyForQuery ends."""
    skip: int | None
    """How many Executes come before it in the cycle; None for a simple query, whose answer lasts to the end of the cycle."""
    raw: bytearray = field(default_factory=bytearray)
    tags: list[str] = field(default_factory=list)
    sqlstate: str | None = None

    def answer(self) -> Answer:
        return Answer(bytes(self.raw), self.frame, {"tags": self.tags, "sqlstate": self.sqlstate})


class PostgresConversation(SplitConversation):
    """Implements `onceproof.instruments.proxy.frames.Conversation`.

    ``encrypted``: the proxy opened TLS to the server, which then offers to bind the channel. The proxy withdraws the offer.
    """

    def __init__(self, interest: Interest, proxy: str = "", *, encrypted: bool = False) -> None:
        super().__init__(
            Splitter(self._measure_client, self._parse_client), Splitter(self._measure_server, self._parse_server)
        )
        self.rewrites = encrypted  # until the login is over
        self._mechanism_awaited = False
        """The server has offered mechanisms over TLS, and the client's next message chooses one."""
        self._proxy = proxy
        self.backend_pid: int | None = None
        self._connected_at = time.monotonic()
        self._interest = interest
        self._started = False
        self._raw = False
        """Whether the connection only carries a cancel request."""
        self._asked_encryption: str | None = None
        self._prepared: dict[bytes, bytes] = {}
        self._portals: dict[bytes, bytes] = {}
        self._in_transaction: dict[bytes, None] = {}
        """Texts of the statements since the connection was last idle."""
        self._ends: deque[str] = deque()
        """For each unanswered cycle, the message that ended it: Q, S, F, or startup."""
        self._asked = 0
        """How many cycles the client has ended."""
        self._answered = 0
        """How many cycles the server has ended."""
        self._executes = 0
        """How many Executes the client has sent in its current cycle."""
        self._completions = 0
        """How many statements the server has completed in its current cycle."""
        self._watches: list[_Watch] = []
        self._sent: list[bytes] | None = None
        """What a client sends over a connection that is about to be reset: statements, and ``?`` for what is unknown."""

    # -- a connection that is about to be reset --------------------------------------------------------------------

    def attempts(self, data: bytes) -> bool:
        if not self._started or not self.readable or self._client.within:
            return True
        self._sent = []
        try:
            self.from_client(data)
        except Refused:
            return True
        return bool(self.rest_of_client()) or not self.readable or not all(map(is_check, self._sent))

    @property
    def in_use(self) -> bool:
        if not self._ends:
            return not self._started
        return self._ends[0] == "startup" or not all(map(is_check, self._in_transaction))

    # -- messages of the client -----------------------------------------------------------------------------------

    def _measure_client(self, data: bytes, at: int) -> tuple[int, bool] | None:
        if self._started:
            return self._measure(data, at, _LOOKED_AT_CLIENT)
        if self._raw:
            return len(data) - at, False
        if data[at : at + 1] == b"\x16":
            raise Encrypted(f"TLS from its first byte: {_PLAIN}")
        if len(data) - at < _STARTUP.size:
            return None
        length, code = _STARTUP.unpack_from(data, at)
        known = code in (_SSL, _GSS, _CANCEL) or code >> 16 == 3
        return (length, True) if known and 8 <= length <= _STARTUP_LONGEST else (0, False)

    def _begin(self, code: int) -> None:
        if code in (_SSL, _GSS):
            self._asked_encryption = "TLS" if code == _SSL else "GSS encryption"
        elif code == _CANCEL:
            self._raw = True
        else:
            self._started = True
            self._ends.append("startup")
            self._asked += 1

    def _client_message(self, kind: bytes, body: memoryview) -> bytes | None:
        """Keep track of statements and portals; returns the text of a statement that the message runs."""
        if kind == b"p":
            if self._mechanism_awaited:
                self._mechanism_awaited = False
                _check_binding(body)
            return None
        if kind == b"Q":
            return self._note_statement(_text(body))
        if kind == b"P":
            name, text = _two_texts(body)
            self._note_sent(text)
            if len(self._prepared) >= _MOST_PREPARED and name not in self._prepared:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[name] = text[:_TEXT_KEPT]
        elif kind == b"B":
            portal, statement = _two_texts(body)
            self._note_sent(self._prepared.get(statement, _UNKNOWN))
            if len(self._portals) >= _MOST_PREPARED and portal not in self._portals:
                del self._portals[next(iter(self._portals))]
            self._portals[portal] = self._prepared.get(statement, b"")
        elif kind == b"E":
            return self._note_statement(self._portals.get(_text(body), b""))
        elif kind == b"C" and bytes(body[:1]) == b"S":
            self._prepared.pop(_text(body[1:]), None)
        return None

    def _note_sent(self, sql: bytes) -> None:
        if self._sent is not None:
            self._sent.append(sql)

    def _note_statement(self, sql: bytes) -> bytes:
        self._note_sent(sql)
        sql = sql if len(sql) <= _TEXT_KEPT else sql[: _TEXT_KEPT // 2] + sql[-_TEXT_KEPT // 2 :]
        if len(self._in_transaction) < _MOST_STATEMENTS:
            self._in_transaction[sql] = None
        return sql

    def _count(self, kind: bytes) -> None:
        """Count cycles and Executes. Called after the frame was made, which needs the counts before it."""
        if kind == b"E":
            self._executes += 1
        elif kind in (b"Q", b"S", b"F"):
            self._ends.append(kind.decode())
            self._asked += 1
            self._executes = 0

    def _frame(self, kind: bytes, raw: bytes, what: str, sql: bytes) -> Frame:
        facts: dict[str, Any] = {
            "sql": masked(sql.decode(errors="replace"))[:500],
            "backend_pid": self.backend_pid,
            "transaction": [masked(text.decode(errors="replace"))[:500] for text in self._in_transaction],
        }
        return Frame(raw, what, facts, (self._asked, None if kind == b"Q" else self._executes), self._connected_at)

    # -- messages of the server -----------------------------------------------------------------------------------

    def _measure_server(self, data: bytes, at: int) -> tuple[int, bool] | None:
        if self._raw:
            return len(data) - at, False
        if self._asked_encryption is not None:
            asked, self._asked_encryption = self._asked_encryption, None
            answer = data[at : at + 1]
            if answer in (b"S", b"G"):
                raise Encrypted(f"{asked}: {_PLAIN}")
            if answer == b"N":
                return 1, False
        return self._measure(data, at, _LOOKED_AT_SERVER)

    def _server_message(self, kind: bytes, body: memoryview) -> None:
        if kind == b"Z":
            self.rewrites = False
            self._answered += 1
            self._completions = 0
            if self._ends:
                self._ends.popleft()
            if bytes(body[:1]) == b"I":
                self._in_transaction.clear()
        elif kind == b"E":
            message = _field(body, b"M") or ""
            self._interest.note(Reply(time.monotonic(), self._proxy, "error", _field(body, b"C") or "?", message))
        elif kind == b"K" and len(body) >= 4:
            (self.backend_pid,) = _LENGTH.unpack_from(body)
        elif kind == b"G" and self._ends and self._ends[0] == "S":
            # COPY FROM STDIN through the extended protocol: the server ignores a Sync that was already sent, and the client
            # sends another one.
            self._ends.popleft()
            self._asked -= 1
            for watch in self._watches:
                watch.cycle -= watch.cycle > self._answered

    def _answer(self, kind: bytes, raw: bytes, body: memoryview) -> tuple[bool, Answer | None]:
        """Whether a message belongs to an awaited answer, and that answer if it is complete."""
        watch = next((w for w in self._watches if w.cycle == self._answered), None)
        ends = kind in (b"C", b"I", b"s", b"E")
        if watch is None or not (ends or watch.raw):
            return False, None
        if watch.skip is not None and kind != b"E" and self._completions < watch.skip:
            return False, None
        watch.raw += raw
        if kind == b"C":
            watch.tags.append(_text(body).decode(errors="replace"))
        elif kind == b"E":
            watch.sqlstate = _field(body, b"C")
        if (ends and watch.skip is not None) or kind == b"Z":
            self._watches.remove(watch)
            return True, watch.answer()
        return True, None

    def watch(self, frame: Frame) -> None:
        cycle, skip = frame.tag
        self._watches.append(_Watch(frame, cycle, skip))

    # -- messages of either side ----------------------------------------------------------------------------------

    def _measure(self, data: bytes, at: int, looked_at: frozenset[bytes]) -> tuple[int, bool] | None:
        if len(data) - at < 5:
            return None
        kind, length = _MESSAGE.unpack_from(data, at)
        if kind in _CARRY_DATA and looked_at is _LOOKED_AT_CLIENT:
            self._note_sent(_UNKNOWN)
        if not 4 <= length <= _LONGEST:
            return 0, False
        if length > LONGEST_HELD and looked_at is _LOOKED_AT_CLIENT:
            # It passes unread. What it binds is unknown, and so is every statement of the same name.
            if kind == b"B":
                self._portals.clear()
            elif kind == b"P":
                self._prepared.clear()
        return 1 + length, length <= LONGEST_HELD and (kind in looked_at or bool(self._watches))

    def _parse_client(self, data: bytes, at: int, end: int) -> list[Piece] | None:
        if not self._started:
            self._begin(_STARTUP.unpack_from(data, at)[1])
            return None
        kind = data[at : at + 1]
        sql = self._client_message(kind, memoryview(data)[at + 5 : end])
        frame = None
        if sql is not None and self._interest.active:
            what = "commit" if is_commit(sql) else "statement"
            if self._interest.wants(what):
                frame = self._frame(kind, data[at:end], what, sql)
        self._count(kind)
        return None if frame is None else [frame]

    def _parse_server(self, data: bytes, at: int, end: int) -> list[Piece] | None:
        kind = data[at : at + 1]
        body = memoryview(data)[at + 5 : end]
        taken: list[Piece] | None = None
        if self._watches:
            belongs, answer = self._answer(kind, data[at:end], body)
            if belongs:
                taken = [answer] if answer is not None else []
        if kind in (b"C", b"I", b"s"):
            self._completions += 1
        self._server_message(kind, body)
        if kind == b"R" and self.rewrites and bytes(body[:4]) == _SASL:
            self._mechanism_awaited = True
            taken = [data[at:end].replace(_BINDS, _NOTHING)]
        return taken


def _check_binding(body: memoryview) -> None:
    """Raise `ChannelBound` for a SASLInitialResponse (mechanism, length, then RFC 5802's gs2-header) that binds the channel.

    A header ``y`` says that the client could bind the channel: a server that offered it takes that for an attack.
    """
    mechanism, _, rest = bytes(body[:256]).partition(b"\0")
    if mechanism == _BINDS or (mechanism.startswith(b"SCRAM-") and rest[4:6] == b"y,"):
        raise ChannelBound("set channel_binding=disable in the job's connection string (JDBC: channelBinding=disable)")


_SASL = b"\x00\x00\x00\x0a"
#: A mechanism that the server offers over TLS, and a name of the same length that no client knows.
_BINDS, _NOTHING = b"SCRAM-SHA-256-PLUS", b"SCRAM-SHA-256-NONE"

_LOOKED_AT_CLIENT = frozenset((b"Q", b"P", b"B", b"E", b"C", b"S", b"F", b"p"))
#: Completions are counted even while no answer is awaited. Errors are read too, also those that answer no statement.
_LOOKED_AT_SERVER = frozenset((b"Z", b"K", b"G", b"C", b"I", b"s", b"E", b"R"))


def _text(body: memoryview) -> bytes:
    """The bytes up to the first zero byte."""
    return bytes(body).partition(b"\0")[0]


def _two_texts(body: memoryview) -> tuple[bytes, bytes]:
    # A Bind continues with its parameters, which may be long.
    first, _, rest = bytes(body[: _TEXT_KEPT + 1024]).partition(b"\0")
    return first, rest.partition(b"\0")[0]


def _field(body: memoryview, code: bytes) -> str | None:
    """The text of one field of an ErrorResponse, which is a list of code bytes, each followed by a text."""
    for part in bytes(body).split(b"\0"):
        if part[:1] == code:
            return part[1:].decode(errors="replace")
    return None
