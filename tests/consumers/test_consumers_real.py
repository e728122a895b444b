"""Consumers on a real AMQP broker: each schedule shows what it is made to show, at every play, and the remedies hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from xml.etree import ElementTree as ET

import pyarrow.parquet as pq
import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.consumers.brokers.amqp import AmqpBroker
from onceproof.explore.replay import execute_once, replay
from onceproof.history.run_directory import RunDir
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge
from onceproof.reports.picture import files as picture_files
from onceproof.run import Result
from onceproof.scenario_files.load import find, load, resolved
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SHIPPED = find("amqp-redelivery-reorders")
OWN = Path(__file__).parent.parent / "scenarios" / "jobs" / "own_consumer.py"
NAMES = "names: [c1, c2]"
RunOnce = Callable[[str | Path], Result]
Play = Callable[..., tuple[Verdict, list[int]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    with Owner() as owner:
        log = tmp_path_factory.mktemp("amqp") / "amqp.log"
        yield AmqpBroker.start(owner, log, components.ensure_amqp(progress=False))


@pytest.fixture
def play(broker: AmqpBroker, tmp_path: Path) -> Play:
    """``play(after=..., **consumers)``: the shipped schedule with another crash of c2 over m3 and other consumers, judged."""

    def once(
        after: str = "take", message: int = 3, chaos: bool = True, changes: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Verdict, list[int]]:
        crash = "{message: 3, while: {consumer: c1, holds: 4}}"
        text = resolved(SHIPPED)
        # After a take the crash is the shipped one: m3 is only overtaken if m4 has been taken by then.
        at = crash if (after, message) == ("take", 3) else f"{{message: {message}, after: {after}}}"
        for old, new in {crash: at, **changes}.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / SHIPPED.name
        path.write_text(text)
        directory = RunDir.below(tmp_path / "run")
        scenario = load(path) if chaos else load(path).model_copy(update={"chaos": []})
        execute_once(scenario, tmp_path, lambda *_: broker, directory, number=id(directory))
        rows = pq.read_table(directory.path / "history" / "output.parquet").to_pylist()
        return judge(directory.path), [json.loads(row["content"])["id"] for row in rows]

    return once


def order(result: Result) -> list[int]:
    rows = pq.read_table(result.run_dir / "history" / "output.parquet").to_pylist()
    return [json.loads(row["content"])["id"] for row in rows]


def test_a_message_that_comes_again_comes_after_the_one_behind_it(run_once: RunOnce) -> None:
    result = run_once(SHIPPED)
    assert result.verdict.outcome is Outcome.VIOLATED and result.verdict.anomalies() == {"reordered": 1}
    assert order(result) == [1, 2, 4, 3, 5]
    (fault,) = result.verdict.faults
    assert fault.evidence == (
        "c2 took message 3 from orders at tick 2 and was killed after take",
        "c1 had taken message 4 from orders at tick 3",
        "the broker gave it to c1 at tick 5, marked as redelivered",
    )


def test_without_the_crash_the_same_schedule_is_in_order(play: Play) -> None:
    """Else the reordering would be that of two consumers at different speeds, and no redelivery's."""
    verdict, ids = play(chaos=False)
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert ids == [1, 2, 3, 4, 5]


def test_with_a_queue_a_consumer_it_waits_and_nothing_of_its_queue_overtakes_it(run_once: RunOnce) -> None:
    result = run_once("amqp-queue-per-consumer")
    assert result.verdict.outcome is Outcome.HELD, result.verdict.reasons
    (fault,) = result.verdict.faults
    assert fault.hit and "the broker gave it to c2 at tick 13, marked as redelivered" in fault.evidence
    assert sorted(order(result)) == [1, 2, 3, 4, 5]


def test_the_twins_differ_in_the_queues_alone() -> None:
    naive, remedy = load(SHIPPED), load(find("amqp-queue-per-consumer"))
    assert (naive.chaos, naive.claim, naive.oracle) == (remedy.chaos, remedy.claim, remedy.oracle)
    assert naive.pipeline.consumers is not None and remedy.pipeline.consumers is not None
    assert naive.pipeline.consumers.model_copy(update={"queues": "own"}) == remedy.pipeline.consumers


def test_a_replay_comes_to_the_same_and_leaves_nothing(run_once: RunOnce) -> None:
    run_dir = run_once(SHIPPED).run_dir
    done = replay(run_dir, times=2, tell=print)
    assert (done.times, done.same, done.verdicts, done.different) == (2, 2, {"violated": 2}, ())
    assert not (run_dir / "replays").exists()


def test_a_replay_that_comes_to_something_else_is_told_and_kept(
    run_once: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(run_once(SHIPPED).run_dir, tmp_path / "other")
    document = json.loads((other / "run.json").read_text())
    document["scenario"]["chaos"] = []  # the history is that of a crash, and the schedule is one without
    (other / "run.json").write_text(json.dumps(document))
    done = replay(other, times=1, tell=print)
    assert (done.same, done.verdicts) == (0, {"held": 1})
    assert json.loads((Path(done.different[0]) / "verdict.json").read_text())["verdict"] == "held"
    monkeypatch.setattr(components, "ensure_amqp", lambda: {}["no broker to be had"])
    with pytest.raises(KeyError):
        replay(other, times=1, tell=print)
    assert Path(done.different[0]).is_dir(), "what was kept is worth more than a replay that never began"


def test_the_picture_is_drawn_from_the_run(run_once: RunOnce) -> None:
    run_dir = run_once(SHIPPED).run_dir
    text = picture_files.write(run_dir)
    assert "what came out: m1, m2, m4, m3 (out of order), m5" in text and "X crash" in text
    ET.fromstring((run_dir / picture_files.SVG).read_text())


def test_no_password_is_left_behind(run_once: RunOnce) -> None:
    run_dir = run_once(SHIPPED).run_dir
    for path in run_dir.rglob("*"):
        if path.is_file():
            assert b"amqp://onceproof:" not in path.read_bytes(), path


def test_a_crash_between_effect_and_acknowledgement_duplicates(play: Play) -> None:
    verdict, ids = play("effect")
    assert verdict.anomalies() == {"duplicate": 1} and ids.count(3) == 2


def test_a_crash_between_acknowledgement_and_effect_loses(play: Play) -> None:
    verdict, ids = play("acknowledge", changes={NAMES: f"{NAMES}\n    acknowledge: before-effect"})
    assert verdict.anomalies() == {"lost-write": 1} and 3 not in ids
    assert verdict.faults[0].hit


@pytest.mark.parametrize(
    ("acknowledge", "after"),
    [("before-effect", "take"), *(("with-effect", after) for after in ("take", "effect", "acknowledge"))],
)
def test_what_was_not_settled_comes_again_and_is_neither_doubled_nor_lost(
    play: Play, acknowledge: str, after: str
) -> None:
    verdict, ids = play(after, changes={NAMES: f"{NAMES}\n    acknowledge: {acknowledge}"})
    assert verdict.anomalies() == {"reordered": 1} and sorted(ids) == [1, 2, 3, 4, 5]
    assert verdict.faults[0].hit and "the broker gave it to c1" in verdict.faults[0].evidence[-1]


def test_a_crash_that_can_never_come_is_inconclusive_and_says_who_held_the_message(play: Play) -> None:
    verdict, ids = play(message=1)
    assert verdict.outcome is Outcome.INCONCLUSIVE and ids == [1, 2, 3, 4, 5]
    assert "c2 never held message 1: c1 held it" in verdict.reasons[0]


def test_a_consumer_of_ones_own_takes_the_workers_place(play: Play) -> None:
    """It acknowledges first, whatever the scenario says, and is found out."""
    command = f'pipeline:\n  command: ["{{python}}", "{OWN}"]'
    verdict, ids = play("acknowledge", changes={"pipeline:": command})
    assert verdict.anomalies() == {"lost-write": 1} and ids == [1, 2, 4, 5]


def test_a_consumer_that_dies_by_itself_is_broken_and_its_words_are_told(play: Play) -> None:
    command = """pipeline:\n  command: ["{python}", -c, "raise SystemExit('no such thing as a queue')"]"""
    verdict, ids = play(changes={"pipeline:": command})
    assert verdict.outcome is Outcome.INCONCLUSIVE and ids == []
    assert "died before any fault" in verdict.reasons[0] and "no such thing as a queue" in verdict.reasons[0]


def test_a_consumer_that_dies_of_what_is_given_out_again_is_a_stale_tail(play: Play, tmp_path: Path) -> None:
    """The crash had struck, so the end of the other is no recovery, and not a pipeline that never worked."""
    source = OWN.read_text().replace("did = {", 'frame and frame.redelivered and exit("poison")\n    did = {', 1)
    (tmp_path / "poisoned.py").write_text(source)
    command = f'pipeline:\n  command: ["{{python}}", "{tmp_path / "poisoned.py"}"]'
    verdict, _ = play(changes={"pipeline:": command})
    assert verdict.outcome is Outcome.VIOLATED and "stale-tail" in verdict.anomalies()
    assert "c1 ended by itself in a take" in verdict.faults[0].evidence[-1]
    assert "in its step 'take'" in verdict.findings[0].witnesses[0].argument


def test_a_consumer_without_its_mark_is_refused(play: Play, tmp_path: Path) -> None:
    lines = [line for line in OWN.read_text().splitlines() if not line.startswith("mark.")]
    (tmp_path / "markless.py").write_text("\n".join(lines))
    command = f'pipeline:\n  command: ["{{python}}", "{tmp_path / "markless.py"}"]'
    with pytest.raises(EnvironmentProblem, match="consumer c1 came to its first step without its mark"):
        play(changes={"pipeline:": command})


def test_messages_that_nobody_is_left_to_take_are_a_stale_tail(play: Play) -> None:
    verdict, ids = play(changes={"restart_after: 10": "queues: own", "partitions: 1": "partitions: 2"})
    assert verdict.anomalies() == {"stale-tail": 1} and 3 not in ids
    assert not verdict.faults[0].hit, "it was never given out again"
