"""The shipped message definitions are those of the pinned kafka-clients jar."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from onceproof.instruments.proxy.kafka_schema import api_names, layout

from .wire import valid_versions

pytestmark = [pytest.mark.real, pytest.mark.services]


def test_the_definitions_equal_those_of_the_pinned_jar() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "kafka_messages.py"))
    assert tool["TARGET"].read_text(encoding="utf-8") == tool["text"](tool["clients_jar"]())


def test_every_version_has_a_layout() -> None:
    for api in api_names(decoded=True):
        for version in valid_versions(api):
            layout(api, "request", version)
            layout(api, "response", version)
