"""Collecting a run's outputs and inputs with fresh readers, once everything is healed and the job has stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onceproof.events import Timeline
from onceproof.history.kafka import collect_input, collect_output
from onceproof.history.postgres import collect_postgres
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.stack.api import Stack


def collect(
    scenario: Scenario, stack: Stack, writer: HistoryWriter, timeline: Timeline
) -> tuple[dict[str, Any], dict[str, dict[int, int]]]:
    """Write the tables ``input``, ``output``, ``commits`` and ``snapshot``.

    Returns what ``run.json`` keeps: each output's columns and counts, and where each input partition ends.
    """
    found = collect_input(stack.kafka, list(dict.fromkeys(spec.topic for spec in scenario.input)), writer, timeline)
    outputs: dict[str, Any] = {}
    for name, spec in scenario.outputs.items():
        if spec.topic is not None:
            outputs[name] = {"columns": None, **asdict(collect_output(stack.kafka, name, spec.topic, writer))}
    tables = {name: spec.table for name, spec in scenario.outputs.items() if spec.table is not None}
    if stack.postgres is not None:
        for name, table in collect_postgres(stack.postgres, tables, writer).items():
            outputs[name] = asdict(table)
    return outputs, {topic: back.ends or {} for topic, back in found.items()}
