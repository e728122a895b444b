"""The search of `onceproof shrink` without services: executing is a function here, so the minima are known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.errors import EnvironmentProblem, Interrupted, OnceproofError, WaitTimeout
from onceproof.chaos.consumers.crash import CrashSpec
from onceproof.consumers.hints import ShrinkHints
from onceproof.consumers.schedule import ConsumerSchedule, WholeConsumers, messages_of
from onceproof.consumers.trace import Kind, TraceEvent
from onceproof.data import open_dataset
from onceproof.explore import minimal as minimal_module
from onceproof.explore.minimal import Minimal
from onceproof.explore.replay import SharedServices
from onceproof.explore.shrink import Executed, Shrink, Shrunk, TriedRemoval, to_json
from onceproof.judge.findings import Outcome
from onceproof.scenario.model import ConsumerFaultSpec, Scenario
from onceproof.scenario_files.checks import crosscheck
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

NAMES = ("c1", "c2", "c3", "c4")
WANTED = frozenset(["reordered"])


def crash(target: str, message: int, *, holder: str = "", holds: int = 0) -> ConsumerFaultSpec:
    at = {"message": message, **({"while": {"consumer": holder, "holds": holds}} if holds else {})}
    return CrashSpec.model_validate({"fault": "crash", "target": target, "at": at})


def schedule(messages: int, *faults: ConsumerFaultSpec, names: tuple[str, ...] = NAMES) -> ConsumerSchedule:
    return ConsumerSchedule(tuple(range(1, messages + 1)), names, faults)


def search(whole: ConsumerSchedule, shows: Callable[[ConsumerSchedule], bool], *, most: int = 2_000) -> Shrink:
    def execute(given: ConsumerSchedule) -> Executed:
        assert given.messages and given.names
        assert all(messages_of(fault) <= set(given.messages) for fault in given.faults), (
            "a fault names a removed message"
        )
        return Executed(WANTED if shows(given) else frozenset(), "reordered 1" if shows(given) else "held")

    return Shrink(whole, WANTED, WANTED, execute, most)


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=4),
    st.sets(st.sampled_from(NAMES), min_size=1, max_size=2),
    st.integers(0, 2),
)
def test_a_search_keeps_what_is_needed_and_nothing_else(messages: set[int], names: set[str], faults: int) -> None:
    """Without hints: the search finds any subset that makes the finding."""
    struck = sorted(messages)[:faults]
    whole = schedule(40, crash("c1", 40), *(crash("c2", message) for message in struck), crash("c3", 39))

    def shows(given: ConsumerSchedule) -> bool:
        hit = {fault.at.message for fault in given.faults}
        return messages <= set(given.messages) and names <= set(given.names) and set(struck) <= hit

    done = search(whole, shows).run()
    assert done.minimal and set(done.best.messages) == messages
    assert set(done.best.names) == names and len(done.best.faults) == len(struck)
    assert {t.came_to for t in done.tried} <= {"held"}


def test_with_the_right_hint_only_the_proof_of_minimality_is_left_to_do() -> None:
    whole = schedule(200, *(crash("c2", m, holder="c3", holds=m + 1) for m in (20, 90)))
    hint = ConsumerSchedule((20, 21), ("c2", "c3"), whole.faults[:1])
    seen: list[ConsumerSchedule] = []

    def shows(given: ConsumerSchedule) -> bool:
        seen.append(given)
        return len(given.messages) > 1 and len(given.names) > 1 and bool(given.faults)

    done = search(whole, shows).run([hint])
    assert done.best == hint and done.minimal and done.executions < 20
    assert {t.without for t in done.tried} == {"message 20", "message 21", "consumer c2", "consumer c3", "crash of c2"}
    assert max(len(given.messages) for given in seen[2:]) <= 2


def test_a_schedule_that_shows_the_finding_without_faults_too_is_not_taken() -> None:
    """Two messages alone are out of order here without a crash: that is not what the run has shown."""
    whole = schedule(12, crash("c1", 5))

    def shows(given: ConsumerSchedule) -> bool:
        return len(given.messages) == 2 or (bool(given.faults) and len(given.messages) > 2)

    done = search(whole, shows).run([whole.only([5, 6])])
    assert len(done.best.messages) == 3 and len(done.best.faults) == 1


def test_a_finding_that_needs_no_fault_is_shrunk_to_none() -> None:
    done = search(schedule(30, crash("c1", 5)), lambda given: len(given.messages) >= 2).run()
    assert done.best.size == (2, 1, 0) and done.minimal


def test_a_schedule_that_shows_another_anomaly_too_is_not_taken() -> None:
    whole = schedule(9, crash("c1", 5))
    other = frozenset(["reordered", "stale-tail"])
    done = Shrink(whole, WANTED, WANTED, lambda s: Executed(WANTED if s == whole else other, "?"), 200).run()
    assert done.best == whole and done.minimal


def test_a_schedule_that_makes_no_valid_scenario_is_not_executed_or_counted() -> None:
    whole = schedule(2, names=("c1",))
    done = Shrink(whole, WANTED, WANTED, lambda given: None, 1).run()
    assert done.best == whole and done.executions == 0 and done.minimal
    assert {t.came_to for t in done.tried} == {"not a valid scenario: the other parts need it"}


def test_used_up_executions_are_reported_and_the_result_is_not_called_minimal() -> None:
    done = search(schedule(60, crash("c1", 5)), lambda given: {5, 17, 44} <= set(given.messages), most=7).run()
    assert not done.minimal and done.executions == 7 and "7 executions were used up" in done.why_not
    assert {5, 17, 44} <= set(done.best.messages)


def test_an_interruption_keeps_the_best_so_far() -> None:
    whole, kept = schedule(40), []

    def execute(given: ConsumerSchedule) -> Executed:
        if len(given.messages) <= 10:
            raise Interrupted("interrupted by SIGINT")
        return Executed(WANTED, "reordered 1")

    done = Shrink(whole, WANTED, WANTED, execute, 60, kept.append).run()
    assert done.interrupted and not done.minimal and done.best == kept[-1] and len(done.best.messages) == 20
    assert to_json(done, whole)["after"] == {"messages": 20, "consumers": 4, "faults": 0}


def test_an_execution_that_fails_keeps_the_best_so_far() -> None:
    whole, kept = schedule(40), []

    def execute(given: ConsumerSchedule) -> Executed:
        if len(given.messages) <= 10:
            raise EnvironmentProblem("no member came", hint="wait")
        return Executed(WANTED, "reordered 1")

    done = Shrink(whole, WANTED, WANTED, execute, 60, kept.append).run()
    assert not done.minimal and not done.interrupted and done.why_not == "an execution failed: no member came"
    assert done.best == kept[-1] and len(done.best.messages) == 20


def test_a_first_execution_that_fails_raises_its_error() -> None:
    def execute(given: ConsumerSchedule) -> Executed:
        raise EnvironmentProblem("the disk is full")

    with pytest.raises(EnvironmentProblem, match="the disk is full"):
        Shrink(schedule(3), WANTED, WANTED, execute, 60).run()


def test_a_removal_that_shows_the_finding_without_faults_is_reported_as_another_cause() -> None:
    whole = schedule(2, crash("c1", 1), names=("c1",))
    done = search(whole, lambda given: given != whole.without_faults()).run()
    assert done.best == whole and done.minimal
    without = {t.came_to for t in done.tried if t.without == "message 2"}
    assert without == {"reordered 1, but also without its faults: another cause"}
    assert {t.came_to for t in done.tried if t.without == "crash of c1"} == {"held"}


def test_untried_ways_to_place_the_faults_prevent_a_proof_of_minimality() -> None:
    """Each of four faults has some 30 places once its message is removed."""
    whole = schedule(9, *(crash(name, 1) for name in NAMES))
    done = search(whole, lambda given: given == whole).run()
    assert done.best == whole and not done.minimal
    assert done.why_not == "only the first 256 ways to place the faults were tried without message 1"
    few = search(schedule(2, crash("c1", 1), names=NAMES[:2]), lambda given: len(given.messages) == 2).run()
    assert few.minimal and few.why_not == ""


def trace_of(*steps: str) -> list[TraceEvent]:
    """``"publish 3"``, ``"c2 take 3"``: one event per tick, all in one queue."""
    made = []
    for tick, text in enumerate(steps):
        *who, what, number = text.split()
        kind: Kind = what  # type: ignore[assignment]
        made.append(TraceEvent(kind, tick, 0.0, who[0] if who else "", int(number), "orders"))
    return made


TRACE = trace_of(
    "publish 1", "c1 take 1", "publish 2", "c2 take 2", "publish 3", "c3 take 3", "c2 crash 2", "c2 return 2", "c3 effect 3",
    "c3 acknowledge 3", "c3 take 2", "c1 effect 1", "c1 acknowledge 1", "c3 effect 2", "c3 acknowledge 2",
)  # fmt: skip


def test_the_first_hint_is_the_witness_its_overtaker_and_their_consumers() -> None:
    whole = schedule(9, crash("c4", 8), crash("c2", 2), names=("c1", "c2", "c3", "c4"))
    first, second, *_ = ShrinkHints(whole, TRACE, [[2]]).schedules()
    assert first == ConsumerSchedule((2, 3), ("c2", "c3"), (crash("c2", 2),))
    assert second == ConsumerSchedule((1, 2, 3), ("c1", "c2", "c3"), (crash("c2", 2),)), (
        "with the consumers that were busy then"
    )


def test_a_hint_keeps_the_message_that_its_fault_waits_for() -> None:
    whole = schedule(9, crash("c2", 2, holder="c1", holds=1))
    first, *_ = ShrinkHints(whole, TRACE, [[2]]).schedules()
    assert first.messages == (1, 2, 3) and first.names == ("c1", "c2", "c3")


def test_a_witness_that_no_fault_struck_is_attributed_to_the_last_fault_before_it() -> None:
    whole = schedule(9, crash("c1", 1), crash("c2", 2), crash("c4", 8))
    first, *_ = ShrinkHints(whole, TRACE, [[3]]).schedules()
    assert first.faults == (crash("c2", 2),) and {2, 3} <= set(first.messages)


@pytest.fixture(scope="module")
def shipped() -> Scenario:
    return load(find("amqp-redelivery-reorders"))


def test_messages_are_renumbered_wherever_they_are_named(shipped: Scenario) -> None:
    whole = WholeConsumers(shipped)
    made = whole.of(ConsumerSchedule((3, 4), ("c2", "c1"), whole.schedule.faults), find("amqp-redelivery-reorders"))
    consumers = made.pipeline.consumers
    assert consumers is not None and consumers.slow == {1: 2, 2: 2} and consumers.names == ["c2", "c1"]
    assert made.input[0].options == {"keys": ["order-2", "order-1"]}
    (fault,) = made.chaos
    assert isinstance(fault, ConsumerFaultSpec) and str(fault.at) == "message 1 after take while c1 holds message 2"


def test_schedules_that_execute_the_same_are_executed_once(shipped: Scenario) -> None:
    whole = WholeConsumers(shipped)
    first, second, slow = (whole.execution_key(ConsumerSchedule((message,), ("c1",), ())) for message in (1, 5, 4))
    assert first == second != slow


def test_queues_of_their_own_shrink_with_the_consumers(shipped: Scenario) -> None:
    whole = WholeConsumers(load(find("amqp-queue-per-consumer")))
    made = whole.of(replace(whole.schedule, names=("c2",), faults=()), find("amqp-redelivery-reorders"))
    assert made.input[0].partitions == 1


def test_the_last_consumer_of_a_group_is_removed_with_its_group_and_output() -> None:
    whole = WholeConsumers(load(find("fan-out")))
    made = whole.of(replace(whole.schedule, names=("biller", "shipper")), Path("records.jsonl"))
    assert made.pipeline.consumers is not None
    assert made.pipeline.consumers.groups == {"billing": ["biller"], "shipping": ["shipper"]}
    assert list(made.outputs) == ["billed", "shipped"] and crosscheck.of_schedule(made) == []


def stored(document: dict[str, Any], path: Path) -> Scenario:
    """The scenario of that document, without its faults."""
    path.write_text(json.dumps({**document, "name": path.stem, "chaos": []}), encoding="utf-8")
    return load(path)


@pytest.mark.parametrize("kind", ["sql", "identity"])
def test_a_group_that_keeps_a_consumer_keeps_its_output(kind: str, tmp_path: Path) -> None:
    document = load(find("fan-out")).model_dump(mode="json", by_alias=True)
    document["pipeline"]["consumers"] |= {"names": ["a", "b", "c"], "groups": {"billing": ["a", "b"], "audit": ["c"]}}
    del document["outputs"]["shipped"]
    if kind == "identity":
        columns = {name: {"id": "id"} for name in document["outputs"]}
        document["oracle"] = {"kind": "identity", "columns": columns, "where": {"audited": "id > 1"}}
    else:
        del document["oracle"]["queries"]["shipped"]
    whole = WholeConsumers(stored(document, tmp_path / "changed.yaml"))
    for names, outputs in ((("b", "c"), ["billed", "audited"]), (("a", "b"), ["billed"]), (("c",), ["audited"])):
        made = whole.of(replace(whole.schedule, names=names), Path("records.jsonl"))
        assert list(made.outputs) == outputs and crosscheck.of_schedule(made) == [], names


def test_queues_of_their_own_with_a_retry_topic_stay_valid(tmp_path: Path) -> None:
    document = load(find("retry-topic-reorders")).model_dump(mode="json", by_alias=True)
    document["pipeline"]["consumers"] |= {"names": ["c1", "c2", "retrier"], "queues": "own"}
    document["input"][0]["partitions"] = 2
    whole = WholeConsumers(stored(document, tmp_path / "changed.yaml"))
    made = whole.of(replace(whole.schedule, names=("c1", "retrier")), Path("records.jsonl"))
    assert made.input[0].partitions == 1 and crosscheck.of_schedule(made) == []
    assert crosscheck.of_schedule(whole.of(replace(whole.schedule, names=("retrier",)), Path("records.jsonl")))


def test_records_of_another_data_set_are_written_to_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    scenario = load(find("amqp-redelivery-reorders"))
    spec = scenario.input[0].model_copy(update={"dataset": "numbers", "options": {"rows": 9}, "rows": 6})
    whole = WholeConsumers(scenario.model_copy(update={"input": [spec]}))
    path = tmp_path_factory.mktemp("records") / "below" / "records.jsonl"
    made = whole.of(ConsumerSchedule((2, 6), ("c1",), ()), path).input[0]
    again = open_dataset(made.dataset, made.options, seed=7)
    assert list(again.records(0, again.rows())) == [whole.records[1], whole.records[5]]


def test_the_json_of_a_shrink_has_sizes_executions_and_minimality() -> None:
    whole = schedule(3)
    text = to_json(Shrunk(whole, 4, (), minimal=True), whole, run="x")
    assert text["before"] == text["after"] == {"messages": 3, "consumers": 4, "faults": 0}
    assert text["executions"] == 4 and text["minimal"] is True and text["run"] == "x"


@pytest.mark.parametrize(
    ("minimal", "interrupted", "confirmed", "code", "text"),
    [
        (True, False, True, 0, "nothing more can be removed:\n  without message 1 (2 ways): held; inconclusive: x"),
        (False, False, True, 3, "not proved to be minimal: 60 executions"),
        (True, False, False, 3, "did not show the same anomalies"),
        (False, True, False, 130, "not proved to be minimal: 60 executions"),
    ],
)
def test_the_text_and_the_exit_code_of_a_shrink(
    minimal: bool, interrupted: bool, confirmed: bool, code: int, text: str
) -> None:
    best = schedule(2, crash("c1", 1), names=("c1", "c2"))
    tried = (TriedRemoval("message 1", best, "held"), TriedRemoval("message 1", best, "inconclusive: x"))
    shrunk = Shrunk(best, 60, tried, minimal, "" if minimal else "60 executions were used up", interrupted)
    run = Path("r")
    done = Minimal(run, ("reordered",), schedule(200, crash("c1", 1)), shrunk, run / "m.yaml", run, confirmed, 12.0)
    assert done.exit_code == code and text in done.as_text()
    assert "from 200 messages, 4 consumers, 1 fault\n  to 2 messages, 2 consumers, 1 fault, in 60" in done.as_text()
    assert done.to_json()["after"] == {"messages": 2, "consumers": 2, "faults": 1}


def test_a_schedule_becomes_a_scenario_file_that_runs_from_another_folder(shipped: Scenario, tmp_path: Path) -> None:
    pipeline = shipped.pipeline.model_copy(update={"env": {"WHERE": "{here}/x"}})
    spec = shipped.input[0].model_copy(update={"dataset": "numbers", "options": {"rows": 9}, "rows": None})
    whole = WholeConsumers(shipped.model_copy(update={"input": [spec], "pipeline": pipeline}))
    best = ConsumerSchedule((3, 4), ("c2", "c1"), whole.schedule.faults)
    written = load(minimal_module._write(whole, best, tmp_path / "shrunk", Path("/elsewhere"), ["reordered"]))
    assert written.pipeline.env == {"WHERE": "/elsewhere/x"} and written.pipeline.command == shipped.pipeline.command
    assert written.input[0].dataset == "file" and written.expect.anomalies == ["reordered"]
    assert written.claim == shipped.claim and written.chaos == whole.of(best, tmp_path / "r.jsonl").chaos


class Verdict:
    """The part of a verdict that a search reads."""

    outcome = Outcome.VIOLATED

    def anomalies(self) -> dict[str, int]:
        return {"reordered": 1}


@pytest.fixture
def endings(shipped: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Minimal]:
    """A whole shrink without a broker: every execution shows the finding, until the n-th ends as the test wants."""

    def shrink(at: int, ending: BaseException) -> Minimal:
        def once(executions: Any, scenario: Scenario, directory: Path, here: Path) -> None:
            executions.number += 1
            directory.mkdir(parents=True)
            if executions.number == at:
                raise ending

        nothing: dict[str, Any] = {
            "replayable": shipped, "judge": Verdict(), "folder_of_scenario": tmp_path, "_shrink_hints": [],
            "shared_services": nullcontext(SharedServices()), "check": Verdict(),
        }  # fmt: skip
        for name, answer in nothing.items():
            monkeypatch.setattr(minimal_module, name, lambda *_, answer=answer, **_options: answer)
        monkeypatch.setattr(ShrinkHints, "of_run", lambda _run, whole, _hints: ShrinkHints(whole, [], [[3]]))
        monkeypatch.setattr(minimal_module.picture_files, "write", lambda _: None)
        monkeypatch.setattr(minimal_module._Executions, "_execute_into", once)
        return minimal_module.shrink_run(tmp_path, anomaly=None, most=60, report=lambda _: None)

    return shrink


LEFT = ["amqp-redelivery-reorders-minimal.yaml", "run"]


@pytest.mark.parametrize("ending", [EnvironmentProblem("no member came"), WaitTimeout("gave up")])
def test_an_execution_that_fails_leaves_the_best_and_no_folder_of_an_execution(
    endings: Callable[..., Minimal], tmp_path: Path, ending: OnceproofError
) -> None:
    done = endings(2, ending)
    assert done.exit_code == 3 and f"not proved to be minimal: an execution failed: {ending}" in done.as_text()
    assert sorted(path.name for path in (tmp_path / "shrunk").iterdir()) == LEFT and done.scenario.is_file()


@pytest.mark.parametrize(
    ("ending", "code"), [(Interrupted("interrupted by SIGINT"), 130), (EnvironmentProblem("no member came"), 3)]
)
def test_a_failed_last_run_leaves_the_best(
    endings: Callable[..., Minimal], tmp_path: Path, ending: OnceproofError, code: int
) -> None:
    last = endings(-1, ending).shrunk.executions
    done = endings(last, ending)
    assert done.exit_code == code and done.shrunk.minimal
    assert f"the scenario file itself was not run: {ending}" in done.as_text()
    assert sorted(path.name for path in (tmp_path / "shrunk").iterdir()) == LEFT and done.run_dir is not None


def test_a_search_that_fails_at_once_leaves_nothing(endings: Callable[..., Minimal], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="no member came"):
        endings(1, EnvironmentProblem("no member came"))
    assert not (tmp_path / "shrunk").exists()
