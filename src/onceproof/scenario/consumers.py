"""Plain consumers in a scenario: what ``pipeline: consumers`` may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from onceproof.scenario.base import Model, NumberAsKey


class RetrySpec(Model):
    """A retry topic: a message whose effect was refused waits there while its consumer takes the next one."""

    topic: str = Field(description="name of the retry topic")
    consumer: str = Field(description="the consumer that takes from the retry topic, and from nothing else")
    after: PositiveInt = Field(2, description="ticks that a message waits there before it can be taken")


class DeadLetterSpec(Model):
    """A topic for messages that the output refuses: each with its partition, its offset and the reason."""

    topic: str = Field(description="name of the topic, which must also be an output, so that its contents are judged")


class ConsumersSpec(Model):
    """Plain consumers as the pipeline.

    Times are ticks of the schedule's own clock, which advances when every consumer has reached its next step: a schedule
    runs the same way whatever the machine's load.
    """

    broker: Literal["amqp", "kafka-group", "share-group"] = Field("amqp", description="where they take messages from")
    names: list[str] = Field(
        min_length=1, description="one process per name; if several are idle, the first named takes the next message"
    )
    queues: Literal["shared", "own"] = Field(
        "shared", description="shared: all consumers compete for all queues; own: only consumer i takes from queue i"
    )
    static: bool = Field(
        True,
        description="for a consumer group; true: members keep their partitions while they are away (group.instance.id); "
        "false: other members take them over",
    )
    acknowledge: Literal["after-effect", "before-effect", "with-effect"] = Field(
        "after-effect", description="the order of effect and acknowledgement; with-effect: both in one transaction"
    )
    every: PositiveInt = Field(1, description="ticks between publishing one message and the next")
    work: PositiveInt = Field(1, description="ticks of work on each message, except those under slow")
    slow: dict[NumberAsKey, PositiveInt] = Field(
        default_factory=dict, description="messages that take longer: number of the message, from 1 -> ticks of work"
    )
    on_refusal: Literal["again", "release", "retry-topic", "skip", "dead-letter"] = Field(
        "again",
        description="what a consumer does when the output refuses an effect; again: try again, after twice as long each time; "
        "release: give the message back; retry-topic: put it into the retry topic; skip: go on without the effect; "
        "dead-letter: put it into the topic for dead letters",
    )
    dead_letter: DeadLetterSpec | None = Field(
        None, description="the topic for messages that the output refuses, for on_refusal: dead-letter"
    )
    offset_reset: Literal["earliest", "error"] = Field(
        "earliest",
        description="what a member of a consumer group does when the log no longer has its next record (Kafka's "
        "auto.offset.reset); earliest: continue with the oldest record; error: end",
    )
    retry: RetrySpec | None = Field(None, description="the retry topic, for on_refusal: retry-topic")
    groups: dict[str, list[str]] = Field(
        default_factory=dict,
        description="consumer groups that each read the whole input: name -> its consumers (default: one group); an output "
        "names its group with query",
    )
    restart_after: PositiveInt | None = Field(
        None, description="ticks until a dead consumer is restarted (default: never)"
    )
