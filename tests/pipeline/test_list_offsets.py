"""Which requests for end offsets are held while chunks are sent, and which pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Frame
from onceproof.instruments.proxy.rules import Board, Rule
from onceproof.pipeline import list_offsets
from onceproof.pipeline.list_offsets import ListOffsetsHold

ORDERS, PAYMENTS = frozenset({"orders"}), frozenset({"payments"})
SOURCES = [(ORDERS, PAYMENTS)]


def ask(client: str, *partitions: str) -> Frame:
    """One client's request for the end offsets of partitions like ``orders-0``."""
    topics = sorted({name.rpartition("-")[0] for name in partitions})
    return Frame(b"", "ListOffsets", {"client_id": client, "topics": topics, "partitions": list(partitions)})


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def hold(board: Board) -> Iterator[ListOffsetsHold]:
    hold = ListOffsetsHold(board, {"orders": 2, "payments": 1})
    hold.open()
    yield hold
    hold.close()
    assert not board.in_use


def is_held(board: Board, frame: Frame) -> Rule | None:
    return board.rule_for(frame)


def test_the_first_source_is_held_and_the_second_passes(board: Board, hold: ListOffsetsHold) -> None:
    assert not is_held(board, ask("a", "orders-0", "orders-1"))
    with hold.together(SOURCES):
        assert not is_held(board, ask("b", "payments-0")), "the plan has begun before"
        assert is_held(board, ask("a", "orders-0", "orders-1"))
        assert not is_held(board, ask("c", "other-0")), "nobody feeds this topic"
    assert not is_held(board, ask("a", "orders-0", "orders-1")), "nothing is held any more"


def test_what_was_held_is_delivered_at_the_end(board: Board, hold: ListOffsetsHold) -> None:
    delivered = threading.Event()
    with hold.together(SOURCES):
        rule = is_held(board, ask("a", "orders-0", "orders-1"))
        assert rule is not None and rule.action == "park" and rule.quiet
        rule.when_released(delivered.set)
        assert not delivered.is_set()
    assert delivered.is_set()


def test_the_rest_of_a_call_that_has_begun_passes(board: Board, hold: ListOffsetsHold) -> None:
    """A client asks each broker for the partitions that it leads."""
    assert not is_held(board, ask("a", "orders-1"))
    with hold.together(SOURCES):
        assert not is_held(board, ask("a", "orders-0")), "its first half was answered without the chunk"
        assert is_held(board, ask("a", "orders-0"))
        assert is_held(board, ask("a", "orders-1")), "both halves of the next call"
    with hold.together(SOURCES):
        assert is_held(board, ask("a", "orders-1")), "the held call counts as a whole one"


def test_a_call_that_is_made_again_is_a_new_one(board: Board, hold: ListOffsetsHold) -> None:
    assert not is_held(board, ask("a", "orders-1"))
    with hold.together(SOURCES):
        assert is_held(board, ask("a", "orders-1")), "the driver died, or the leader has changed"


@pytest.mark.parametrize("sources", [[(ORDERS,), (PAYMENTS,)], [(ORDERS | PAYMENTS,)], [(ORDERS,) * 5], []])
def test_nothing_is_held_without_a_query_of_several_sources_whose_order_is_known(
    board: Board, hold: ListOffsetsHold, sources: list[tuple[frozenset[str], ...]]
) -> None:
    with hold.together(sources):
        assert not is_held(board, ask("a", "orders-0", "orders-1"))


def test_the_chunks_wait_until_every_query_that_polls_is_held(
    board: Board, hold: ListOffsetsHold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "_POLLS_WITHIN_S", 60.0)
    for client in ("a", "b"):
        is_held(board, ask(client, "orders-0", "orders-1"))
    is_held(board, ask("c", "payments-0"))
    begun = threading.Event()

    def send() -> None:
        with hold.together(SOURCES):
            begun.set()

    sending = threading.Thread(target=send)
    sending.start()
    try:
        wait_until("the hold", lambda: hold._first == ORDERS, deadline_s=10.0)
        assert is_held(board, ask("a", "orders-0", "orders-1"))
        assert not begun.wait(0.1)
        assert is_held(board, ask("b", "orders-0", "orders-1"))
        assert begun.wait(10.0), "the client of the second topic is not waited for"
    finally:
        sending.join(70.0)


def test_a_query_that_waits_for_its_trigger_is_not_waited_for_long(
    board: Board, hold: ListOffsetsHold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "_POLLS_WITHIN_S", 0.05)
    is_held(board, ask("a", "orders-0", "orders-1"))
    with hold.together(SOURCES):
        assert is_held(board, ask("a", "orders-0", "orders-1")), "it may poll while the chunks are sent"
