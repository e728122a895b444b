"""Rules: which frame the proxy stops, what it does with it, and the proof that it did.

A fault makes a rule, arms it on the proxies of one service, and then watches `Rule.hits`: what happened to each stopped frame.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Answer, Frame, Piece, Reply
from onceproof.instruments.proxy.kafka_schema import api_names

Action = Literal["drop-request", "drop-answer", "late", "park"]
"""``drop-request``: the frame never arrives. ``drop-answer``: it arrives, its answer does not. ``late``: the client is cut off
at once, and `Rule.release` delivers the frame over the old connection. ``park``: nothing passes until `Rule.release`."""

Cut = Literal["reset", "close", "silence"]
"""How the client learns that it was cut off: by RST, by FIN, or not at all, with the connection left open."""

POSTGRES_KINDS = ("commit", "statement")
AMQP_KINDS = ("basic.ack", "tx.commit")
HTTP_KINDS = ("put",)
_NEAR_KEPT = 5


#: A regular expression that matches statements that write: not SELECT ... FOR UPDATE (or FOR NO KEY UPDATE), which locks rows,
#: and not COPY ... TO STDOUT, which reads.
WRITES = (
    r"\b(insert|(?<!\bfor\s)(?<!\bfor\s\s)(?<!\bkey\s)(?<!\bkey\s\s)update|delete|merge|copy(?![^;]*\bto\s+stdout\b))\b"
)


def writes_to(table: str) -> str:
    """A regular expression that matches statements that write to ``table``."""
    return rf"{WRITES}[\s\S]*\b{re.escape(table)}\b"


def describe_pattern(pattern: object) -> str | None:
    """A readable name for `WRITES` or an expression of `writes_to`; None for any other expression."""
    if pattern == WRITES:
        return "a write"
    before, after = writes_to("/").split("/")
    if isinstance(pattern, str) and pattern.startswith(before) and pattern.endswith(after):
        table = re.sub(r"\\(.)", r"\1", pattern[len(before) : -len(after)])  # undoes re.escape()
        return f"a write to {table}"
    return None


@dataclass(frozen=True)
class Condition:
    """What a frame must match: every field that is given. A text is a regular expression that must match anywhere in the value.

    ``kind`` is an API of Kafka (``EndTxn``), ``commit`` or ``statement`` for Postgres, ``basic.ack`` or ``tx.commit`` for AMQP,
    ``put`` for an object store.
    Raises `UsageError`.
    """

    kind: str
    topic: str | None = None
    """Kafka: a topic that the request names, in full."""
    transactional_id: str | None = None
    committed: bool | None = None
    """Kafka, EndTxn: whether it commits or aborts."""
    sql: str | None = None
    """Postgres: matches the statement's own text."""
    transaction: str | None = None
    """Postgres: matches any statement since the connection was last idle, this one included (a table's name, for a COMMIT)."""

    key: str | None = None
    """Object store: matches the object's key, with the bucket before it."""

    def __post_init__(self) -> None:
        known = [*api_names(), *POSTGRES_KINDS, *AMQP_KINDS, *HTTP_KINDS]
        if self.kind not in known:
            raise UsageError(f"no request is named {self.kind!r}", hint=suggest(self.kind, known))
        for name in ("transactional_id", "sql", "transaction", "key"):
            try:
                re.compile(getattr(self, name) or "")
            except re.error as wrong:
                raise UsageError(f"{name}: {getattr(self, name)!r} is not a regular expression: {wrong}") from wrong

    def why_not(self, frame: Frame) -> str | None:
        """None if the frame matches; otherwise the first reason why it does not."""
        facts = frame.facts
        if frame.kind != self.kind:
            return f"it is a {frame.kind}"
        if self.topic is not None and self.topic not in facts.get("topics", ()):
            return f"it is not about topic {self.topic!r}"
        if self.committed is not None and facts.get("committed") is not self.committed:
            return f"it {'aborts' if self.committed else 'commits'}"
        texts = {
            "transactional_id": [facts.get("transactional_id")],
            "sql": [facts.get("sql")],
            "transaction": facts.get("transaction", ()),
            "key": [facts.get("key")],
        }
        for name, found in texts.items():
            wanted = getattr(self, name)
            if wanted is not None and not any(re.search(wanted, text or "", re.IGNORECASE) for text in found):
                return f"{describe_pattern(wanted) or repr(wanted)} is not in its {name}"
        return None


@dataclass
class Hit:
    """What happened to one stopped frame. Times are seconds of the monotonic clock."""

    frame: Frame
    proxy: str
    client: str
    """``host:port`` of the peer."""
    seen_at: float
    delivered_at: float | None = None
    answered_at: float | None = None
    answer: Answer | None = None
    client_left_at: float | None = None
    """When the client disconnected while its frame was parked. The frame was then never delivered."""
    cut_at: float | None = None
    """When the proxy cut the client off."""
    undeliverable: str | None = None
    """Why the frame, or its answer, can no longer arrive: the client or the service has disconnected."""

    def lost_before(self, at: float) -> str | None:
        """Why a parked frame could no longer arrive at that time, because its client had left; None if it had not."""
        return self.undeliverable if self.client_left_at is not None and self.client_left_at < at else None

    def event_data(self) -> dict[str, Any]:
        """The fields of an event about this frame."""
        return {"proxy": self.proxy, "client": self.client, "frame": self.frame.kind, **self.frame.facts}


@dataclass
class Rule:
    """Stops the ``nth`` frame that matches, and the ``times - 1`` after it (None: all after it). Thread-safe.

    ``proceed`` decides whether a matching frame counts at all. The proxy's thread calls it, so it must not block.
    """

    condition: Condition
    action: Action
    cut: Cut = "reset"
    nth: int = 1
    times: int | None = 1
    name: str = ""
    quiet: bool = False
    """Stop frames without an event: the harness needs the rule itself, and no fault armed it."""
    hold: bool = False
    """Park the frame until `release` before it is dropped, so that the fault can first check the state it would leave."""
    proceed: Callable[[Frame], bool] | None = None
    hits: list[Hit] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """How many frames of each kind came while the rule was armed."""
    near: deque[tuple[Frame, str]] = field(default_factory=lambda: deque(maxlen=_NEAR_KEPT))
    """The last frames of the kind that were not stopped, and why not."""
    fitting: int = 0
    """How many frames matched."""
    stopped: bool = False
    """Whether a frame was stopped. True before the frame is acted on, and so before its `Hit`, which is added afterwards."""
    _released: threading.Event = field(default_factory=threading.Event)
    _on_release: list[Callable[[], None]] = field(default_factory=list)
    _on_end: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- called by the proxy --------------------------------------------------------------------------------------

    def takes(self, frame: Frame, *, taken: bool = False) -> bool:
        """Whether the rule stops this frame; if not, keep it in `near` with the reason.

        ``taken``: another rule already stops it. It still counts, so which frame is the n-th does not depend on other rules.
        """
        with self._lock:
            why = self.condition.why_not(frame)
            if why is None and self.proceed is not None and not self.proceed(frame):
                why = "the rule was not waiting for it yet"
            if why is not None:
                self.near.append((frame, why))
                return False
            self.fitting += 1
            if self.fitting < self.nth:
                self.near.append((frame, f"it was number {self.fitting}, not {self.nth}"))
                return False
            if self.times is not None and self.fitting >= self.nth + self.times:
                return False
            if taken:
                self.near.append((frame, "another rule stopped it"))
            self.stopped = self.stopped or not taken
            return not taken

    def count(self, kind: str) -> None:
        """Count a frame of that kind in `seen`, whether it matches or not."""
        with self._lock:
            self.seen[kind] += 1

    def when_released(self, act: Callable[[], None]) -> None:
        """Call ``act`` once, when the rule is released; at once if it already is."""
        with self._lock:
            if not self._released.is_set():
                self._on_release.append(act)
                return
        act()

    def when_over(self, act: Callable[[], None]) -> None:
        """Call ``act`` when the rule is disarmed."""
        with self._lock:
            self._on_end.append(act)

    # -- called by a fault ----------------------------------------------------------------------------------------

    def end(self) -> None:
        """Called when the rule is disarmed: release its frames, and close connections that were cut silently. Idempotent."""
        self.release()
        with self._lock:
            acts, self._on_end = self._on_end, []
        for act in acts:
            act()

    def release(self) -> None:
        """Deliver the late frame, or resume the parked one. Idempotent."""
        with self._lock:
            self._released.set()
            acts, self._on_release = self._on_release, []
        for act in acts:
            act()

    def wait_for_hit(self, deadline_s: float) -> Hit:
        """Wait for the first frame that the rule stops. The `WaitTimeout` that it raises names the frames that came nearest."""
        return wait_until(
            f"a {self.describe()}",
            lambda: self.hits[0] if self.hits else None,
            deadline_s=deadline_s,
            every_s=0.01,
            explain=self.nearest,
        )

    def wait_for_answer(self, hit: Hit, deadline_s: float) -> Answer:
        """Wait for the service's answer to a delivered frame. Raises `WaitTimeout`, at once if a peer has disconnected."""

        def give_up() -> None:
            if hit.answer is None and hit.undeliverable is not None:
                raise WaitTimeout(f"there is no answer to the {hit.frame.kind}: {hit.undeliverable}")

        return wait_until(
            f"the answer to the {hit.frame.kind}",
            lambda: hit.answer,
            deadline_s=deadline_s,
            every_s=0.01,
            abandon=give_up,
        )

    def describe(self) -> str:
        c = self.condition
        wanted = {"topic": c.topic, "transactional id": c.transactional_id, "committed": c.committed}
        wanted |= {"text": c.sql, "transaction": c.transaction, "key": c.key}
        parts = [
            f"{words} in its {name}" if (words := describe_pattern(value)) is not None else f"{name} {value!r}"
            for name, value in wanted.items()
            if value is not None
        ]
        number = f" number {self.nth}" if self.nth > 1 else ""
        return f"{c.kind}{number}" + (f" with {', '.join(parts)}" if parts else "")

    def nearest(self) -> str:
        """For a rule that never matched: the frames that came instead, as a sentence."""
        with self._lock:  # the proxy's thread may add to both meanwhile, which would break an iteration
            near, seen = list(self.near), self.seen.copy()
        if near:
            alike = Counter(f"{frame.describe()}: {why}" for frame, why in near)
            return "; ".join(f"{words} ({times} times)" if times > 1 else words for words, times in alike.items())
        if seen:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in seen.most_common(12))
            return f"no {self.condition.kind} was seen, only {kinds}"
        return "nothing was seen on these connections"


@dataclass
class Parked:
    """A parked frame, and what its client has sent after it: already parsed (``following``), and not yet (``unread``)."""

    rule: Rule
    hit: Hit
    following: Sequence[Piece]
    unread: bytearray = field(default_factory=bytearray)
    paused: bool = False
    """Nothing more is read from the client."""


class Board:
    """The rules armed on one service, and the listeners to its replies. Implements `frames.Interest`."""

    def __init__(self) -> None:
        self._rules: tuple[Rule, ...] = ()
        self._kinds: frozenset[str] = frozenset()
        self._heard: tuple[list[Reply], ...] = ()
        self._lock = threading.Lock()

    def listen(self, heard: list[Reply]) -> None:
        """From now on add the service's replies to ``heard``."""
        with self._lock:
            self._heard = (*self._heard, heard)

    def unlisten(self, heard: list[Reply]) -> None:
        """Undo `listen`. Idempotent."""
        with self._lock:
            self._heard = tuple(one for one in self._heard if one is not heard)

    @property
    def listens(self) -> bool:
        return bool(self._heard)

    def note(self, reply: Reply) -> None:
        for heard in self._heard:
            heard.append(reply)

    def arm(self, rule: Rule) -> None:
        with self._lock:
            self._set((*self._rules, rule))

    def disarm(self, rule: Rule) -> None:
        """The rule stops no more frames; its parked frames are released, and connections that it cut silently are closed."""
        with self._lock:
            self._set(tuple(r for r in self._rules if r is not rule))
        rule.end()

    def clear(self) -> None:
        """Disarm every rule, and end every `listen`."""
        for rule in self._rules:
            self.disarm(rule)
        with self._lock:
            self._heard = ()

    @property
    def in_use(self) -> bool:
        """Whether a rule is armed or somebody listens."""
        return self.active or self.listens

    @property
    def active(self) -> bool:
        return bool(self._rules)

    def wants(self, kind: str) -> bool:
        for rule in self._rules:
            rule.count(kind)
        return kind in self._kinds

    def rule_for(self, frame: Frame) -> Rule | None:
        """The first armed rule that stops this frame, if any. Every rule of its kind counts the frame."""
        chosen: Rule | None = None
        for rule in self._rules:
            if rule.condition.kind == frame.kind and rule.takes(frame, taken=chosen is not None):
                chosen = rule
        return chosen

    def _set(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._kinds = frozenset(rule.condition.kind for rule in rules)


def now() -> float:
    return time.monotonic()
