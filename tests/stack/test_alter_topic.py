"""A change of a topic's settings that fails half-way is undone. Real brokers: `test_embedded`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from onceproof.base.errors import WaitTimeout
from onceproof.stack.kafka import topics
from onceproof.stack.kafka.cluster import EmbeddedKafka


@pytest.mark.parametrize("where", ["wait", "change"])
def test_a_change_that_fails_or_is_never_seen_is_undone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[Mapping[str, str | None]] = []

    def change(_admin: Any, _kind: Any, _name: str, config: Mapping[str, str | None]) -> None:
        changes.append(config)
        if where == "change" and len(changes) == 1:
            raise WaitTimeout("no answer, and it may have been done")

    def never(*_args: Any, **_more: Any) -> None:
        raise WaitTimeout("gave up")

    cluster = EmbeddedKafka({}, {})
    monkeypatch.setattr(cluster, "admin", lambda: None)
    monkeypatch.setattr(topics, "change_settings", change)
    monkeypatch.setattr(topics, "_topic_settings", lambda *_: {"min.insync.replicas": "2", "retention.ms": "1"})
    monkeypatch.setattr(topics, "wait_until", never)
    with pytest.raises(WaitTimeout):
        cluster.alter_topic("out", {"min.insync.replicas": "3", "max.message.bytes": "100"})
    assert changes[-1] == {"min.insync.replicas": "2", "max.message.bytes": None} and len(changes) == 2
