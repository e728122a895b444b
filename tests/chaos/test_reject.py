"""Reject: where it can be placed. That it bites is shown by the real scenarios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from onceproof.chaos.reject import RejectSpec
from onceproof.faults import SpecProblem

SPEC: dict[str, Any] = {
    "fault": "reject",
    "target": "postgres",
    "how": "unavailable",
    "at": {"batch": 2, "point": "after-offset-log"},
}


def test_postgres_goes_away_when_the_batch_is_planned(problems: Callable[..., list[SpecProblem]]) -> None:
    assert problems(SPEC) == []
    assert problems({**SPEC, "at": {"batch": 2, "point": "after-commit-log"}})[0].loc == ("at", "point")
    assert problems(SPEC, postgres=False)[0].loc == ("target",)


@pytest.mark.parametrize("change", [{"how": "politely"}, {"how": None}, {"target": "kafka"}])
def test_other_refusals_are_not_there_yet(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RejectSpec.model_validate({**SPEC, **change})
