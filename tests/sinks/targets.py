"""The shipped sinks that the conformance suite checks. To add one, write its `Target` and register it here."""

from __future__ import annotations

from collections.abc import Callable

from onceproof.stack.embedded import EmbeddedStack

from .bench import IncrementTarget, KafkaTarget, PostgresTarget, StagedTarget, Target
from .dead_letter_topics import RefusingKafka
from .dead_letters import RefusingAppend, RefusingIncrement, RefusingOutbox
from .formats import KafkaFormatTarget, PostgresFormatTarget
from .outbox import OutboxTarget, PublishingTarget
from .partitioned import PartitionedTarget
from .staged import RefusingStaged

TARGETS: dict[str, Callable[[EmbeddedStack, str], Target]] = {
    "postgres-append": PostgresTarget,
    "postgres-increment": IncrementTarget,
    "postgres-staged": StagedTarget,
    "kafka": KafkaTarget,
    "kafka-tasks": PartitionedTarget,
    "format-postgres": PostgresFormatTarget,
    "format-kafka": KafkaFormatTarget,
    "outbox": OutboxTarget,
    "outbox-publishing": PublishingTarget,
    "postgres-append-dead-letters": RefusingAppend,
    "postgres-increment-dead-letters": RefusingIncrement,
    "outbox-dead-letters": RefusingOutbox,
    "kafka-dead-letters": RefusingKafka,
    "staged-dead-letters": RefusingStaged,
}

#: Those that refuse a query with state.
STATELESS = frozenset({"kafka-tasks", "format-kafka"})

#: Those that are another one with an option (it publishes its outbox, or writes refused rows as dead letters), or as a streaming format.
VARIANTS = frozenset(
    name for name in TARGETS if name.endswith(("-publishing", "-dead-letters")) or name.startswith("format-")
)
