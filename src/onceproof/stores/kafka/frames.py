"""Requests to Kafka: those that write are Produce and, in transactions, EndTxn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from onceproof.base.registry import suggest
from onceproof.base.waiting import wait_until
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.kafka import reports
from onceproof.instruments.proxy.kafka_schema import api_names
from onceproof.instruments.proxy.rules import Hit
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Proxy, Stack, Stream
from onceproof.stores.frames import NOTHING_APPLIED, Following, Found, FrameSpec, SeenFrame, Service, Sink, nth_write
from onceproof.stores.kafka.state import undecided_topics
from onceproof.stores.kafka.transactions import OpenTransaction

_SETTLE_S = 20.0
"""EndTxn takes milliseconds once it has arrived, and Kafka aborts a transaction after its time-out of 10 s."""
#: Requests that only a client that writes to Kafka sends.
_WRITES = ("EndTxn", "AddPartitionsToTxn", "Produce")
#: The parts of a transactional id that may differ in the next batch or run.
_CHANGING = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+", re.IGNORECASE)


class KafkaFrames:
    """Implements `onceproof.stores.frames.StoreFrames`."""

    service: Service = "kafka"
    commit = "EndTxn"
    applying = ("EndTxn", "Produce")
    kinds = "EndTxn, Produce, AddPartitionsToTxn, ..."
    keys = ("topic", "transactional_id", "committed")
    in_task: Mapping[str, str] = {"kind": "Produce"}
    distinctions = "transactional_id, or kind and topic (EndTxn names no topic)"
    following = Following(
        "AddPartitionsToTxn",
        False,
        "deliver_before is missing: the request before which the late one arrives",
        "for example deliver_before: {kind: AddPartitionsToTxn, topic: my-topic}",
    )
    proof = ""
    #: After a closed connection the client would retry over another one, and succeed: so drop the bytes instead.
    cuts: tuple[str, Mapping[str, int]] = ("timeout", {"timeout": 0})
    spans_outputs = True

    def missing(self, scenario: Scenario) -> Complaint | None:
        return None

    def has(self, kind: str) -> bool:
        return kind in api_names()

    def usual(self, kind: str | None) -> Mapping[str, Any]:
        # An EndTxn that aborts must be asked for: where a commit is meant, an abort of the same batch may come first.
        return {"committed": True} if kind in (None, self.commit) else {}

    def identifies_query(self, spec: FrameSpec) -> bool:
        named = spec.kind is not None and spec.kind != "EndTxn"  # EndTxn names no topic
        return spec.transactional_id is not None or (named and spec.topic is not None)

    def unmatchable(self, asked: Mapping[str, Any], kind: str, scenario: Scenario, loc: str) -> Iterator[Complaint]:
        written = [name for name in scenario.topics() if name not in {spec.topic for spec in scenario.input}]
        if kind in _WRITES and not written and all(output.topic is None for output in scenario.outputs.values()):
            message = f"the job never sends {kind}: no output is a topic, and pipeline.prepare.topics names none"
            yield Complaint((loc,), message, "use target: postgres, or name the topic that the job writes to")
        for key in self.keys:
            if asked.get(key) is None:
                continue
            if not reports(kind, "topics" if key == "topic" else key):
                instead = "transactional_id" if key == "topic" and reports(kind, "transactional_id") else None
                hint = f"choose it by {instead}" if instead else "remove it"
                yield Complaint((loc, key), f"{kind} carries no {key}: no frame can match", hint)
            elif key == "topic" and asked[key] not in scenario.topics():
                known = suggest(asked[key], scenario.topics())
                yield Complaint((loc, key), f"no topic is named {asked[key]!r}", known)

    def proxies(self, stack: Stack) -> list[Proxy]:
        return [stack.kafka.client_proxy(broker) for broker in stack.kafka.brokers]

    def recorded(self, frame: Frame) -> dict[str, Any] | None:
        if frame.kind not in ("EndTxn", "Produce"):
            return None
        facts = frame.facts
        ids = {name: facts.get(name) for name in ("transactional_id", "committed")}
        return {"topics": list(facts.get("topics") or ()), **ids}

    def similarity(self, recorded: Mapping[str, Any]) -> str:
        """Topics, and the transactional id without its changing parts."""
        fixed_id = _CHANGING.sub("#", str(recorded["transactional_id"]))
        return f"{recorded['topics']} {recorded['committed']} {fixed_id}"

    def sink_of(self, scenario: Scenario, name: str, frames: list[SeenFrame], *, several: bool) -> Found | str:
        topic = scenario.outputs[name].place
        produced = [one for one in _produced(frames) if topic in one.event.data["topics"]]
        if not produced:
            return f"no Produce to {topic} was seen in any batch with data"
        first = {"kind": "Produce", "topic": topic}
        write = {**first, "nth": nth_write(produced)}
        ended = [one for one in frames if one.event.data["frame"] == "EndTxn" and one.event.data["committed"]]
        own = _ids(produced)
        other_topics = {output.topic for output in scenario.outputs.values()} - {topic}
        others = _ids([one for one in _produced(frames) if other_topics & {*one.event.data["topics"]}]) - own
        if ended and own and not others and not several:
            return Sink("kafka", "", {}, "EndTxn", topic, write=write), ended
        if ended and own:
            ended = [one for one in ended if one.event.data["transactional_id"] in own]
            named = _pattern(own, others)
            if named is None or not ended:
                return "its EndTxn cannot be distinguished from another's: it names no topic, and the transactional ids are similar"
            return Sink("kafka", "", {"transactional_id": named}, f"EndTxn of {topic}", topic, write=write), ended
        words = f"first Produce to {topic}, which has no commit"
        return Sink("kafka", "", first, words, topic, commits=False, write=write), produced

    def describe(self, frame: Frame) -> str:
        facts = frame.facts
        parts = [frame.kind]
        if facts.get("committed") is not None:
            parts.append("(commit)" if facts["committed"] else "(abort)")
        if facts.get("transactional_id") is not None:
            parts.append(f"of transactional.id {facts['transactional_id']}")
        if facts.get("producer_epoch") is not None:
            parts.append(f"(producer {facts['producer_id']}, epoch {facts['producer_epoch']})")
        if facts.get("topics"):
            parts.append(f"on {', '.join(facts['topics'])}")
        return " ".join([*parts, f"with correlation id {facts['correlation_id']}"])

    def describe_answer(self, facts: Mapping[str, Any]) -> str:
        codes = facts.get("error_codes")
        if codes is None:
            return "an answer that could not be read"
        return "no error" if set(codes) <= {0} else f"error code {', '.join(map(str, codes))}"

    def written_by(self, frame: Frame, outputs: list[OutputSpec], stack: Stack) -> list[OutputSpec]:
        """EndTxn names no topic: it ends the transaction on the topics in which one is still open now."""
        own = frame.facts.get("topics") or undecided_topics(stack.kafka)
        return [one for one in outputs if one.topic in own]

    def same_client(self, late: Hit, frame: Frame) -> bool:
        mine = late.frame.facts.get("transactional_id")
        return mine is None or frame.facts.get("transactional_id") in (None, mine)

    def transaction(self, stack: Stack, frame: Frame) -> str | None:
        return None

    def outcome(self, stack: Stack, transaction: str) -> str:
        raise NotImplementedError("Kafka is not asked for the outcome of a transaction by an id")

    def why_not_applied(self, frame: Frame, answer: Answer, transaction: str | None) -> str | None:
        codes = answer.facts.get("error_codes")
        if not codes:
            reason = answer.facts.get("undecodable", "it holds no error code")
            return f"whether the request was applied is not known, because the answer could not be read: {reason}"
        return NOTHING_APPLIED if any(codes) else None

    def unknown_after_loss(self, frame: Frame, transaction: str | None) -> tuple[bool, str] | None:
        return True, (
            "Kafka was not asked: this request did not reach it, but the client may have sent it again over another "
            "connection before the job noticed"
        )

    def parked(self, stack: Stack, facts: Mapping[str, Any]) -> ParkedTransaction:
        return ParkedTransaction(stack, facts)


class ParkedTransaction:
    """Implements `onceproof.stores.frames.ParkedCommit`."""

    def __init__(self, stack: Stack, facts: Mapping[str, Any]) -> None:
        self._topic = facts["topic"]
        self._who = f"transactional.id {facts.get('transactional_id')}"
        self._opened = OpenTransaction(stack.kafka, self._topic)

    def applied(self, stream: Stream) -> tuple[bool, str]:
        opened, who = self._opened, self._who
        if not opened.has_open_records:
            return False, f"no transaction was open on topic {self._topic} when {who} was parked"
        if stream == "upstream":
            return True, f"{who}: the transaction on {opened.describe()} stayed open, because its EndTxn never arrived"
        wait_until(f"the transaction of {who} to end", opened.ended, deadline_s=_SETTLE_S)
        visible = opened.visible()
        return (
            visible,
            f"{who}: the last stable offset passed {opened.describe()}, and read_committed readers "
            f"{'see' if visible else 'do not see'} the records",
        )

    def ended(self) -> bool:
        return self._opened.ended() or self._opened.visible()


def _produced(frames: list[SeenFrame]) -> list[SeenFrame]:
    return [one for one in frames if one.event.data["frame"] == "Produce"]


def _ids(produced: list[SeenFrame]) -> set[str]:
    """The transactional ids of these frames."""
    return {str(one.event.data["transactional_id"]) for one in produced if one.event.data["transactional_id"]}


def _pattern(own: set[str], others: set[str]) -> str | None:
    """A regular expression that matches these ids, also with other numbers in later batches, and none of ``others``."""
    for alternatives in ({_general(one) for one in own}, {re.escape(one) for one in own}):
        pattern = rf"^(?:{'|'.join(sorted(alternatives))})$"
        if not any(re.search(pattern, other, re.IGNORECASE) for other in others):
            return pattern
    return None


def _general(name: str) -> str:
    """A regular expression that matches the name with any numbers and UUIDs."""
    changing = [r"\d+" if found.isdigit() else "[0-9a-f-]{36}" for found in _CHANGING.findall(name)]
    fixed = [re.escape(part) for part in _CHANGING.split(name)]
    return "".join(part for pair in zip(fixed, [*changing, ""], strict=True) for part in pair)
