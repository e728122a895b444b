"""Waiting for the markers of transactions. That real coordinators are asked is tested by each run that reads topics back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import ServiceFailed, WaitTimeout
from onceproof.stack.kafka import transactions
from onceproof.stack.kafka.transactions import Transaction, await_markers

KAFKA: Any = SimpleNamespace(check_health=lambda: None)


def answers(monkeypatch: pytest.MonkeyPatch, *states: str | None) -> list[str | None]:
    """Coordinators report a transaction in these states, one after the other, the last one for ever; None: a broker is away."""
    left = [*states]

    def asked(_kafka: object) -> list[Transaction]:
        state = left.pop(0) if len(left) > 1 else left[0]
        if state is None:
            raise ServiceFailed("the broker does not answer")
        return [Transaction("t", state)]

    monkeypatch.setattr(transactions, "open_transactions", asked)
    return left


def test_a_transaction_that_is_ending_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    left = answers(monkeypatch, "PrepareCommit", None, "PrepareAbort", "Ongoing")
    await_markers(KAFKA)
    assert left == ["Ongoing"], "a transaction that was left open is not waited for"


def test_a_transaction_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "PrepareCommit")
    monkeypatch.setattr(transactions, "_END_S", 0.1)
    with pytest.raises(WaitTimeout, match="t is PrepareCommit"):
        await_markers(KAFKA)
