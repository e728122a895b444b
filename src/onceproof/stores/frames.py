"""What faults need to know of the requests that clients send to a store, if the protocol proxy reads them.

A fault strikes at a frame of some store; what a frame of it looks like, what a commit is, and how the store is asked what became
of one is here. Each such store implements `StoreFrames` in a file of its own folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from pydantic import Field, PositiveInt

from onceproof.base.timeline import Event
from onceproof.instruments.proxy.frames import Answer, Frame
from onceproof.instruments.proxy.rules import Condition, Hit
from onceproof.scenario.base import Model
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint
from onceproof.stack.api import Proxy, Stack, Stream
from onceproof.stores.contract import stores

Service = Literal["postgres", "kafka"]
"""The stores with this ability, by the names under which they are registered."""

NOTHING_APPLIED = "the service refused the request: nothing was applied, so no acknowledgement was lost"


class FrameSpec(Model):
    """Which frame to stop. Kafka: ``kind`` is a request (EndTxn, Produce, ...); Postgres: commit or statement."""

    kind: str | None = Field(
        None, description="default: EndTxn that commits, or the COMMIT of a transaction that wrote"
    )
    nth: PositiveInt = Field(1, description="which of the matching frames, counted from the plan of the batch")
    topic: str | None = Field(None, description="Kafka: a topic that the request names")
    transactional_id: str | None = Field(None, description="Kafka: regular expression")
    committed: bool | None = Field(None, description="Kafka, EndTxn: true for a commit (default), false for an abort")
    sql: str | None = Field(None, description="Postgres: regular expression found in the statement")
    transaction: str | None = Field(
        None, description="Postgres: regular expression found in any statement of the transaction (a table's name)"
    )

    def condition(self, service: Service) -> Condition:
        """Raises `UsageError` for a kind that no store has, or an invalid regular expression."""
        of_store = frames_of(service)
        given = {name: getattr(self, name) for name in _CONDITIONS}
        usual = {name: value for name, value in of_store.usual(self.kind).items() if given[name] in (None, "")}
        return Condition(self.kind or of_store.commit, **given | usual)


_CONDITIONS = ("topic", "transactional_id", "committed", "sql", "transaction")


@dataclass(frozen=True)
class Sink:
    """An output, with the frame by which a rule can find its commit, or its first write if it has no commit."""

    target: Service
    query: str
    frame: Mapping[str, Any]
    """The value of ``frame:`` in a scenario."""
    words: str
    """``COMMIT of departures``, ``EndTxn``, ``first Produce to departures, which has no commit``."""
    place: str = ""
    """The table or the topic."""
    commits: bool = True
    """False: each write is final at once, and ``frame`` is the first write of a batch."""
    write: Mapping[str, Any] | None = None
    """The frame of a write in the middle of a batch; None where none was seen."""
    shares_with: frozenset[str] = frozenset()
    """Outputs that always committed a batch together with this one, so that no fault can strike between the two."""


@dataclass(frozen=True)
class SeenFrame:
    """A frame that was seen while at least one batch was open that read input or wrote."""

    event: Event
    opened: Mapping[str, float]
    """Query with an open batch -> when that batch was planned."""


Found = tuple[Sink, list[SeenFrame]]
"""A sink without its query, and the frames that decide which query it belongs to."""


def nth_write(writes: Sequence[SeenFrame]) -> int:
    """The number of the write at which to strike: 2 if the first batch has two or more, so that one was written before."""
    begun = [tuple(sorted(one.opened.items())) for one in writes]
    return 2 if begun.count(begun[0]) > 1 else 1


class Following(NamedTuple):
    """The request before which a late one arrives, if the scenario names none."""

    kind: str
    suffices: bool
    """Whether that kind is enough in a job with one query."""
    missing: str
    hint: str


class ParkedCommit(Protocol):
    """The commit of a sink of `onceproof.sinks` that is parked right before it."""

    def applied(self, stream: Stream) -> tuple[bool, str]:
        """Whether the outcome is the one that cutting ``stream`` must have, and the evidence. The sink has been released."""

    def ended(self) -> bool:
        """Whether the transaction is known to have ended."""


class StoreFrames(Protocol):
    """The requests of one store. Stateless."""

    service: Service
    commit: str
    """The kind of request that commits."""
    applying: tuple[str, ...]
    """Kinds of the requests after which something is committed, or written for good."""
    kinds: str
    """Its kinds, for a hint."""
    keys: tuple[str, ...]
    """The keys of `FrameSpec` that only its frames have."""
    in_task: Mapping[str, str]
    """The keys, with ``kind``, of a request that a task sends several times."""
    distinctions: str
    """What distinguishes the frames of one query, for a hint."""
    following: Following
    proof: str
    """What proves the outcome of a commit, in addition to its frame: ", and ..."; or empty."""
    cuts: tuple[str, Mapping[str, int]]
    """The toxic, with its attributes, that cuts off a parked sink so that it notices."""
    spans_outputs: bool
    """Whether one commit always covers all outputs that a batch writes to."""

    def missing(self, scenario: Scenario) -> Complaint | None:
        """A problem at ``target`` if the stack lacks the service."""

    def has(self, kind: str) -> bool:
        """Whether it has requests of this kind, which some store has."""

    def usual(self, kind: str | None) -> Mapping[str, Any]:
        """Further conditions for a frame of a kind (None: no kind is given) that does not state them."""

    def identifies_query(self, spec: FrameSpec) -> bool:
        """Whether it names something that only one query's frames contain."""

    def unmatchable(self, asked: Mapping[str, Any], kind: str, scenario: Scenario, loc: str) -> Iterator[Complaint]:
        """A problem for each key that no frame of this ``kind`` can match. ``asked``: the keys of ``frame``."""

    def proxies(self, stack: Stack) -> list[Proxy]:
        """The proxies in front of the service; none if the stack lacks it."""

    def recorded(self, frame: Frame) -> dict[str, Any] | None:
        """What a survey keeps of a frame; None if it belongs to no write."""

    def similarity(self, recorded: Mapping[str, Any]) -> str:
        """A text that is the same for similar frames."""

    def sink_of(self, scenario: Scenario, name: str, frames: list[SeenFrame], *, several: bool) -> Found | str:
        """The sink of an output; or why its commits cannot be identified. ``several``: the job has more than one query."""

    def describe(self, frame: Frame) -> str:
        """A frame, with the details by which it can be found in a log."""

    def describe_answer(self, facts: Mapping[str, Any]) -> str: ...

    def written_by(self, frame: Frame, outputs: list[OutputSpec], stack: Stack) -> list[OutputSpec]:
        """Those of its outputs to which the frame itself may write."""

    def same_client(self, late: Hit, frame: Frame) -> bool:
        """Whether a frame comes from the client whose frame was stopped, and which was cut off."""

    def transaction(self, stack: Stack, frame: Frame) -> str | None:
        """The id of the stopped frame's transaction, by which the service can be asked for its outcome; None if it has none."""

    def outcome(self, stack: Stack, transaction: str) -> str:
        """Wait until the transaction has ended; returns ``committed`` or ``aborted``."""

    def why_not_applied(self, frame: Frame, answer: Answer, transaction: str | None) -> str | None:
        """Why the lost answer does not acknowledge an applied request; None if it certainly does."""

    def unknown_after_loss(self, frame: Frame, transaction: str | None) -> tuple[bool, str] | None:
        """For a lost request whose outcome the service cannot be asked for: whether it may have mattered, and why it is not asked."""

    def parked(self, stack: Stack, facts: Mapping[str, Any]) -> ParkedCommit:
        """The commit of a parked sink that reported ``facts``; called before the sink is released."""


@runtime_checkable
class HasFrames(Protocol):
    """A store whose clients' requests the protocol proxy reads."""

    frames: StoreFrames


def frames_of(service: str) -> StoreFrames:
    store = stores.get(service)
    assert isinstance(store, HasFrames), f"{service} is one of `Service`"
    return store.frames


def all_frames() -> list[StoreFrames]:
    """Those of each store that has some, in the order of `Service`."""
    return [frames_of(service) for service in get_args(Service)]
