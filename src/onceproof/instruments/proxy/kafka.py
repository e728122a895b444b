"""Parses a Kafka connection: requests by API, answers by correlation id. Decodes only the bodies that a rule wants.

Format: a length; then API key, version and correlation id in a request, the correlation id alone in an answer.
"""

from __future__ import annotations

import time
from struct import Struct, pack
from typing import Any

from confluent_kafka import KafkaError

from onceproof.instruments.proxy.frames import (
    Answer,
    Encrypted,
    Frame,
    Interest,
    Piece,
    Refused,
    Reply,
    SplitConversation,
    Splitter,
)
from onceproof.instruments.proxy.kafka_rewrite import (
    API_VERSIONS,
    NAMING,
    SASL_HANDSHAKE,
    UNKNOWN_VERSION,
    Address,
    check_mechanism,
    clamped,
    rewritten,
)
from onceproof.instruments.proxy.kafka_schema import (
    Cursor,
    Undecodable,
    api_name,
    layout,
    named,
    request_fields,
    versions,
)

#: ``socket.request.max.bytes`` is 100 MiB by default; no real frame is longer than this, in either direction.
_LONGEST = 256 * 1024 * 1024
#: A wanted frame is held in memory until it is complete. A longer one passes unread.
LONGEST_HELD = 32 * 1024 * 1024
_REQUEST = Struct(">ihhi")
_RESPONSE = Struct(">ii")
#: An answer that may name brokers is held too; a consumer that fetches more at a time than this is refused.
_LONGEST_REWRITTEN = 160 * 1024 * 1024
#: Requests whose answers are awaited. An acknowledgement that nobody asked for (acks=0) never comes.
_MOST_EXPECTED = 100_000
#: TLS: content type handshake and major version 3, where Kafka has a length.
_TLS = b"\x16\x03"


_BARE_TOKENS = (
    "SaslHandshake version 0 sends its tokens without Kafka's header, so that they look like other requests: use a client of "
    "Kafka 1.0 or newer, and let it ask for versions (librdkafka: api.version.request=true)"
)


class KafkaConversation(SplitConversation):
    """Implements `onceproof.instruments.proxy.frames.Conversation`.

    ``topic_names`` (topic id -> name) is shared by all connections of a cluster. Newer requests name topics only by id; the
    answers to Metadata, which every client requests first, contain ids and names.

    ``address`` replaces the brokers' addresses in answers (`onceproof.instruments.proxy.kafka_rewrite`).
    """

    def __init__(
        self, interest: Interest, topic_names: dict[bytes, str], proxy: str = "", address: Address | None = None
    ) -> None:
        super().__init__(
            Splitter(self._measure_request, self._parse_request), Splitter(self._measure_response, self._parse_response)
        )
        self.rewrites = address is not None
        self._address = address
        self._proxy = proxy
        self._interest = interest
        self._names = topic_names
        self._expected: dict[int, tuple[int, int, Frame | None]] = {}
        """correlation id -> API, version and, if it is watched, the request"""
        self._fresh = True
        """No whole header of a request has been seen yet."""

    def watch(self, frame: Frame) -> None:
        api, version, correlation = frame.tag
        self._expected[correlation] = (api, version, frame)

    def _measure_request(self, data: bytes, at: int) -> tuple[int, bool] | None:
        if self._fresh and data.startswith(_TLS, at):
            raise Encrypted("TLS: set security.protocol of the job's Kafka clients to PLAINTEXT or SASL_PLAINTEXT")
        if len(data) - at < _REQUEST.size:
            return None
        self._fresh = False
        length, api, version, correlation = _REQUEST.unpack_from(data, at)
        if (api, version) == (SASL_HANDSHAKE, 0):
            raise Refused(_BARE_TOKENS)
        if not _REQUEST.size - 4 <= length <= _LONGEST:
            return 0, False
        return 4 + length, self._wants_request(length, api, version, correlation)

    def _measure_response(self, data: bytes, at: int) -> tuple[int, bool] | None:
        if len(data) - at < _RESPONSE.size:
            return None
        length, correlation = _RESPONSE.unpack_from(data, at)
        if not _RESPONSE.size - 4 <= length <= _LONGEST:
            return 0, False
        return 4 + length, self._wants_response(length, correlation)

    def _wants_request(self, length: int, api: int, version: int, correlation: int) -> bool:
        """Whether a request is wanted whole."""
        if self._address is not None:
            if api in NAMING or api == API_VERSIONS:
                self._expect(correlation, api, version)
            if api in (API_VERSIONS, SASL_HANDSHAKE):
                if self._interest.active:
                    self._interest.wants(api_name(api))  # so that it is counted
                return length <= LONGEST_HELD
        elif api == _METADATA or (api == _PRODUCE and self._interest.listens):
            self._expect(correlation, api, version)
        return self._interest.active and self._interest.wants(api_name(api)) and length <= LONGEST_HELD

    def _wants_response(self, length: int, correlation: int) -> bool:
        if correlation not in self._expected:
            return False
        if self._address is None:
            return length <= LONGEST_HELD
        if length > _LONGEST_REWRITTEN:
            raise Refused(f"an answer has {length:,} bytes: set fetch.max.bytes to at most {_LONGEST_REWRITTEN:,}")
        return True

    def _expect(self, correlation: int, api: int, version: int) -> None:
        if len(self._expected) >= _MOST_EXPECTED:
            del self._expected[next(iter(self._expected))]
        self._expected[correlation] = (api, version, None)

    def _parse_request(self, data: bytes, at: int, end: int) -> list[Piece]:
        """What becomes of a request that is held whole. In front of a cluster, no rule stops a connection's first two."""
        raw = memoryview(data)[at:end]
        _, api, version, _ = _REQUEST.unpack_from(raw)
        if self._address is None or api not in (API_VERSIONS, SASL_HANDSHAKE):
            return [self._request(raw)]
        if api == SASL_HANDSHAKE:
            check_mechanism(raw)
        elif version not in (versions(api) or ()):
            return [bytes(raw[:6]) + pack(">h", UNKNOWN_VERSION) + bytes(raw[8:])]
        return [bytes(raw)]

    def _request(self, raw: memoryview) -> Frame:
        _, api, version, correlation = _REQUEST.unpack_from(raw)
        facts: dict[str, Any] = {"version": version, "correlation_id": correlation}
        try:
            cursor = Cursor(raw, _REQUEST.size)
            facts["client_id"] = cursor.text(compact=False)  # not compact in any version of the header
            body = layout(api_name(api), "request", version)
            if body.tagged_header:
                cursor.skip_tags()
            values = body.read(cursor)
            facts |= _request_facts(values, self._names)
            if api == _LIST_OFFSETS:
                facts["partitions"] = _partitions(values)
            cursor.end()
        except Undecodable as trouble:
            facts["undecodable"] = str(trouble)
        return Frame(bytes(raw), api_name(api), facts, (api, version, correlation))

    def _parse_response(self, data: bytes, at: int, end: int) -> list[Piece]:
        raw = memoryview(data)[at:end]
        _, correlation = _RESPONSE.unpack_from(raw)
        api, version, frame = self._expected.pop(correlation)
        whole = self._readdressed(raw, api, version)
        if frame is None and not self._reads(api):
            return [whole]
        facts: dict[str, Any] = {}
        try:
            body = layout(api_name(api), "response", version)
            cursor = Cursor(raw, _RESPONSE.size)
            if body.tagged_header:
                cursor.skip_tags()
            values = body.read(cursor)
            cursor.end()
            facts["error_codes"] = sorted({*named(values, "ErrorCode"), *named(values, "PartitionErrorCode")})
            if api == _METADATA:
                self._learn_topic_names(values)
            elif api == _PRODUCE and self._interest.listens:
                self._note_replies(values)
        except Undecodable as trouble:
            facts["undecodable"] = str(trouble)
        return [whole if frame is None else Answer(whole, frame, facts)]

    def _reads(self, api: int) -> bool:
        """Whether an answer that no rule waits for is read."""
        return api == _METADATA or (api == _PRODUCE and self._interest.listens)

    def _readdressed(self, raw: memoryview, api: int, version: int) -> bytes:
        """An answer as the client gets it. Raises `Refused` if it may name brokers and cannot be read."""
        if self._address is None or not (api in NAMING or api == API_VERSIONS):
            return bytes(raw)
        try:
            return clamped(raw, version) if api == API_VERSIONS else rewritten(raw, api, version, self._address)
        except Undecodable as why:
            raise Refused(
                f"the answer to {api_name(api)} version {version} could name brokers, and cannot be read ({why}): let the"
                " client ask for versions (api.version.request=true)"
            ) from why

    def _learn_topic_names(self, metadata: dict[str, Any]) -> None:
        for topic in metadata.get("Topics") or ():
            if topic.get("TopicId") and topic.get("Name"):
                self._names[topic["TopicId"]] = topic["Name"]

    def _note_replies(self, produced: dict[str, Any]) -> None:
        at = time.monotonic()
        for topic in produced.get("Responses") or ():
            name = topic.get("Name") or self._names.get(topic.get("TopicId", b""), "?")
            for partition in topic.get("PartitionResponses") or ():
                code = partition.get("ErrorCode", 0)
                message = KafkaError(code).name() if code else f"acknowledged at offset {partition.get('BaseOffset')}"
                where = f"{name}/{partition.get('Index')}"
                self._interest.note(Reply(at, self._proxy, "Produce", str(code), message, where))


_PRODUCE = 0
_LIST_OFFSETS = 2
_METADATA = 3


def reports(api: str, fact: str) -> bool:
    """Whether requests of an API have the field of a condition: ``topics``, ``transactional_id`` or ``committed``."""
    names = _TOPIC_LISTS if fact == "topics" else _FACTS[fact]
    return bool(request_fields(api) & set(names))


def _request_facts(body: dict[str, Any], names: dict[bytes, str]) -> dict[str, Any]:
    """The fields of a request's body that rules use, under the same names for every API and version."""
    facts: dict[str, Any] = {}
    for name, fields in _FACTS.items():
        for field in fields:
            value = next(named(body, field), None)
            if value is not None and name not in facts:
                facts[name] = value
    facts["topics"] = sorted({*_topics(body, names)})
    return facts


_FACTS = {
    "transactional_id": ("TransactionalId", "V3AndBelowTransactionalId"),
    "producer_id": ("ProducerId", "V3AndBelowProducerId"),
    "producer_epoch": ("ProducerEpoch", "V3AndBelowProducerEpoch"),
    "committed": ("Committed",),
    "acks": ("Acks",),
    "group_id": ("GroupId",),
    "key": ("Key",),
}
_TOPIC_LISTS = ("TopicData", "Topics", "V3AndBelowTopics")


def _topics(body: dict[str, Any], names: dict[bytes, str]) -> list[str]:
    found = []
    for field in _TOPIC_LISTS:
        for topics in named(body, field):
            for topic in topics or ():
                name = topic.get("Name") or topic.get("Topic") or names.get(topic.get("TopicId", b""))
                found.append(name or topic.get("TopicId", b"").hex())
    return found


def _partitions(body: dict[str, Any]) -> list[str]:
    """The partitions that a ListOffsets request asks for, as ``topic-number``."""
    return sorted(
        f"{topic['Name']}-{partition['PartitionIndex']}"
        for topic in body["Topics"] or ()
        for partition in topic["Partitions"] or ()
    )
