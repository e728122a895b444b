"""Consumers on a real AMQP broker: each naive schedule shows its anomaly at every execution, and the remedies hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count
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
from onceproof.scenario_files.load import load, resolved
from onceproof.scenario_files.shipped import find
from onceproof.stack.amqp.broker import EmbeddedAmqp
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]

SHIPPED = find("amqp-redelivery-reorders")
#: The names of an execution's topics, queues and groups begin with its number; the broker of this module keeps the old ones.
NUMBERS = count(1)
OWN = Path(__file__).parent.parent / "scenarios" / "jobs" / "own_consumer.py"
NAMES = "names: [c1, c2]"
RunOnce = Callable[[str | Path], Result]
Execute = Callable[..., tuple[Verdict, list[int]]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AmqpBroker]:
    with Owner() as owner:
        log = tmp_path_factory.mktemp("amqp") / "amqp.log"
        yield AmqpBroker(EmbeddedAmqp.start(owner, log, components.ensure_amqp(progress=False)))


@pytest.fixture
def execute(broker: AmqpBroker, tmp_path: Path) -> Execute:
    """``execute(after=..., ...)``: the shipped schedule with another crash of c2 over m3 and other text changes, judged."""

    def once(
        after: str = "take", message: int = 3, chaos: bool = True, changes: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Verdict, list[int]]:
        crash = "{message: 3, while: {consumer: c1, holds: 4}}"
        text = resolved(SHIPPED)
        # After a take the crash is the shipped one: m3 is overtaken only if m4 has been taken by then.
        at = crash if (after, message) == ("take", 3) else f"{{message: {message}, after: {after}}}"
        for old, new in {crash: at, **changes}.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / SHIPPED.name
        path.write_text(text)
        directory = RunDir.below(tmp_path / "run")
        scenario = load(path) if chaos else load(path).model_copy(update={"chaos": []})
        execute_once(scenario, tmp_path, lambda *_: broker, directory, number=next(NUMBERS))
        rows = pq.read_table(directory.path / "history" / "output.parquet").to_pylist()
        return judge(directory.path), [json.loads(row["content"])["id"] for row in rows]

    return once


def order(result: Result) -> list[int]:
    rows = pq.read_table(result.run_dir / "history" / "output.parquet").to_pylist()
    return [json.loads(row["content"])["id"] for row in rows]


def test_a_redelivered_message_comes_after_its_successor(run_once: RunOnce) -> None:
    result = run_once(SHIPPED)
    assert result.verdict.outcome is Outcome.VIOLATED and result.verdict.anomalies() == {"reordered": 1}
    assert order(result) == [1, 2, 4, 3, 5]
    (fault,) = result.verdict.faults
    assert fault.evidence == (
        "c2 took message 3 from orders at tick 2 and was killed after take",
        "c1 had taken message 4 from orders at tick 3",
        "the broker gave it to c1 at tick 5, marked as redelivered",
    )


def test_without_the_crash_the_same_schedule_is_in_order(execute: Execute) -> None:
    """Otherwise the different speeds of the consumers, and not the redelivery, would explain the reordering."""
    verdict, ids = execute(chaos=False)
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert ids == [1, 2, 3, 4, 5]


def test_with_one_queue_per_consumer_no_message_overtakes_another(run_once: RunOnce) -> None:
    result = run_once("amqp-queue-per-consumer")
    assert result.verdict.outcome is Outcome.HELD, result.verdict.reasons
    (fault,) = result.verdict.faults
    assert fault.hit and "the broker gave it to c2 at tick 13, marked as redelivered" in fault.evidence
    assert sorted(order(result)) == [1, 2, 3, 4, 5]


def test_the_twins_differ_only_in_the_queues() -> None:
    naive, remedy = load(SHIPPED), load(find("amqp-queue-per-consumer"))
    assert (naive.chaos, naive.claim, naive.oracle) == (remedy.chaos, remedy.claim, remedy.oracle)
    assert naive.pipeline.consumers is not None and remedy.pipeline.consumers is not None
    assert naive.pipeline.consumers.model_copy(update={"queues": "own"}) == remedy.pipeline.consumers


def test_a_replay_comes_to_the_same_and_leaves_no_files(run_once: RunOnce) -> None:
    run_dir = run_once(SHIPPED).run_dir
    done = replay(run_dir, times=2, report=print)
    assert (done.times, done.same, done.verdicts, done.different) == (2, 2, {"violated": 2}, ())
    assert not (run_dir / "replays").exists()


def test_a_replay_with_another_outcome_is_reported_and_kept(
    run_once: RunOnce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(run_once(SHIPPED).run_dir, tmp_path / "other")
    document = json.loads((other / "run.json").read_text())
    document["scenario"]["chaos"] = []  # the history has a crash, the schedule none
    (other / "run.json").write_text(json.dumps(document))
    done = replay(other, times=1, report=print)
    assert (done.same, done.verdicts) == (0, {"held": 1})
    assert json.loads((Path(done.different[0]) / "verdict.json").read_text())["verdict"] == "held"
    monkeypatch.setattr(components, "ensure_amqp", lambda: {}["no broker to be had"])
    with pytest.raises(KeyError):
        replay(other, times=1, report=print)
    assert Path(done.different[0]).is_dir(), "a replay that never began must not remove what an earlier one kept"


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


def test_a_crash_between_effect_and_acknowledgement_duplicates(execute: Execute) -> None:
    verdict, ids = execute("effect")
    assert verdict.anomalies() == {"duplicate": 1} and ids.count(3) == 2


def test_a_crash_between_acknowledgement_and_effect_loses(execute: Execute) -> None:
    verdict, ids = execute("acknowledge", changes={NAMES: f"{NAMES}\n    acknowledge: before-effect"})
    assert verdict.anomalies() == {"lost-write": 1} and 3 not in ids
    assert verdict.faults[0].hit


@pytest.mark.parametrize(
    ("acknowledge", "after"),
    [("before-effect", "take"), *(("with-effect", after) for after in ("take", "effect", "acknowledge"))],
)
def test_an_unsettled_message_is_redelivered_without_a_duplicate_or_a_loss(
    execute: Execute, acknowledge: str, after: str
) -> None:
    verdict, ids = execute(after, changes={NAMES: f"{NAMES}\n    acknowledge: {acknowledge}"})
    assert verdict.anomalies() == {"reordered": 1} and sorted(ids) == [1, 2, 3, 4, 5]
    assert verdict.faults[0].hit and "the broker gave it to c1" in verdict.faults[0].evidence[-1]


def test_a_crash_whose_position_is_never_reached_is_inconclusive_and_names_the_holder(execute: Execute) -> None:
    verdict, ids = execute(message=1)
    assert verdict.outcome is Outcome.INCONCLUSIVE and ids == [1, 2, 3, 4, 5]
    assert "c2 never held message 1: c1 held it" in verdict.reasons[0]


def test_a_users_own_consumer_replaces_the_worker(execute: Execute) -> None:
    """It acknowledges first, whatever the scenario says, and is found out."""
    command = f'pipeline:\n  command: ["{{python}}", "{OWN}"]'
    verdict, ids = execute("acknowledge", changes={"pipeline:": command})
    assert verdict.anomalies() == {"lost-write": 1} and ids == [1, 2, 4, 5]


def test_a_consumer_that_dies_by_itself_is_reported_as_broken_with_its_last_words(execute: Execute) -> None:
    command = """pipeline:\n  command: ["{python}", -c, "raise SystemExit('no such thing as a queue')"]"""
    verdict, ids = execute(changes={"pipeline:": command})
    assert verdict.outcome is Outcome.INCONCLUSIVE and ids == []
    assert "died before any fault" in verdict.reasons[0] and "no such thing as a queue" in verdict.reasons[0]


def test_a_consumer_that_dies_of_a_redelivered_message_is_a_stale_tail(execute: Execute, tmp_path: Path) -> None:
    """The crash had struck, so this end means that the pipeline did not recover, not that it never worked."""
    source = OWN.read_text().replace("did = {", 'frame and frame.redelivered and exit("poison")\n    did = {', 1)
    (tmp_path / "poisoned.py").write_text(source)
    command = f'pipeline:\n  command: ["{{python}}", "{tmp_path / "poisoned.py"}"]'
    verdict, _ = execute(changes={"pipeline:": command})
    assert verdict.outcome is Outcome.VIOLATED and "stale-tail" in verdict.anomalies()
    assert "c1 ended by itself in a take" in verdict.faults[0].evidence[-1]
    assert "in its step 'take'" in verdict.findings[0].witnesses[0].argument


def test_a_consumer_without_its_mark_is_refused(execute: Execute, tmp_path: Path) -> None:
    lines = [line for line in OWN.read_text().splitlines() if not line.startswith("mark.")]
    (tmp_path / "markless.py").write_text("\n".join(lines))
    command = f'pipeline:\n  command: ["{{python}}", "{tmp_path / "markless.py"}"]'
    with pytest.raises(EnvironmentProblem, match="consumer c1 came to its first step without its mark"):
        execute(changes={"pipeline:": command})


def test_messages_that_no_consumer_is_left_to_take_are_a_stale_tail(execute: Execute) -> None:
    verdict, ids = execute(changes={"restart_after: 10": "queues: own", "partitions: 1": "partitions: 2"})
    assert verdict.anomalies() == {"stale-tail": 1} and 3 not in ids
    assert not verdict.faults[0].hit, "the message was never given out again"
