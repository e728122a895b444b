"""docs/consumers.md: its scenario is valid, its example lines are requests, and it names every variable of a consumer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from onceproof.consumers import gate
from onceproof.consumers.brokers import amqp as amqp_broker
from onceproof.consumers.brokers import kafka as kafka_broker
from onceproof.consumers.brokers import tables
from onceproof.consumers.gate import StepRequest
from onceproof.kinds import consumers as kind
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

pytestmark = pytest.mark.sources

PAGE = (Path(__file__).parent.parent.parent / "docs" / "consumers.md").read_text(encoding="utf-8")


def test_the_scenario_of_the_page_matches_the_shipped_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    mine, shipped = load(path), load(find("amqp-redelivery-reorders"))
    assert (mine.pipeline, mine.chaos, mine.claim) == (shipped.pipeline, shipped.chaos, shipped.claim)


def test_the_example_lines_of_the_page_are_valid_requests() -> None:
    lines = re.findall(r"^-> (.*)$", PAGE, re.MULTILINE)
    requests = [StepRequest.model_validate(json.loads(line)) for line in lines]
    assert [request.before for request in requests] == ["take", "effect", "acknowledge"]


def test_the_page_names_every_variable() -> None:
    sources = [
        Path(module.__file__).read_text(encoding="utf-8") for module in (kind, amqp_broker, kafka_broker, tables)
    ]
    given = {name for text in sources for name in re.findall(r'"(ONCEPROOF_\w+)":', text)}
    assert given and given == set(re.findall(r"`(ONCEPROOF_\w+)`", PAGE))


def test_the_docstring_of_the_gate_names_every_field_and_step() -> None:
    words = set(re.findall(r"\w+(?:-\w+)*", gate.__doc__ or ""))
    assert words >= {*get_args(gate.Step), *gate.StepRequest.model_fields, *gate.StepReport.model_fields}
    assert {"ONCEPROOF_ON_REFUSAL", "ONCEPROOF_RETRY"} <= words
