"""Names of the queues that carry an input of consumers."""

from __future__ import annotations

from onceproof.scenario.model import InputSpec

_TWIN = "#input"


def input_queues(spec: InputSpec, broker: str = "amqp") -> list[str]:
    """The queues of an input: its topic alone, or one queue per partition."""
    separator = "." if broker == "amqp" else "-"
    return [spec.topic] if spec.partitions == 1 else [f"{spec.topic}{separator}{n}" for n in range(spec.partitions)]


def twin(queue: str) -> str:
    """The name of the queue that keeps a copy of each message of an input queue."""
    return f"{queue}{_TWIN}"
