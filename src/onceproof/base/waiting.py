"""The only way to wait in onceproof: a named reason, a probe, a deadline. Nothing sleeps for a guessed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import tenacity

from onceproof.base.errors import WaitTimeout

T = TypeVar("T")


def wait_until(
    reason: str,
    probe: Callable[[], T | None],
    *,
    deadline_s: float,
    every_s: float = 0.05,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
    abandon: Callable[[], None] | None = None,
    explain: Callable[[], str] | None = None,
    hint: str | None = None,
) -> T:
    """Call ``probe`` until it returns something truthy, and return that.

    A probe that raises one of ``ignoring`` counts as one that returned nothing. ``abandon`` is called before each probe and may raise an error to stop waiting (the process died).
    ``explain`` returns the last state (and log lines) for the time-out error.
    Raises `WaitTimeout` naming ``reason`` once a probe that began after ``deadline_s`` seconds has found nothing: on a loaded
    machine this thread may be delayed after a probe, and what it waits for may happen meanwhile.
    """

    began = 0.0

    def attempt() -> T | None:
        nonlocal began
        began = time.monotonic()
        if abandon is not None:
            abandon()
        try:
            return probe()
        except ignoring:
            return None

    started = time.monotonic()
    waiter = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda value: not value),
        wait=tenacity.wait_fixed(every_s),
        stop=lambda _state: began - started >= deadline_s,
        retry_error_callback=lambda _state: None,
    )
    value = waiter(attempt)
    if value:
        return value
    state = f"; last seen: {explain()}" if explain is not None else ""
    waited = time.monotonic() - started
    raise WaitTimeout(f"gave up after {waited:.1f} s waiting for {reason}{state}", hint=hint)
