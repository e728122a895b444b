"""The tiers: how the driver of a job is killed and started again. A faster one only screens: real kills confirm its findings."""

from __future__ import annotations

from typing import Literal, get_args

from onceproof.base.errors import UsageError

Tier = Literal["real", "kept"]

TIERS: tuple[Tier, ...] = get_args(Tier)


def tier_of(name: str) -> Tier:
    """Raises `UsageError` for an unknown tier."""
    found = next((tier for tier in TIERS if tier == name), None)
    if found is None:
        raise UsageError(f"--tier {name!r}: there is no such tier", hint=f"choose one of: {', '.join(TIERS)}")
    return found
