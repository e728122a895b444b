"""A run writes its page however it ends, and keeps its verdict if the page cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.masking import hiding
from onceproof.base.timeline import Event
from onceproof.history.execution import Execution
from onceproof.judge.ending import accounted_for
from onceproof.reports.html.files import FILE, reported
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture
def execution(tmp_path: Path, heard: list[Event]) -> Execution:
    path = find("naive-append")
    made = Execution.create(load(path), path, tmp_path, [heard.append])
    made.begins()
    return made


def test_a_run_that_fails_has_a_page_with_the_error(execution: Execution) -> None:
    with pytest.raises(EnvironmentProblem), reported(execution), accounted_for(execution):
        raise EnvironmentProblem("Kafka is gone", hint="start it")
    page = (execution.directory.path / FILE).read_text()
    assert "naive-append" in page and "Kafka is gone" in page
    assert "processor" in page, "the machine is recorded"


def test_a_page_that_cannot_be_written_is_a_warning_and_shows_no_secret(
    execution: Execution, heard: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no space for s3cret-word")

    monkeypatch.setattr("onceproof.reports.html.files.write", fails)
    with hiding(["s3cret-word"]), reported(execution), accounted_for(execution):
        pass
    (warning,) = [event for event in heard if event.kind == "warning"]
    assert warning.data == {"message": f"there is no {FILE}: no space for ***"}
