"""Crash of Postgres: where it can be placed. The real scenario shows its effect."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from onceproof.chaos.crash.postgres import PostgresCrash, PostgresCrashSpec
from onceproof.faults.contract import SpecProblem, reads_frames
from onceproof.instruments.proxy.rules import Board

SPEC: dict[str, Any] = {
    "fault": "crash",
    "target": "postgres",
    "at": {"batch": 2, "point": "before-sink-commit"},
    "frame": {"transaction": "departures"},
}


@pytest.mark.parametrize("target", ["postgres", "postgres-backend"])
def test_it_is_placed_before_the_sinks_commit(problems: Callable[..., list[SpecProblem]], target: str) -> None:
    spec = {**SPEC, "target": target}
    assert problems(spec) == []
    assert reads_frames([PostgresCrashSpec.model_validate(spec)])
    (problem,) = problems({**spec, "at": {"batch": 2, "point": "after-sink-commit"}})
    assert problem.loc == ("at", "point") and "before-sink-commit" in (problem.hint or "")
    assert problems(spec, postgres=False)[0].loc == ("target",)


def test_a_frame_of_the_other_service_is_refused(problems: Callable[..., list[SpecProblem]]) -> None:
    (problem,) = problems({**SPEC, "frame": {"kind": "EndTxn"}})
    assert problem.loc == ("frame", "kind") and "postgres has no request 'EndTxn'" in problem.message


def test_a_frame_that_is_not_a_commit_of_postgres_is_refused(problems: Callable[..., list[SpecProblem]]) -> None:
    (problem,) = problems({**SPEC, "frame": {"kind": "statement", "sql": "INSERT"}})
    assert problem.loc == ("frame", "kind") and "everything is staged" in problem.message
    (problem,) = problems({**SPEC, "frame": {"service": "kafka"}})
    assert problem.loc == ("frame", "service")


def test_postgres_is_not_killed_after_the_fault_was_healed() -> None:
    crash = PostgresCrash(PostgresCrashSpec.model_validate(SPEC))
    killed: list[str] = []
    postgres = SimpleNamespace(kill=lambda: killed.append("postgres"))
    context: Any = SimpleNamespace(board=lambda _service: Board(), stack=SimpleNamespace(postgres=postgres))
    crash.heal(context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onceproof.chaos.crash.postgres._ask", lambda *_: "now")
        aborted, evidence = crash._crash(context, "7")
    assert not aborted and not killed and "the run ended" in evidence[0]


def test_in_a_job_with_several_queries_the_frame_must_identify_the_transaction(
    problems: Callable[..., list[SpecProblem]],
) -> None:
    (problem,) = problems({**SPEC, "frame": None}, queries=["one", "two"])
    assert problem.loc == ("frame",)
    assert problems(SPEC, queries=["one", "two"]) == []
