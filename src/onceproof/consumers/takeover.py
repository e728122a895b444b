"""Who is slower than its broker waits, and what becomes of what it has: another is given that, and it is back when it is done.

A share group gives out the one record whose lock has ended. A consumer group deals all its partitions out anew, first among those
who are left, then among all; nobody takes anything while that is under way, for what they would be given then is chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceproof.consumers.brokers.contract import DealsOut, Queues
from onceproof.consumers.layout import Message
from onceproof.consumers.state import Hand


class Takeover:
    """Of one play. ``hands`` are the schedule's own, in its order."""

    def __init__(self, hands: Sequence[Hand], queues: Queues) -> None:
        self._hands = hands
        self._queues = queues
        self._moving: set[str] = set()

    def keep(self, hand: Hand) -> None:
        """It works on, longer than the broker waits."""
        hand.kept = hand.lapsed = True
        self._moves(hand)

    def is_done(self, hand: Hand) -> None:
        """With what had become another's. In a group that deals out, it comes again as a new member."""
        hand.lapsed = False
        self._moves(hand)

    def _moves(self, hand: Hand) -> None:
        if isinstance(self._queues, DealsOut):
            self._moving.add(hand.group)

    @property
    def waits(self) -> bool:
        """Whether somebody is kept: another is to be given that message, and not a later one."""
        return any(hand.kept for hand in self._hands)

    @property
    def comes(self) -> bool:
        """Whether something is about to be dealt out, and somebody is there to have it."""
        return any(self._present(group) for group in self._moving)

    def may_take(self, hand: Hand) -> bool:
        return hand.alive and hand.holds is None and hand.group not in self._moving

    def loser(self, group: str, message: Message) -> Hand | None:
        """Who has that message, which has just been given to another of the group."""
        return next((h for h in self._hands if h.kept and h.group == group and h.holds == message), None)

    def settle(self) -> None:
        """Go by what the broker deals out. Not while a member that is to answer it has a message."""
        for group in sorted(self._moving):
            present = self._present(group)
            if not present or any(hand.holds for hand in present):
                continue
            assert isinstance(self._queues, DealsOut), "no other group moves"
            dealt = self._queues.settled([hand.name for hand in present])
            for hand in self._hands:
                if hand.group == group:
                    hand.queues = dealt.get(hand.name, ())
            self._moving.discard(group)

    def _present(self, group: str) -> list[Hand]:
        """Its members: one whose message is another's is none until it is done with that."""
        return [hand for hand in self._hands if hand.group == group and hand.alive and not hand.lapsed]
