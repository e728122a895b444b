"""Holds a query's requests for end offsets, so that it sees the new records of all its topics in one plan.

To plan a batch, Spark asks Kafka for the end offsets of each source of the query, one source after the other (`latestOffset` in
`MicroBatchExecution`). Records sent to two topics after the first answer and before the second request would become two batches.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from onceproof.base.errors import WaitTimeout
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Board, Condition, Rule

#: A query that polls sends its next request within some 20 ms. One that sends none for so long waits for its trigger.
_POLLS_WITHIN_S = 0.5
#: Clients that have sent no request for so long are not waited for: they belong to a driver that has ended.
_ALIVE_S = 1.0
#: Up to so many sources, Spark asks in the order of the offset log: its map of sources keeps their order.
_MOST_ORDERED = 4


@dataclass
class _Client:
    """The last call of one client: Kafka's clients send one request per broker, each for other partitions."""

    asked: set[str] = field(default_factory=set)
    """Its partitions, as ``topic-number``."""
    topics: set[str] = field(default_factory=set)
    at: float = 0.0


class ListOffsetsHold:
    """Follows the ListOffsets requests of the job through the protocol proxy, and holds them on demand.

    A topic that is first in one query and second in another, or that one query reads twice, is held as a first one; then a plan
    may still see only some of the topics' new records.
    """

    def __init__(self, board: Board, partitions: Mapping[str, int]) -> None:
        """``partitions``: how many each topic has. Topics that are not named here are never held."""
        self._board = board
        self._partitions = partitions
        self._clients: dict[str, _Client] = {}
        self._first: frozenset[str] = frozenset()
        self._held: Frame | None = None
        """The frame that the proxy handles now, if it is to be held."""
        self._parked: dict[str, set[str]] = {}
        """Client -> the partitions that its held requests ask for."""
        self._lock = threading.Lock()
        self._follow = Rule(Condition("ListOffsets"), "park", times=None, proceed=self._follows, quiet=True)

    def open(self) -> None:
        """Begin to follow the requests: before the first chunk, so that the rest of a call is not taken for a new one."""
        self._board.arm(self._follow)

    def close(self) -> None:
        """Idempotent."""
        self._board.disarm(self._follow)

    @contextmanager
    def together(self, sources: Collection[tuple[frozenset[str], ...]]) -> Iterator[None]:
        """While the block runs, hold each query's request for its first source; the rest of a call that has begun passes.

        ``sources``: for each query the topics of its sources, in the order of its offset log. The block begins when every client
        that polls a first source is held.
        """
        first = frozenset[str]().union(*(one[0] for one in sources if 1 < len(one) <= _MOST_ORDERED))
        if not first:
            yield
            return
        hold = Rule(Condition("ListOffsets"), "park", times=None, proceed=lambda frame: frame is self._held, quiet=True)
        self._board.arm(hold)
        with self._lock:
            self._first = first
        try:
            with suppress(WaitTimeout):
                wait_until("queries to ask for end offsets", self._all_held, deadline_s=_POLLS_WITHIN_S, every_s=0.002)
            yield
        finally:
            with self._lock:
                self._first, self._held = frozenset(), None
                for name, asked in self._parked.items():
                    self._clients[name].asked = asked
                self._parked = {}
            self._board.disarm(hold)

    def _all_held(self) -> bool:
        with self._lock:
            alive = time.monotonic() - _ALIVE_S
            return all(
                name in self._parked
                for name, one in self._clients.items()
                if one.at > alive and not one.topics.isdisjoint(self._first)
            )

    def _follows(self, frame: Frame) -> bool:
        """Note a request, and decide in `_held` whether it is held. The proxy's thread calls it, before the other rule's."""
        topics = set(frame.facts.get("topics", ()))
        asked = set(frame.facts.get("partitions", ()))
        with self._lock:
            self._held = None
            if topics and topics <= self._partitions.keys():
                name = str(frame.facts.get("client_id"))
                client = self._clients.setdefault(name, _Client())
                client.at = time.monotonic()
                begins = not client.asked.isdisjoint(asked) or self._complete(client)
                client.topics = topics if begins else client.topics | topics
                if begins and not topics.isdisjoint(self._first):
                    self._held = frame
                    self._parked[name] = self._parked.get(name, set()) | asked
                else:
                    client.asked = asked if begins else client.asked | asked
        return False

    def _complete(self, client: _Client) -> bool:
        """Whether the client's last call has asked for every partition of its topics, or it has made none yet."""
        return len(client.asked) == sum(self._partitions[topic] for topic in client.topics)
