"""What a start of the driver executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """A command and its environment."""

    command: Sequence[str]
    env: Mapping[str, str]
    """The whole environment."""
