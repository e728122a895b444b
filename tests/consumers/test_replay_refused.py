"""Runs that `onceproof replay` refuses before it starts anything, and pictures that cannot be drawn, each with a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.errors import HistoryError, UsageError
from onceproof.cli.run import _picture
from onceproof.explore.replay import replay, stored_scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

SHIPPED = load(find("amqp-redelivery-reorders"))


def stored(folder: Path, *, secrets: list[str], **document: Any) -> Path:
    pipeline = SHIPPED.pipeline.model_copy(update={"secrets": secrets})
    scenario = SHIPPED.model_copy(update={"pipeline": pipeline}).model_dump(mode="json", by_alias=True)
    (folder / "run.json").write_text(json.dumps({"scenario": scenario, **document}))
    return folder


@pytest.mark.parametrize("name", ["effectively-once", "amqp-redelivery-reorders"])
def test_the_stored_scenario_of_a_run_is_the_one_that_was_run(tmp_path: Path, name: str) -> None:
    scenario = load(find(name)).model_copy(update={"base": None})  # a stored scenario has no base
    (tmp_path / "run.json").write_text(json.dumps({"scenario": scenario.model_dump(mode="json", by_alias=True)}))
    assert stored_scenario(tmp_path) == scenario


def test_a_run_that_was_not_observed_to_its_end_is_refused(tmp_path: Path) -> None:
    run_dir = stored(tmp_path, secrets=[], error="the disk was full")
    with pytest.raises(HistoryError, match="no whole history to compare a replay with: the disk was full"):
        replay(run_dir, times=1, report=print)


def test_a_secret_that_is_not_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    run_dir = stored(tmp_path, secrets=["MY_TOKEN"], observed=True)
    with pytest.raises(UsageError, match=r"secret 'MY_TOKEN'.*\n.*export MY_TOKEN=\.\.\."):
        replay(run_dir, times=1, report=print)


def test_a_picture_that_cannot_be_drawn_is_reported_in_one_line(tmp_path: Path) -> None:
    line = _picture(SHIPPED, tmp_path)
    assert line.startswith("no picture: ") and "is not a run: it is an empty folder" in line


def test_more_than_a_hundred_messages_are_drawn_only_on_request(tmp_path: Path) -> None:
    (spec,) = SHIPPED.input
    many = SHIPPED.model_copy(update={"input": [spec.model_copy(update={"rows": 101})]})
    assert _picture(many, tmp_path) == (
        f"no picture: 101 messages are too many for this report; draw it with `onceproof picture {tmp_path}`"
    )
