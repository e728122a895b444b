"""Collecting a run's outputs and inputs with fresh readers, once everything is healed and the job has stopped."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onceproof.base.timeline import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.stack.api import Stack
from onceproof.stores.kafka.read_back import collect_topics
from onceproof.stores.postgres.read_back import collect_postgres


def collect(
    scenario: Scenario, stack: Stack, writer: HistoryWriter, timeline: Timeline
) -> tuple[dict[str, Any], dict[str, dict[int, int]]]:
    """Write the tables ``input``, ``output``, ``partitions``, ``commits`` and ``snapshot``.

    Returns what ``run.json`` keeps: each output's columns and counts, and where each input partition ends.
    """
    topics = {name: spec.topic for name, spec in scenario.outputs.items() if spec.topic is not None}
    found, back = collect_topics(stack.kafka, [spec.topic for spec in scenario.input], topics, writer, timeline)
    outputs: dict[str, Any] = {name: {"columns": None, **asdict(counts)} for name, counts in back.items()}
    if stack.postgres is not None:
        for name, table in collect_postgres(stack.postgres, tables(scenario), writer).items():
            outputs[name] = asdict(table)
    return outputs, {topic: counts.ends for topic, counts in found.items()}


def tables(scenario: Scenario) -> dict[str, str]:
    """Output -> Postgres table; the table in which its sink keeps its own progress stands under ``OUTPUT#progress``."""
    found = {name: spec.table for name, spec in scenario.outputs.items() if spec.table is not None}
    for name, spec in scenario.outputs.items():
        if spec.progress is not None:
            found[f"{name}#progress"] = spec.progress.table
    return found
