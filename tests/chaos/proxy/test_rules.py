"""Rules and who listens: values of their own, without a connection."""

from __future__ import annotations

import pytest

from onceproof.chaos.proxy.frames import Reply
from onceproof.chaos.proxy.rules import Board, Condition
from onceproof.errors import UsageError


@pytest.mark.parametrize("kind", ["EndTx", "Commit"])
def test_an_unknown_kind_of_frame_is_refused_with_what_is_near(kind: str) -> None:
    with pytest.raises(UsageError, match=f"no request is named '{kind}'"):
        Condition(kind)


def test_a_bad_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sql: '\(' is no regular expression"):
        Condition("commit", sql="(")


def test_who_listens_is_told_until_it_listens_no_more() -> None:
    board, one, other = Board(), list[Reply](), list[Reply]()
    reply = Reply(0.0, "postgres", "error", "42501", "permission denied for table t")
    board.told(reply)
    assert not board.listens
    board.listen(one)
    board.listen(other)
    board.told(reply)
    board.unlisten(one)
    board.unlisten(one)  # idempotent
    assert board.listens, "two lists that hold the same are two listeners"
    board.told(reply)
    assert (one, other) == ([reply], [reply, reply])
