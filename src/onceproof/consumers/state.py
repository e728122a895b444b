"""What a play knows of each consumer while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

from onceproof.consumers.layout import Message


@dataclass
class Hand:
    """One consumer, as the schedule sees it."""

    name: str
    group: str
    queues: tuple[str, ...]
    alive: bool = True
    holds: Message | None = None
    acknowledged: bool = False
    released: bool = False
    cut_off: bool = False
    """The broker has taken back what it had in hand, and it does not know yet."""
    anew: bool = False
    """Its next take makes a new connection."""
    due: int = 0
    back_at: int | None = None
    kept: bool = False
    """At its step, until another has been given what it holds."""
    lapsed: bool = False
    """What it holds is no longer its own."""
