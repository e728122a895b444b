"""Finds settings of a rule on frames that no frame can ever match, when the scenario is validated instead of after a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.instruments.proxy.kafka import reports
from onceproof.scenario.model import Scenario

#: Requests that only a client that writes to Kafka sends.
_WRITES = ("EndTxn", "AddPartitionsToTxn", "Produce")
_OF_KAFKA = ("topic", "transactional_id", "committed")
_OF_POSTGRES = ("sql", "transaction")


def unmatchable(asked: dict[str, Any], kind: str, target: str, scenario: Scenario, loc: str) -> Iterator[SpecProblem]:
    """A problem for each key of ``frame`` that no frame of this ``kind`` can match. ``asked``: the keys of ``frame``."""
    foreign = _OF_POSTGRES if target == "kafka" else _OF_KAFKA
    for key in foreign:
        if asked.get(key) is not None:
            other = "postgres" if target == "kafka" else "kafka"
            yield SpecProblem((loc, key), f"a frame of {target} has no {key}", f"that is for {other}: remove it")
    if target == "kafka":
        yield from _of_kafka(asked, kind, scenario, loc)


def _of_kafka(asked: dict[str, Any], kind: str, scenario: Scenario, loc: str) -> Iterator[SpecProblem]:
    written = [name for name in scenario.topics() if name not in {spec.topic for spec in scenario.input}]
    if kind in _WRITES and not written and all(output.topic is None for output in scenario.outputs.values()):
        message = f"the job never sends {kind}: no output is a topic, and pipeline.prepare.topics names none"
        yield SpecProblem((loc,), message, "use target: postgres, or name the topic that the job writes to")
    for key in _OF_KAFKA:
        fact = "topics" if key == "topic" else key
        if asked.get(key) is not None and not reports(kind, fact):
            instead = "transactional_id" if key == "topic" and reports(kind, "transactional_id") else None
            hint = f"choose it by {instead}" if instead else "remove it"
            yield SpecProblem((loc, key), f"{kind} carries no {key}: no frame can match", hint)
        elif key == "topic" and asked.get(key) is not None and asked[key] not in scenario.topics():
            known = suggest(asked[key], scenario.topics())
            yield SpecProblem((loc, key), f"no topic is named {asked[key]!r}", known)
