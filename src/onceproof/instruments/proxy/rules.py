"""Which frame is to be stopped and what becomes of it; and the proof that it was.

A rule is made by a fault, armed on the proxies of one service, and then watched: `Rule.hits` are what happened to frames.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from onceproof.base.errors import UsageError, WaitTimeout
from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Answer, Frame, Reply
from onceproof.instruments.proxy.kafka_schema import api_names

Action = Literal["drop-request", "drop-answer", "late", "park"]
"""``drop-request``: it never arrives. ``drop-answer``: it arrives, its answer does not. ``late``: the client is cut off at once,
and the frame delivered over the connection that the client left behind, when told. ``park``: nothing passes until told."""

Cut = Literal["reset", "close", "silence"]
"""How the client learns of it: RST, FIN, or not at all, with the connection left standing."""

POSTGRES_KINDS = ("commit", "statement")
AMQP_KINDS = ("basic.ack", "tx.commit")
_NEAR_KEPT = 5


#: What a statement that writes has in it.
WRITES = r"\b(insert|update|delete|merge|copy)\b"


def writes_to(table: str) -> str:
    """The regular expression of a statement that writes to ``table``."""
    return rf"{WRITES}[\s\S]*\b{re.escape(table)}\b"


def in_words(pattern: object) -> str | None:
    """What `WRITES` or `writes_to` looks for, for people; None for another expression."""
    if pattern == WRITES:
        return "a write"
    before, after = writes_to("/").split("/")
    if isinstance(pattern, str) and pattern.startswith(before) and pattern.endswith(after):
        table = re.sub(r"\\(.)", r"\1", pattern[len(before) : -len(after)])  # what re.escape() did
        return f"a write to {table}"
    return None


@dataclass(frozen=True)
class Condition:
    """What a frame must be. All of what is given must hold; texts are regular expressions that must be found somewhere.

    ``kind`` is an API of Kafka (``EndTxn``), ``commit`` or ``statement`` for Postgres, ``basic.ack`` or ``tx.commit`` for AMQP.
    Raises `UsageError`.
    """

    kind: str
    topic: str | None = None
    """Kafka: the name of a topic that the request is about."""
    transactional_id: str | None = None
    committed: bool | None = None
    """Kafka, EndTxn: whether it commits or aborts."""
    sql: str | None = None
    """Postgres: in the statement's own text."""
    transaction: str | None = None
    """Postgres: in any statement since the connection was last idle, this one too (a table's name, for a COMMIT)."""

    def __post_init__(self) -> None:
        known = [*api_names(), *POSTGRES_KINDS, *AMQP_KINDS]
        if self.kind not in known:
            raise UsageError(f"no request is named {self.kind!r}", hint=suggest(self.kind, known))
        for name in ("transactional_id", "sql", "transaction"):
            try:
                re.compile(getattr(self, name) or "")
            except re.error as wrong:
                raise UsageError(f"{name}: {getattr(self, name)!r} is no regular expression: {wrong}") from wrong

    def why_not(self, frame: Frame) -> str | None:
        """None if the frame is one of these; else what keeps it from being one."""
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
        }
        for name, found in texts.items():
            wanted = getattr(self, name)
            if wanted is not None and not any(re.search(wanted, text or "", re.IGNORECASE) for text in found):
                return f"{in_words(wanted) or repr(wanted)} is not in its {name}"
        return None


@dataclass
class Hit:
    """What became of one frame. Times are seconds of the monotonic clock."""

    frame: Frame
    proxy: str
    client: str
    """``host:port`` of the peer."""
    seen_at: float
    delivered_at: float | None = None
    answered_at: float | None = None
    answer: Answer | None = None
    client_left_at: float | None = None
    """The client went by itself while its frame was parked: it was never delivered."""
    cut_at: float | None = None
    """When we cut the client off."""
    undeliverable: str | None = None
    """Why it can reach the service no more: one of the two peers has gone."""

    def told(self) -> dict[str, Any]:
        """For an event."""
        return {"proxy": self.proxy, "client": self.client, "frame": self.frame.kind, **self.frame.facts}


@dataclass
class Rule:
    """Stops the ``nth`` frame of a kind, and the ``times - 1`` after it (None: all). Thread-safe.

    ``proceed`` decides for a frame that fits whether it is counted at all: called in the proxy's thread, it must not block.
    """

    condition: Condition
    action: Action
    cut: Cut = "reset"
    nth: int = 1
    times: int | None = 1
    name: str = ""
    hold: bool = False
    """Park the frame before a loss, until `release`: time to look at what state it would leave."""
    proceed: Callable[[Frame], bool] | None = None
    hits: list[Hit] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    """Frames by kind while it was armed."""
    near: deque[tuple[Frame, str]] = field(default_factory=lambda: deque(maxlen=_NEAR_KEPT))
    fitting: int = 0
    _released: threading.Event = field(default_factory=threading.Event)
    _on_release: list[Callable[[], None]] = field(default_factory=list)
    _on_end: list[Callable[[], None]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- what the proxy calls -------------------------------------------------------------------------------------

    def takes(self, frame: Frame, *, taken: bool = False) -> bool:
        """Whether this frame is to be stopped; if not, it is remembered as near, with what was missing.

        ``taken``: another rule stops it already. It counts all the same: which one is the n-th does not depend on others.
        """
        with self._lock:
            why = self.condition.why_not(frame)
            if why is None and self.proceed is not None and not self.proceed(frame):
                why = "it was not the time for it yet"
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
            return not taken

    def saw(self, kind: str) -> None:
        """A frame of that kind passed, whether it was looked at or not."""
        with self._lock:
            self.seen[kind] += 1

    def when_released(self, act: Callable[[], None]) -> None:
        """``act`` is called once, at once if it is released already."""
        with self._lock:
            if not self._released.is_set():
                self._on_release.append(act)
                return
        act()

    def when_over(self, act: Callable[[], None]) -> None:
        """``act`` is called when the rule is disarmed."""
        with self._lock:
            self._on_end.append(act)

    # -- what a fault calls ---------------------------------------------------------------------------------------

    def end(self) -> None:
        """It is disarmed: who was left in silence may know. Idempotent."""
        self.release()
        with self._lock:
            acts, self._on_end = self._on_end, []
        for act in acts:
            act()

    def release(self) -> None:
        """Deliver what is late, let go on what is parked. Idempotent."""
        with self._lock:
            self._released.set()
            acts, self._on_release = self._on_release, []
        for act in acts:
            act()

    @property
    def released(self) -> bool:
        return self._released.is_set()

    def wait_for_hit(self, deadline_s: float) -> Hit:
        """The first frame that was stopped. Raises `WaitTimeout` that names the nearest frames seen."""
        return wait_until(
            f"a {self.describe()}",
            lambda: self.hits[0] if self.hits else None,
            deadline_s=deadline_s,
            every_s=0.01,
            explain=self.nearest,
        )

    def wait_for_answer(self, hit: Hit, deadline_s: float) -> Answer:
        """What the service said to a frame that was delivered. Raises `WaitTimeout`, at once where a peer has gone."""

        def gone() -> None:
            if hit.answer is None and hit.undeliverable is not None:
                raise WaitTimeout(f"there is no answer to a {hit.frame.kind}: {hit.undeliverable}")

        return wait_until(
            f"the answer to a {hit.frame.kind}", lambda: hit.answer, deadline_s=deadline_s, every_s=0.01, abandon=gone
        )

    def describe(self) -> str:
        c = self.condition
        wanted = {"topic": c.topic, "transactional id": c.transactional_id, "committed": c.committed}
        wanted |= {"text": c.sql, "transaction": c.transaction}
        told = [
            f"{words} in its {name}" if (words := in_words(value)) is not None else f"{name} {value!r}"
            for name, value in wanted.items()
            if value is not None
        ]
        number = f" number {self.nth}" if self.nth > 1 else ""
        return f"{c.kind}{number}" + (f" with {', '.join(told)}" if told else "")

    def nearest(self) -> str:
        """What was seen instead of a frame that fits, as a sentence: for a rule that never matched."""
        with self._lock:  # the proxy's thread adds to both meanwhile, and an iteration would notice
            near, seen = list(self.near), self.seen.copy()
        if near:
            alike = Counter(f"{frame.describe()}: {why}" for frame, why in near)
            return "; ".join(f"{words} ({times} times)" if times > 1 else words for words, times in alike.items())
        if seen:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in seen.most_common(12))
            return f"no {self.condition.kind} at all; seen were {kinds}"
        return "nothing was seen on these connections"


class Board:
    """The rules that are armed on one service. Implements `onceproof.instruments.proxy.frames.Interest`."""

    def __init__(self) -> None:
        self._rules: tuple[Rule, ...] = ()
        self._kinds: frozenset[str] = frozenset()
        self._ears: tuple[list[Reply], ...] = ()
        self._lock = threading.Lock()

    def listen(self, ear: list[Reply]) -> None:
        """From now on what the service says is added to ``ear``."""
        with self._lock:
            self._ears = (*self._ears, ear)

    def unlisten(self, ear: list[Reply]) -> None:
        """Idempotent."""
        with self._lock:
            self._ears = tuple(one for one in self._ears if one is not ear)

    @property
    def listens(self) -> bool:
        return bool(self._ears)

    def told(self, reply: Reply) -> None:
        for ear in self._ears:
            ear.append(reply)

    def arm(self, rule: Rule) -> None:
        with self._lock:
            self._set((*self._rules, rule))

    def disarm(self, rule: Rule) -> None:
        """It stops nothing more; what it has stopped is let go, and connections that it left silent are closed."""
        with self._lock:
            self._set(tuple(r for r in self._rules if r is not rule))
        rule.end()

    @property
    def active(self) -> bool:
        return bool(self._rules)

    def wants(self, kind: str) -> bool:
        for rule in self._rules:
            rule.saw(kind)
        return kind in self._kinds

    def rule_for(self, frame: Frame) -> Rule | None:
        """The first armed rule that stops this frame."""
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
