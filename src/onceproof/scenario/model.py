"""The scenario as a frozen value. Field descriptions are what ``onceproof schema`` and ``onceproof list KIND NAME`` show."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from onceproof.base.registry import Registry
from onceproof.scenario import kinds
from onceproof.scenario.base import AnyFaultSpec, Model, Position
from onceproof.scenario.outputs import Claim, OutputSpec
from onceproof.scenario.points import Point


class KafkaStack(Model):
    brokers: Literal[1, 3] = Field(1, description="1 node, or 3 brokers with a controller of their own")


class PostgresStack(Model):
    pass


class AmqpStack(Model):
    broker: Literal["qpid", "rabbitmq"] = Field(
        "qpid", description="qpid: Qpid Broker-J, which is fetched; rabbitmq: RabbitMQ, where it is installed"
    )


class SparkStack(Model):
    master: Literal["standalone"] = Field("standalone", description="a master and workers, each a process")
    workers: Annotated[int, Field(ge=1, le=8)] = Field(
        2, description="workers, each a machine to Spark: one executor each"
    )
    cores: PositiveInt = Field(1, description="cores of a worker: how many tasks its executor runs at once")
    memory_mb: Annotated[int, Field(ge=512)] = Field(512, description="heap of an executor, MiB")


class StackSpec(Model):
    provider: Literal["embedded"] = Field("embedded", description="processes on loopback")
    kafka: KafkaStack = Field(default_factory=KafkaStack, description="the Kafka that every run has")
    postgres: PostgresStack | None = Field(default=None, description="write {} to have one")
    spark: SparkStack | None = Field(
        default=None,
        description="a standalone Spark that the job's tasks run on: write {} to have one (default: local)",
    )
    amqp: AmqpStack | None = Field(
        default=None, description="an AMQP 0-9-1 broker, for consumers: write {} to have one"
    )


#: More of one topic only keep one machine's brokers busy.
Partitions = Annotated[int, Field(ge=1, le=256)]


class InputSpec(Model):
    topic: str = Field(description="the topic that is fed (of consumers: the queue)")
    dataset: str = Field(description="a registered data set")
    rows: PositiveInt | None = Field(None, description="how many records of it, from the start (default: all)")
    partitions: Partitions = Field(3, description="partitions of the topic (of consumers: queues)")
    chunks: PositiveInt = Field(10, description="parts it is fed in, each released when the one before was committed")
    options: dict[str, Any] = Field(default_factory=dict, description="what the data set takes (see its description)")
    decode: str = Field("json", description="how a value becomes columns: json, string, bytes or module:function")


class TopicSpec(Model):
    partitions: Partitions = Field(1, description="partitions of the topic")
    config: dict[str, str] = Field(default_factory=dict, description="topic settings, as Kafka names them")


def _one_text(value: Any) -> Any:
    """Named texts as one. Under a name, a scenario can change one of its base's, or add to them."""
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return "".join(text if text.endswith("\n") else f"{text}\n" for text in value.values())
    return value


_Statements = Annotated[
    str,
    BeforeValidator(_one_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}),
]


class Prepare(Model):
    topics: dict[str, TopicSpec] = Field(
        default_factory=dict, max_length=200, description="topics to create in addition to the inputs"
    )
    tables: list[str] = Field(
        default_factory=list, description="static tables of the data sets; {table.NAME} is the Parquet file"
    )
    sql: _Statements = Field(
        "",
        description="statements run in the pipeline's database, as the pipeline's user, before the job starts: a text, or "
        "several under names of their own, run in their order",
    )


def _key_as_number(key: Any) -> Any:
    """Keys of a mapping are text on their way here (`onceproof.scenario_files.explain`), and text is no number there."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


_NumberAsKey = Annotated[PositiveInt, BeforeValidator(_key_as_number)]


class RetrySpec(Model):
    """A retry topic: what an output refused waits there while its consumer goes on with the next."""

    topic: str = Field(description="its name")
    consumer: str = Field(description="takes from it, and from nothing else")
    after: PositiveInt = Field(2, description="ticks until a message in it may be taken")


class ConsumersSpec(Model):
    """Plain consumers as the pipeline. Inputs and outputs are queues then. Times are ticks of the schedule's own clock,
    which moves on when every consumer has come to its next step: a schedule plays the same whatever the machine's load."""

    broker: Literal["amqp", "kafka-group", "share-group"] = Field("amqp", description="what they take messages from")
    names: list[str] = Field(min_length=1, description="a process each; of several that are free the first named takes")
    queues: Literal["shared", "own"] = Field(
        "shared", description="shared: all compete for all queues; own: queue i belongs to consumer i alone"
    )
    static: bool = Field(
        True,
        description="of a consumer group: members keep their partitions while they are away (group.instance.id); "
        "false: others take them over",
    )
    acknowledge: Literal["after-effect", "before-effect", "with-effect"] = Field(
        "after-effect", description="effect and acknowledgement in which order; with-effect: both in one transaction"
    )
    every: PositiveInt = Field(1, description="ticks from one message to the next")
    work: PositiveInt = Field(1, description="ticks of work on a message ...")
    slow: dict[_NumberAsKey, PositiveInt] = Field(
        default_factory=dict, description="... and on these: number of the message, from 1 -> ticks"
    )
    on_refusal: Literal["again", "release", "retry-topic"] = Field(
        "again",
        description="an effect that the output refused: tried again, its message given back, or put into a retry topic",
    )
    retry: RetrySpec | None = Field(None, description="the retry topic")
    groups: dict[str, list[str]] = Field(
        default_factory=dict,
        description="consumer groups that each read all: name -> its consumers (default: all are one); an output names its group "
        "with query",
    )
    restart_after: PositiveInt | None = Field(None, description="ticks until one that died is back (default: never)")


def _argument(value: Any) -> Any:
    if value is True or (isinstance(value, int | str) and not isinstance(value, bool)):
        return value
    raise ValueError("an option has a text or a whole number as its value, or true if it has none")


_Argument = Annotated[
    Any,
    AfterValidator(_argument),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}, {"const": True}]}),
]

#: What takes the place of ``command`` where consumers are described and none is given.
WORKER = ["{python}", "-m", "onceproof.consumers.worker"]


def kind_of_pipeline(pipeline: Any) -> str:
    """The kind of pipeline that a scenario's ``pipeline`` describes, valid or not: it decides which faults there are."""
    consumes = isinstance(pipeline, dict) and pipeline.get("consumers") is not None
    return "consumers" if consumes else "command"


class PipelineSpec(Model):
    command: list[str] = Field(min_length=1, description="the job: any command; templates in braces are filled in")
    args: dict[str, _Argument] = Field(
        default_factory=dict,
        exclude=True,  # it is in the command
        description="options added to the end of the command: NAME: VALUE is --NAME=VALUE, NAME: true is --NAME",
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment of the job; templates are filled in")
    secrets: list[str] = Field(
        default_factory=list, description="names of environment variables passed on and never written down"
    )
    queries: list[str] = Field(
        default_factory=list,
        description="checkpoint folders of its queries below {checkpoint}: the input counts as drained only when each of "
        "them has begun (needed only where one starts late)",
    )
    prepare: Prepare = Field(default_factory=Prepare, description="what is there before the job starts")
    consumers: ConsumersSpec | None = Field(None, description="plain consumers instead of a Spark job")

    @property
    def kind(self) -> str:
        """Which kind of pipeline this is (`onceproof.kinds`)."""
        return kind_of_pipeline({"consumers": self.consumers})

    @property
    def on_queues(self) -> bool:
        """Whether inputs and outputs are queues of an AMQP broker: their messages have no key."""
        return self.consumers is not None and self.consumers.broker == "amqp"

    @property
    def one_by_one(self) -> bool:
        """Whether it takes single messages, in the order of a schedule: then the order across keys is worth a finding too."""
        return self.consumers is not None

    @property
    def own_topics(self) -> dict[tuple[str, ...], str]:
        """Topics that are neither inputs nor prepared: where each is named, below ``pipeline``."""
        retry = self.consumers.retry if self.consumers is not None else None
        return {} if retry is None else {("consumers", "retry", "topic"): retry.topic}

    @model_validator(mode="before")
    @classmethod
    def _own_worker(cls, data: Any) -> Any:
        return {"command": WORKER, **data} if kind_of_pipeline(data) == "consumers" else data

    @model_validator(mode="after")
    def _args_in_command(self) -> Self:
        args = [f"--{name}" if value is True else f"--{name}={value}" for name, value in self.args.items()]
        object.__setattr__(self, "command", [*self.command, *args])
        object.__setattr__(self, "args", {})
        return self


class At(Position):
    """A point of a batch of Spark's."""

    batch: Annotated[int, Field(ge=0)] = Field(description="Spark's batch id")
    point: Point = Field(description="the place in the batch's commit protocol")
    query: str | None = Field(None, description="checkpoint folder of the query below {checkpoint}; default: any")
    attempt: PositiveInt | None = Field(
        None, description="which attempt at the batch: 2 is its first replay (default: the first that gets there)"
    )

    def described(self) -> dict[str, Any]:
        return {"batch": self.batch, "point": str(self.point)}

    def of_query(self) -> str | None:
        return self.query

    def settings(self) -> dict[str, Any]:
        return {} if self.attempt is None else {"attempt": self.attempt}


class FaultSpec(AnyFaultSpec):
    """A fault of a Spark job. Each kind extends this in its own file under ``chaos/``."""

    pipeline: ClassVar[str] = "command"

    at: At = Field(description="when: the place in the job's work that triggers it")


class Elsewhere(Model):
    """What somebody else must be doing at that moment."""

    consumer: str = Field(description="the other consumer's name")
    holds: PositiveInt = Field(description="number of the message, from 1")


class AtMessage(Position):
    """A step of a consumer: it has this message and has just done that step."""

    message: PositiveInt = Field(description="number of the message in its data set, from 1")
    after: Literal["take", "effect", "acknowledge"] = Field("take", description="the step that was done last")
    while_: Elsewhere | None = Field(None, alias="while", description="and another consumer holds that message")

    def __str__(self) -> str:
        also = f" while {self.while_.consumer} holds message {self.while_.holds}" if self.while_ else ""
        return f"message {self.message} after {self.after}{also}"

    def described(self) -> dict[str, Any]:
        return {"batch": None, "point": str(self)}


class ConsumerFaultSpec(AnyFaultSpec):
    """A fault of a consumer: one of those below ``chaos/consumers/``."""

    pipeline: ClassVar[str] = "consumers"

    at: AtMessage = Field(description="when: the place in the job's work that triggers it")


SpecT = TypeVar("SpecT", bound=AnyFaultSpec)


class OracleSpec(Model):
    """What every oracle says of itself. Each kind extends this in its own file under ``oracle/``."""

    kind: str = Field(description="the kind of oracle: `onceproof list oracles`")


class ExpectedVerdict(Model):
    verdict: Literal["held", "violated", "inconclusive"] = Field("held", description="the outcome of a run")
    anomalies: list[str] = Field(default_factory=list, description="exactly these, after the claim")


#: Up to a month.
Seconds = Annotated[float, Field(gt=0, le=2_592_000)]


class Limits(Model):
    deadline_s: Seconds = Field(300.0, description="hard cap on feeding and draining, seconds")
    stuck_s: Seconds = Field(60.0, description="no progress for so long counts as stuck, seconds")
    restarts: PositiveInt = Field(6, description="restarts in a row without progress before the job is given up")


def fault_kinds(pipeline: PipelineSpec | None, item: Any) -> Registry[Any]:
    """The kinds that ``item`` of ``chaos`` may be of. Where the pipeline is not known its place tells: consumers have messages."""
    at = item.get("at") if isinstance(item, dict) else None
    by_message = isinstance(at, dict) and "message" in at
    kind = ("consumers" if by_message else "command") if pipeline is None else pipeline.kind
    return kinds.faults.of(kind)


def _fault(item: Any, info: ValidationInfo) -> BaseModel:
    return kinds.spec_of(fault_kinds(info.data.get("pipeline"), item), "fault", item, info)


def _oracle(item: Any, info: ValidationInfo) -> BaseModel:
    return kinds.spec_of(kinds.oracles, "kind", item, info)


def _output(item: Any, info: ValidationInfo) -> Any:
    return kinds.output_of(item, info, OutputSpec)


def _in_one_store(outputs: dict[str, OutputSpec]) -> dict[str, OutputSpec]:
    kinds.in_one_store(outputs)
    return outputs


class Scenario(Model):
    name: str = Field(description="that of the file, without .yaml: leave it out")
    about: str = Field("", description="a sentence or two for list and the report")
    base: str | None = Field(
        None,
        exclude=True,  # a stored scenario is whole
        description="the scenario that this one changes: the name of a shipped one, or the path of a file, from this file's folder",
    )
    seed: int = Field(0, description="seed of generated input")
    stack: StackSpec = Field(default_factory=StackSpec, description="the services that a run starts")
    input: list[InputSpec] = Field(min_length=1, max_length=50, description="the topics that are fed, and with what")
    pipeline: PipelineSpec = Field(description="the job under test")
    # The items are of each kind's own Spec. SerializeAsAny: its fields must reach run.json.
    chaos: list[Annotated[SerializeAsAny[AnyFaultSpec], BeforeValidator(_fault)]] = Field(
        default_factory=list, description="the faults, each with its place; without any nothing is broken"
    )
    # Likewise: of each store's own Spec.
    outputs: Annotated[
        dict[str, Annotated[SerializeAsAny[OutputSpec], BeforeValidator(_output)]], AfterValidator(_in_one_store)
    ] = Field(min_length=1, max_length=50, description="name -> what the job writes, and how it is read")
    oracle: Annotated[SerializeAsAny[OracleSpec], BeforeValidator(_oracle)] = Field(
        description="what the outputs must hold, from the committed input"
    )
    claim: Claim = Field(default_factory=Claim, description="what the pipeline promises")
    expect: ExpectedVerdict = Field(
        default_factory=ExpectedVerdict, description="what `run --all` counts as right for this scenario"
    )
    limits: Limits = Field(default_factory=Limits, description="when a run is given up")

    def to_json(self) -> dict[str, Any]:
        """Of this `Scenario.model_validate` makes the same scenario."""
        return self.model_dump(mode="json", by_alias=True)

    def faults(self, kind: type[SpecT]) -> list[SpecT]:
        """Its faults, which are all of that kind: a scenario is of one kind of pipeline."""
        return [fault for fault in self.chaos if isinstance(fault, kind)]

    def guaranteed_batches(self) -> int:
        """Batches 0 .. this-1 are surely reached, and all but batch 0 hold data or act on a watermark that has moved.

        A chunk is released when the one before was committed, so each chunk is at least one batch (it may become
        several). The first chunk is released when the job has fixed its start offsets, which it does by planning
        batch 0: that one is nearly always empty, and the chunks are batches 1, 2, ...; but in rare cases batch 0 already
        takes the first chunk, so there need not be a batch more than there are chunks. In a query that keeps state Spark
        runs a batch without input after each chunk that moves the watermark, and the chunks are batches 1, 3, ...
        """
        return max(spec.chunks for spec in self.input)

    def topics(self) -> list[str]:
        """Every topic that exists before the job starts: inputs first, then prepared ones."""
        return list(dict.fromkeys([*(spec.topic for spec in self.input), *self.pipeline.prepare.topics]))

    def claim_of(self, output: str) -> Claim:
        """The claim that ``output`` is held to: its own, or the scenario's (as for an input topic that is found faulty)."""
        spec = self.outputs.get(output)
        if spec is not None and spec.claim is None and spec.is_aside:
            return Claim()  # that nothing is in it that should not be
        return (spec and spec.claim) or self.claim

    def asked(self) -> dict[str, OutputSpec]:
        """The outputs of which the oracle says what they must hold."""
        return {name: spec for name, spec in self.outputs.items() if not spec.is_aside}


def consumers_of(scenario: Scenario) -> ConsumersSpec:
    """For what only a scenario of consumers comes to."""
    assert scenario.pipeline.consumers is not None, "a scenario of consumers"
    return scenario.pipeline.consumers
