"""The judge finds the same anomalies, under its own names, in the unit-test histories of Jepsen's Kafka workload.

Source: jepsen-io/jepsen at c4c7473, ``jepsen/test/jepsen/tests/kafka_test.clj``; each test names its counterpart there.
`docs/jepsen.md` maps the names of anomalies, and lists the tests without counterpart, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge

from .workload import Op, poll, readers, send, writers

Found = dict[str, set[str]]


@pytest.fixture
def read(make_run: Callable[[Path], Any], tmp_path: Path) -> Callable[[Sequence[Op], str], Verdict]:
    """The verdict on what consumers read from the log, as one output."""

    def verdict(ops: Sequence[Op], output: str) -> Verdict:
        run = make_run(tmp_path / "readers")
        readers(run, ops, output)
        return judge(run.save())

    return verdict


@pytest.fixture
def written(make_run: Callable[[Path], Any], tmp_path: Path) -> Callable[[Sequence[Op]], Verdict]:
    """The verdict on the log, compared with what producers sent."""

    def verdict(ops: Sequence[Op]) -> Verdict:
        run = make_run(tmp_path / "writers")
        writers(run, ops)
        return judge(run.save())

    return verdict


def found(verdict: Verdict, output: str) -> Found:
    """Anomaly -> values in one output (for the input topic: offsets)."""
    assert not any("Traceback" in why or "Error" in why for why in verdict.not_evaluated.values()), (
        verdict.not_evaluated
    )
    values: Found = {}
    for finding in verdict.findings:
        if finding.output == output:
            who = [str(w.identity.get("v", w.identity.get("offset"))) for w in finding.witnesses]
            assert len(who) == finding.total
            values.setdefault(finding.anomaly, set()).update(who)
    return values


def ok(process: int, f: str, *value: Any) -> Op:
    return Op(process, "ok", f, list(value))


def info(process: int, f: str, *value: Any) -> Op:
    return Op(process, "info", f, list(value))


def fail(process: int, f: str, *value: Any) -> Op:
    return Op(process, "fail", f, list(value))


Writing = Callable[[Sequence[Op]], Verdict]
Reading = Callable[[Sequence[Op], str], Verdict]

TWO_AT_ONE_OFFSET = [
    info(0, "send", send("x", 1, 0), send("y", 1)),
    ok(1, "send", send("x", 2, 0)),
]


def test_version_orders_real_world(read: Reading) -> None:
    """version-orders-test, "a real-world example": two acknowledgements of one offset."""
    ops = [ok(379, "send", send("11", 641, 537)), ok(363, "send", send("11", 645, 537))]
    assert found(read(ops, "seen"), "in") == {"input-lost": {"537"}}


def test_inconsistent_offsets_of_a_crash(read: Reading) -> None:
    """inconsistent-offsets-test: a send that crashed need not have happened."""
    assert "input-lost" not in found(read(TWO_AT_ONE_OFFSET, "seen"), "in")


def test_inconsistent_offsets_of_a_crash_that_happened(read: Reading) -> None:
    """inconsistent-offsets-test: a consumer read another value of the crashed transaction."""
    ops = [*TWO_AT_ONE_OFFSET, ok(2, "poll", poll(y=[(5, 1)]))]
    assert found(read(ops, "seen"), "in") == {"input-lost": {"0"}}


def test_g1a(read: Reading) -> None:
    ops = [fail(0, "send", send("x", 2), send("y", 3)), ok(1, "poll", poll(x=[(0, 2)]))]
    assert found(read(ops, "seen"), "seen") == {"aborted-read": {"2"}}


def test_lost_write_consistent(read: Reading) -> None:
    ops = [
        ok(0, "send", send("x", "a", 0)),
        ok(0, "send", send("x", "b", 1), send("x", "d", 3)),
        info(1, "send", send("x", "c")),
        ok(0, "poll", poll(x=[(2, "c")])),
    ]
    # d is after everything that was polled: Jepsen counts it as unseen, which that test does not check.
    assert found(read(ops, "seen"), "seen") == {"lost-write": {"a", "b"}, "stale-tail": {"d"}}


def test_lost_write_inconsistent(read: Reading) -> None:
    """Two values were acknowledged at one offset, and b was read: the log lost a."""
    ops = [
        ok(0, "send", send("x", "a", 0)),
        ok(0, "send", send("x", "b", 0), send("x", "c", 2)),
        ok(0, "poll", poll(x=[(0, "b"), (2, "c")])),
    ]
    verdict = read(ops, "seen")
    assert found(verdict, "in") == {"input-lost": {"0"}}
    assert found(verdict, "seen") == {}


@pytest.mark.parametrize("polled", [False, True])
def test_lost_write_atomic(read: Reading, polled: bool) -> None:
    """Reading a of a crashed transaction proves that its b was committed, too."""
    ops = [
        info(0, "send", send("x", "a"), send("y", "b", 0)),
        info(1, "send", send("y", "c")),
        *([ok(2, "poll", poll(x=[(0, "a")]))] if polled else []),
        ok(3, "poll", poll(y=[(1, "c")])),
    ]
    assert found(read(ops, "seen"), "seen") == ({"lost-write": {"b"}} if polled else {})


def skipping(*between: list[Op]) -> list[Op]:
    """poll-skip-test: process 0 reads 1, 2, then 4, then 7; other processes read 3 and 6; 5 may be a gap."""
    first, second = between or ([], [])
    return [
        ok(0, "poll", poll(x=[(1, "a"), (2, "b")])),
        ok(1, "poll", poll(x=[(3, "c")])),
        *first,
        ok(0, "poll", poll(x=[(4, "d")])),
        *second,
        ok(2, "send", send("x", "f", 6)),
        ok(0, "poll", poll(x=[(7, "g")])),
        info(3, "send", *(send("x", value) for value in "abcdg")),
    ]


def test_poll_skip(read: Reading) -> None:
    assert found(read(skipping(), "sessions"), "sessions") == {"lost-write": {"c", "f"}}


def test_poll_skip_with_the_key_given_up_in_between(read: Reading) -> None:
    ops = skipping([ok(0, "subscribe", "y")], [info(0, "assign", "y")])
    assert found(read(ops, "sessions"), "sessions") == {}


def test_poll_skip_with_the_key_kept(read: Reading) -> None:
    ops = skipping([ok(0, "subscribe", "x", "y")], [ok(0, "assign", "x", "y")])
    assert found(read(ops, "sessions"), "sessions") == {"lost-write": {"c", "f"}}


def counting(*polls: tuple[str, list[int]]) -> list[Op]:
    """poll-skip-test, "txn abort": values 0 to 5 at their offsets, and what one consumer polls."""
    return [
        ok(0, "send", *(send("x", n, n) for n in range(6))),
        *(Op(1, end, "txn", [poll(x=[(n, n) for n in shown])]) for end, shown in polls),
    ]


def test_poll_skip_rolled_back(read: Reading) -> None:
    """poll-skip-test, "good": after an abort, and after a crash, the consumer starts again from its previous position."""
    ops = counting(("ok", [0]), ("fail", [1, 2]), ("info", [1, 2]), ("ok", [1, 2]))
    assert found(read(ops, "sessions"), "sessions") == {}


def test_poll_skip_not_rolled_back(read: Reading) -> None:
    """poll-skip-test, "abort doesn't roll back": Jepsen names 1 and 2 at the third poll, and 1 to 4 at the last."""
    ops = counting(("ok", [0]), ("fail", [1, 2]), ("fail", [3, 4]), ("ok", [5]))
    assert found(read(ops, "sessions"), "sessions") == {"lost-write": {"1", "2", "3", "4"}}


def test_poll_skip_of_a_crash(read: Reading) -> None:
    """poll-skip-test, "info can be a poll-skip"."""
    ops = counting(("ok", [0]), ("fail", [1, 2]), ("info", [3, 4]))
    assert found(read(ops, "sessions"), "sessions") == {"lost-write": {"1", "2"}}


def going_back(*between: Op) -> list[Op]:
    """nonmonotonic-poll-test: 1 2 3, then 2 again."""
    return [
        ok(0, "send", *(send("x", value) for value in "abcd")),
        ok(0, "poll", poll(x=[(1, "a"), (2, "b"), (3, "c")])),
        *between,
        ok(0, "poll", poll(x=[(2, "b"), (3, "c"), (4, "d")])),
    ]


@pytest.mark.parametrize("f", [None, "subscribe", "assign"])
def test_nonmonotonic_poll(read: Reading, f: str | None) -> None:
    """A value that a consumer reads again is a second effect: a duplicate."""
    ops = going_back(*([ok(0, f, "x", "y")] if f else []))
    assert found(read(ops, "sessions"), "sessions") == {"duplicate": {"b", "c"}}


@pytest.mark.parametrize("f", ["subscribe", "assign"])
def test_nonmonotonic_poll_with_the_key_given_up_in_between(read: Reading, f: str) -> None:
    assert found(read(going_back(ok(0, f, "y")), "sessions"), "sessions") == {}


def sending_back(*between: Op) -> list[Op]:
    """nonmonotonic-send-test: offsets 3 and 4, then 1 and 2."""
    return [
        ok(0, "send", send("x", "c", 3), send("x", "d", 4)),
        *between,
        ok(0, "send", send("x", "a", 1), send("x", "b", 2)),
    ]


@pytest.mark.parametrize("f", [None, "subscribe", "assign"])
def test_nonmonotonic_send(written: Writing, f: str | None) -> None:
    """Jepsen names the pair d and a; we name the value that was sent first and is after one that was sent later."""
    ops = sending_back(*([ok(0, f, "x", "y")] if f else []))
    assert found(written(ops), "log") == {"reordered": {"c", "d"}}


@pytest.mark.parametrize(("f", "end"), [("subscribe", "ok"), ("assign", "info")])
def test_nonmonotonic_send_with_the_key_given_up_in_between(written: Writing, f: str, end: str) -> None:
    assert found(written(sending_back(Op(0, end, f, ["y"]))), "log") == {}


def test_int_poll_skip(read: Reading) -> None:
    """Within one operation, and within one poll: both skip b."""
    ops = [
        info(1, "send", *(send("x", value) for value in "abd")),
        ok(0, "poll", poll(x=[(1, "a"), (4, "d")])),
        ok(0, "poll", poll(x=[(1, "a")]), poll(x=[(4, "d")])),
        ok(0, "poll", poll(x=[(2, "b")])),
    ]
    (finding,) = read(ops, "polls").findings
    assert (finding.anomaly, finding.total) == ("lost-write", 2)
    assert [w.identity for w in finding.witnesses] == [{"s": "op 1", "v": "b"}, {"s": "op 2", "v": "b"}]


def test_int_nonmonotonic_poll(read: Reading) -> None:
    """One operation reads c before a, another reads c twice."""
    ops = [
        info(0, "send", *(send("x", value) for value in "abc")),
        ok(0, "poll", poll(x=[(3, "c"), (1, "a")])),
        ok(0, "poll", poll(x=[(2, "b"), (3, "c")]), poll(x=[(3, "c")])),
    ]
    assert found(read(ops, "polls"), "polls") == {"reordered": {"a"}, "duplicate": {"c"}}


def test_int_nonmonotonic_send(written: Writing) -> None:
    """c was sent before a, and d before b; the second pair's offsets are known from a poll only."""
    ops = [
        ok(0, "send", send("x", "c", 3), send("x", "a", 1)),
        info(0, "send", send("y", "d"), send("y", "b")),
        info(1, "send", send("y", "c")),
        ok(0, "poll", poll(y=[(2, "b"), (3, "c"), (4, "d")])),
    ]
    assert found(written(ops), "log") == {"reordered": {"c", "d"}}


def test_duplicate(written: Writing) -> None:
    """duplicate-test, "basic": a was acknowledged at 1 and polled at 3."""
    ops = [
        ok(0, "send", send("x", "a", 1)),
        info(1, "send", send("x", "b")),
        ok(2, "poll", poll(x=[(2, "b"), (3, "a")])),
    ]
    assert found(written(ops), "log") == {"duplicate": {"a"}}


@pytest.mark.parametrize("value", range(10))
def test_duplicate_hash_insensitive(written: Writing, value: int) -> None:
    """duplicate-test, "hash-insensitive": ten such values; in Jepsen all at the same two offsets, here one by one."""
    ops = [ok(0, "send", send("x", value, 0)), ok(1, "poll", poll(x=[(1, value)]))]
    assert found(written(ops), "log") == {"duplicate": {str(value)}}


def test_duplicate_hash_insensitive_offsets(read: Reading) -> None:
    """The same ten at one offset: nine of the acknowledged values are not in the log."""
    ops = [ok(0, "send", send("x", value, 0)) for value in range(10)]
    verdict = read(ops, "seen")
    assert [(f.anomaly, f.total) for f in verdict.findings if f.output == "in"] == [("input-lost", 9)]


def test_duplicate_of_aborted_transactions(written: Writing) -> None:
    """duplicate-test, "aborted txns": 0 is in the log twice, whether or not anyone read it; 1 was never written."""
    ops = [
        ok(0, "send", send("x", 0, 1)),
        fail(0, "send", send("x", 1, 2)),
        fail(1, "poll", poll(x=[(11, 0), (12, 1)])),
    ]
    assert found(written(ops), "log") == {"duplicate": {"0"}}


def test_empty_history(read: Reading) -> None:
    verdict = read([ok(0, "assign", "x")], "seen")
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()


@pytest.mark.parametrize(("length", "unseen"), [(2, {"a", "b"}), (3, {"b"}), (4, set())])
def test_unseen(read: Reading, length: int, unseen: set[str]) -> None:
    """unseen-test: what was sent and never read, after each operation."""
    ops = [
        ok(0, "poll", poll()),
        ok(0, "send", send("x", "a", 0), send("x", "b", 1)),
        ok(0, "poll", poll(x=[(0, "a")])),
        ok(0, "poll", poll(x=[(1, "b")])),
    ][:length]
    assert found(read(ops, "seen"), "seen") == ({"stale-tail": unseen} if unseen else {})


def test_precommitted_read(read: Reading) -> None:
    """A transaction reads what it sent itself before it is committed."""
    ops = [ok(0, "txn", send("x", "a", 0), poll(x=[(0, "a")]))]
    assert found(read(ops, "polls"), "polls") == {"precommitted-read": {"a"}}
