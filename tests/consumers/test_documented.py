"""docs/consumers.md: its scenario is valid, its lines are steps, and it names every variable that a consumer is given."""

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
from onceproof.consumers.gate import Ask
from onceproof.kinds import consumers as kind
from onceproof.scenario_files.load import find, load

pytestmark = pytest.mark.sources

PAGE = (Path(__file__).parent.parent.parent / "docs" / "consumers.md").read_text(encoding="utf-8")


def test_its_scenario_is_the_shipped_one_in_short(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    mine, shipped = load(path), load(find("amqp-redelivery-reorders"))
    assert (mine.pipeline, mine.chaos, mine.claim) == (shipped.pipeline, shipped.chaos, shipped.claim)


def test_its_lines_are_steps() -> None:
    lines = re.findall(r"^-> (.*)$", PAGE, re.MULTILINE)
    asked = [Ask.model_validate(json.loads(line)) for line in lines]
    assert [ask.before for ask in asked] == ["take", "effect", "acknowledge"]


def test_it_names_every_variable() -> None:
    sources = [
        Path(module.__file__).read_text(encoding="utf-8") for module in (kind, amqp_broker, kafka_broker, tables)
    ]
    given = {name for text in sources for name in re.findall(r'"(ONCEPROOF_\w+)":', text)}
    assert given and given == set(re.findall(r"`(ONCEPROOF_\w+)`", PAGE))


def test_the_gate_says_itself_what_is_asked_and_told_there() -> None:
    words = set(re.findall(r"\w+", gate.__doc__ or ""))
    assert words >= {*get_args(gate.Step), *gate.Ask.model_fields, *gate.Did.model_fields}
    assert {"ONCEPROOF_ON_REFUSAL", "ONCEPROOF_RETRY"} <= words
