"""What a play makes of a message that its broker took back from who lives: given to another, or settled without an answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.timeline import Timeline
from onceproof.consumers import drive as drives
from onceproof.consumers import layout as layouts
from onceproof.consumers.drive import Drive
from onceproof.consumers.gate import Ask, Did
from onceproof.consumers.layout import GROUP, Message
from onceproof.consumers.state import Hand
from onceproof.reports.picture.picture import of_moves
from onceproof.scenario_files.load import find, load

M4 = Message(4, "orders")
Make = Callable[..., Drive]


class Steps:
    """A crew of which every member tells the same of its step."""

    def __init__(self, *told: Did, before: str = "acknowledge") -> None:
        self._told = list(told)
        self._before = before

    def mark(self, name: str) -> str:
        return name

    def at_step(self, name: str) -> Ask:
        return Ask(consumer=name, before=self._before)  # type: ignore[arg-type]

    def step(self, name: str) -> Ask:
        return Ask(consumer=name, before="take", did=self._told.pop(0))


def nothing(*_arguments: object) -> None:
    """Of queues that have nothing to say."""


SHARE = {"await_gone": nothing, "committed": nothing, "lock_briefly": nothing}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A play of three members, m4 published; its processes and its broker are what the test says."""

    def made(
        crew: Any, queues: dict[str, Any], name: str = "share-group-lock-timeout-duplicates", **spec: Any
    ) -> Drive:
        scenario = load(find(name))
        consumers = scenario.pipeline.consumers
        assert consumers is not None
        pipeline = scenario.pipeline.model_copy(
            update={"consumers": consumers.model_copy(update={"names": ["c1", "c2", "c3"], **spec})}
        )
        layout = layouts.of_scenario(scenario.model_copy(update={"pipeline": pipeline}))
        assert pipeline.consumers is not None
        timeline, there = Timeline(tmp_path / "events.jsonl"), SimpleNamespace(**queues)
        messages = [Message(number, "orders") for number in range(1, 5)]
        drive = Drive(pipeline.consumers, messages, layout, crew, there, [], timeline, [], 1.0)  # type: ignore[arg-type]
        drive._published = 4
        drive._open[GROUP, 4] = 1
        drive._ready[GROUP, "orders"] = set()
        return drive

    return made


def hand(drive: Drive, name: str, **state: Any) -> Hand:
    (its,) = (each for each in drive._hands if each.name == name)
    for field, value in state.items():
        setattr(its, field, value)
    return its


TAKEN = Did(step="take", message="m4", queue="orders")


def test_the_end_of_a_lock_that_no_fault_was_to_end_makes_a_play_worthless(make: Make) -> None:
    drive = make(Steps(TAKEN), SHARE)
    hand(drive, "c1", holds=M4)
    with pytest.raises(drives._Enough, match=r"c3 was given message 4, which c1 has: the lock of c1 ended"):
        drive._take(hand(drive, "c3"))
    assert not drive.stuck, "inconclusive: it says nothing of the pipeline"


def test_so_does_a_refused_acknowledgement_of_who_is_not_slow(make: Make) -> None:
    drive = make(Steps(Did(step="acknowledge", message="m4", lost=True, fenced=True)), SHARE)
    with pytest.raises(drives._Enough, match=r"c1 has message 4 no longer: the lock of c1 ended"):
        drive._finish(hand(drive, "c1", holds=M4))


@pytest.mark.parametrize("state", [{"kept": True, "lapsed": True}, {"lapsed": True}])
def test_what_the_slow_one_has_may_be_given_to_others(make: Make, state: dict[str, bool]) -> None:
    drive = make(Steps(TAKEN), SHARE)
    hand(drive, "c1", holds=M4, **state)
    drive._take(hand(drive, "c3"))
    assert hand(drive, "c3").holds == M4


@pytest.mark.parametrize("state", [{"kept": True, "lapsed": True}, {"lapsed": True}, {"cut_off": True}])
def test_who_dies_without_its_message_gives_nothing_back_and_settles_nothing(
    make: Make, state: dict[str, bool]
) -> None:
    drive = make(Steps(), SHARE)
    dead = hand(drive, "c1", holds=M4, acknowledged=True, anew=True, **state)
    drive._after_death(dead)
    assert [move.kind for move in drive.moves] == ["crash"] and drive._open[GROUP, 4] == 1
    assert not (dead.alive or dead.kept or dead.lapsed or dead.cut_off or dead.anew) and dead.holds is None


def test_an_effect_whose_commit_was_not_heard_of_counts_where_the_broker_has_it(make: Make) -> None:
    drive = make(Steps(), SHARE | {"committed": lambda _group: {0: 4}}, "ack-lost-transactional")
    drive._move("effect", "c1", M4)
    drive._move("lost", "c1", M4)
    drive._forgotten(hand(drive, "c1"), M4)
    assert [move.kind for move in drive.moves] == ["effect", "lost", "commit"] and drive._open[GROUP, 4] == 0
    drawn = of_moves("t", drive.moves, ["c1"], "out", ["a"] * 4, with_effect=True)
    assert [result.message for result in drawn.results] == [4]
    assert [row.kind for row in drawn.rows] == ["effect", "lost"], "it is no step of the consumer"


def test_so_does_one_whose_fault_saw_the_brokers_answer(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = make(Steps(), SHARE, "amqp-ack-lost-transactional")
    monkeypatch.setattr(drive.faults, "armed", [None])
    monkeypatch.setattr(drive, "_arrived", lambda *_asked: True)
    drive._move("lost", "c1", M4)
    drive._forgotten(hand(drive, "c1"), M4)
    assert [move.kind for move in drive.moves] == ["lost", "commit"] and drive._open[GROUP, 4] == 0


def test_where_nothing_is_committed_it_is_only_settled(make: Make) -> None:
    drive = make(Steps(), SHARE | {"committed": lambda _group: {0: 4}}, "ack-lost-duplicates")
    drive._forgotten(hand(drive, "c1"), M4)
    assert drive.moves == [] and drive._open[GROUP, 4] == 0
