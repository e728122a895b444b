"""What a rule on frames asks for and can never find: told when the scenario is read, not after a run without a fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceproof.base.registry import suggest
from onceproof.faults.contract import SpecProblem
from onceproof.instruments.proxy.kafka import tells
from onceproof.scenario.model import Scenario

#: What only a client that writes to Kafka sends.
_WRITES = ("EndTxn", "AddPartitionsToTxn", "Produce")
_OF_KAFKA = ("topic", "transactional_id", "committed")
_OF_POSTGRES = ("sql", "transaction")


def never_found(asked: dict[str, Any], kind: str, target: str, scenario: Scenario, loc: str) -> Iterator[SpecProblem]:
    """``asked``: the keys of ``frame`` that are given; ``kind``: the request that it is about."""
    foreign = _OF_POSTGRES if target == "kafka" else _OF_KAFKA
    for key in foreign:
        if asked.get(key) is not None:
            of = "postgres" if target == "kafka" else "kafka"
            yield SpecProblem((loc, key), f"a frame of {target} has no {key}", f"that is for {of}: leave it out")
    if target == "kafka":
        yield from _of_kafka(asked, kind, scenario, loc)


def _of_kafka(asked: dict[str, Any], kind: str, scenario: Scenario, loc: str) -> Iterator[SpecProblem]:
    written = [name for name in scenario.topics() if name not in {spec.topic for spec in scenario.input}]
    if kind in _WRITES and not written and all(output.topic is None for output in scenario.outputs.values()):
        message = f"nothing here sends {kind}: no output is a topic, and pipeline.prepare.topics has none"
        yield SpecProblem((loc,), message, "target: postgres, or name the topic that the job writes to")
    for key in _OF_KAFKA:
        fact = "topics" if key == "topic" else key
        if asked.get(key) is not None and not tells(kind, fact):
            instead = "transactional_id" if key == "topic" and tells(kind, "transactional_id") else None
            mend = f"choose it by {instead}" if instead else "leave it out"
            yield SpecProblem((loc, key), f"{kind} says nothing of a {key}: such a frame is never found", mend)
        elif key == "topic" and asked.get(key) is not None and asked[key] not in scenario.topics():
            known = suggest(asked[key], scenario.topics())
            yield SpecProblem((loc, key), f"no topic is named {asked[key]!r}", known)
