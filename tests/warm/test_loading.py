"""A user's function is loaded again for each start: what its modules remembered is gone, as after a crash."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onceproof.pipeline.callable_driver import arguments
from onceproof.scenario.model import DRIVER, PipelineSpec
from onceproof.warm.loading import load_again


def test_variables_of_the_module_and_of_those_next_to_it_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "warm_helper_of_test.py").write_text("seen = []\n")
    (tmp_path / "warm_job_of_test.py").write_text(
        "from warm_helper_of_test import seen\nmine = []\n"
        "def build(value):\n    seen.append(value); mine.append(value)\n    return list(seen), list(mine)\n"
    )
    name = f"{tmp_path / 'warm_job_of_test.py'}:build"
    paths = len(sys.path)
    first = load_again(name)
    assert first(1) == ([1], [1]) and first(2) == ([1, 2], [1, 2])
    assert load_again(name)(3) == ([3], [3])
    assert first(4) == ([1, 2, 4], [1, 2, 4])  # an earlier start keeps what it has
    assert len(sys.path) == paths + 1


def test_arguments_of_the_scenario_become_those_of_the_function() -> None:
    spec = PipelineSpec.model_validate({"callable": "jobs:build", "args": {"topic-name": "{topic.x}", "fast": True}})
    assert spec.command == [*DRIVER, "jobs:build", "--topic-name={topic.x}", "--fast"]
    assert arguments(spec.command[len(DRIVER) + 1 :]) == {"topic_name": "{topic.x}", "fast": True}
    assert PipelineSpec.model_validate(spec.model_dump()) == spec
    with pytest.raises(ValueError, match="not an argument"):
        arguments(["plain"])


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"callable": "jobs:build", "command": ["python", "job.py"]}, "callable replaces command"),
        ({"callable": "jobs:build", "consumers": {"names": ["a"]}}, "callable builds a Spark query"),
    ],
)
def test_a_callable_with_another_job_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PipelineSpec.model_validate(given)
