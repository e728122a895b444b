"""Partition of an executor: where it can be used, what counts as a hit, and that the executor is connected again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.base.errors import ScenarioError, WaitTimeout
from onceproof.chaos.partition.executor import ExecutorPartition, ExecutorPartitionSpec
from onceproof.faults.contract import Occurrence, Proof
from onceproof.faults.tasks import Victim
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import Hit
from onceproof.pipeline.spark_tasks import TaskProcess
from onceproof.scenario.points import Point
from onceproof.scenario_files.load import load_file
from onceproof.stack.compose.profile import ComposeProfile

SCENARIO = """\
base: executor-crash
chaos:
  - {fault: partition, target: executor, at: {batch: 2, point: in-tasks}}
"""


def test_only_executors_in_containers_can_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "cut-off.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"n/a on the embedded stack: it needs control of the executors' network"):
        load_file(path)
    assert load_file(path, ComposeProfile.planned()).scenario.chaos


class Links:
    """Records which executors are cut off."""

    def __init__(self) -> None:
        self.cut_off: set[int] = set()
        self.ended = False

    def isolate(self, pid: int) -> str | None:
        if self.ended:
            return None
        self.cut_off.add(pid)
        return "container w was disconnected"

    def rejoin(self) -> None:
        self.cut_off.clear()


@pytest.fixture
def prove(seen: Callable[..., Occurrence], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Proof, Links]]:
    """The proof of a partition after which the batch is committed or not, with a frame that had this fate once it was released."""

    def prove(
        fate: dict[str, Any], *, committed: bool = True, restarted: bool = False, ended: bool = False
    ) -> tuple[Proof, Links]:
        at = {"batch": 2, "point": "in-tasks"}
        fault = ExecutorPartition(
            ExecutorPartitionSpec.model_validate({"fault": "partition", "target": "executor", "at": at})
        )
        links = Links()
        links.ended = ended
        hit = Hit(Frame(b"", "statement"), "postgres", "127.0.0.1:1", 0.0)
        job = SimpleNamespace(current_start=0)

        def release() -> None:
            assert links.cut_off == {2}, "its frame arrives before it is connected again"
            for name, value in fate.items():
                setattr(hit, name, value)

        def wait(reason: str, probe: Callable[[], Any], **_more: Any) -> Any:
            if "committed" in reason:
                assert links.cut_off == {2}
                job.current_start = int(restarted)
                if not committed:
                    raise WaitTimeout(reason)
                return True
            return probe()

        victim = Victim(TaskProcess("python-worker", 3, 1, "0", 2), hit, "127.0.0.1:2", ("it was sent",))
        monkeypatch.setattr(fault, "_find", lambda *_: victim)
        monkeypatch.setattr(
            fault, "_stopped", SimpleNamespace(rule=SimpleNamespace(release=release), close=lambda _context: None)
        )
        module = "onceproof.chaos.partition.executor"
        monkeypatch.setattr(f"{module}.committed", lambda *_: False)
        monkeypatch.setattr("onceproof.faults.tasks.wait_until", wait)
        monkeypatch.setattr(f"{module}.wait_for_event_log", lambda *_: "another attempt won")
        context: Any = SimpleNamespace(job=job, stack=SimpleNamespace(spark=links))
        try:
            return fault.prove(context, seen(Point.AFTER_OFFSET_LOG)), links
        finally:
            fault.heal(context)
            assert links.cut_off == set()

    return prove


ANSWERED = {"answer": Answer(b"", Frame(b"", "statement"), {"tags": ["INSERT 0 1"]})}


def test_a_batch_that_another_executor_commits_meanwhile_is_a_hit(prove: Callable[..., tuple[Proof, Links]]) -> None:
    proof, _links = prove(ANSWERED)
    said = " ".join(map(str, proof.evidence))
    assert proof.hit and "container w was disconnected" in said and "INSERT 0 1" in said


@pytest.mark.parametrize(
    ("fate", "more", "why"),
    [
        ({}, {"committed": False}, "no other attempt took over"),
        (ANSWERED, {"restarted": True}, "a replay committed the batch"),
        ({"undeliverable": "the service had gone"}, {}, "the service had gone"),
        ({}, {"ended": True}, "its executor ended before it could be cut off"),
    ],
)
def test_anything_else_is_a_miss(
    fate: dict[str, Any], more: dict[str, bool], why: str, prove: Callable[..., tuple[Proof, Links]]
) -> None:
    proof, _links = prove(fate, **more)
    assert not proof.hit and why in str(proof.evidence[-1])
