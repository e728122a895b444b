"""What the executor of a schedule knows about each consumer."""

from __future__ import annotations

from dataclasses import dataclass

from onceproof.consumers.layout import Message


@dataclass
class ConsumerState:
    name: str
    group: str
    queues: tuple[str, ...]
    """The queues that it may take from at the moment."""
    alive: bool = True
    holds: Message | None = None
    """The message that it has taken and is not done with."""
    acknowledged: bool = False
    """Whether it has acknowledged that message."""
    released: bool = False
    """Whether it has given that message back unprocessed."""
    cut_off: bool = False
    """Whether a fault cut its connection, and it does not know yet that the broker has taken its message back."""
    reconnects: bool = False
    """Whether its next take makes a new connection."""
    due: int = 0
    """The tick at which its work on the message ends."""
    back_at: int | None = None
    """The tick at which it is started again after its death."""
    held_back: bool = False
    """Whether a fault holds it at its step until the broker has given its message to another consumer."""
    stopped: bool = False
    """Whether a fault has stopped it, while everything else continues."""
    refusals: int = 0
    """How often in a row its output has refused the message that it has."""
    lapsed: bool = False
    """Whether its lock, or its assignment of the partition, has ended, so that the message is no longer its own."""

    @property
    def waits(self) -> bool:
        """Whether it does nothing at the moment, whatever is due."""
        return self.held_back or self.stopped
