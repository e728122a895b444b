"""A stopped request counts although its batch may be committed before the proxy's thread has added its hit."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from onceproof.faults.contract import Occurrence, Proof
from onceproof.faults.frames import StoppedRequest
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Board, Condition, Hit, Rule, now
from onceproof.scenario.points import Point

PUT = Frame(b"", "put", {"key": "bucket/checkpoint/q/commits/1"})
OTHER = Frame(b"", "put", {"key": "bucket/checkpoint/q/commits/.1.tmp"})


class Service:
    """A service behind the proxy, and what a fault asks of a run: batch 1 is committed once the service has its PUT."""

    def __init__(self) -> None:
        self.has_it = threading.Event()
        self.asked_since = threading.Event()
        """Set when the fault has seen that the batch is committed."""
        self._board = Board()

    def context(self) -> Any:
        return SimpleNamespace(
            job=SimpleNamespace(frozen=nullcontext),
            checkpoint=SimpleNamespace(log_exists=self._log_exists),
            board=lambda _service: self._board,
        )

    def _log_exists(self, _query: str, log: str, _batch: int) -> bool:
        if log == "offsets":
            return True
        committed = self.has_it.is_set()
        if committed:
            self.asked_since.set()
        return committed

    def pass_on(self, frame: Frame) -> Rule | None:
        """What the proxy's thread does first with a frame: ask the rules, and deliver it."""
        rule = self._board.rule_for(frame)
        self.has_it.set()
        return rule


def seen() -> Occurrence:
    return Occurrence("q", 1, Point.AFTER_OFFSET_LOG, "checkpoint")


def test_a_batch_that_is_committed_before_the_hit_was_added_is_not_a_miss() -> None:
    service = Service()
    stopped = StoppedRequest("object-store", Rule(Condition("put", key="commits/1$"), "drop-answer"))
    stopped.arm(service.context(), seen())

    def proxy() -> None:
        rule = service.pass_on(PUT)
        assert rule is not None
        assert service.asked_since.wait(10)
        rule.hits.append(Hit(PUT, "store", "127.0.0.1:1", now()))

    thread = threading.Thread(target=proxy)
    thread.start()
    found = stopped.wait_for_hit(service.context(), seen())
    thread.join(10)
    assert isinstance(found, Hit), cast(Proof, found).evidence


def test_a_batch_that_is_committed_without_the_request_is_a_miss_that_names_the_nearest() -> None:
    service = Service()
    stopped = StoppedRequest("object-store", Rule(Condition("put", key="commits/1$"), "drop-answer"))
    stopped.arm(service.context(), seen())
    service.pass_on(OTHER)
    found = stopped.wait_for_hit(service.context(), seen())
    assert isinstance(found, Proof) and not found.hit
    text = "\n".join(map(str, found.evidence))
    assert "batch 1 was committed without a put" in text and "commits/.1.tmp" in text
