"""The scenario as an immutable value. ``onceproof schema`` and ``onceproof list KIND NAME`` show the field descriptions."""

from __future__ import annotations

from collections.abc import Iterator
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
    field_validator,
    model_validator,
)

from onceproof.base.registry import Registry
from onceproof.scenario import kinds
from onceproof.scenario.base import AnyFaultSpec, Model, NumberAsKey, Position
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.formats import Encode, FormatFields
from onceproof.scenario.outputs import Claim, OutputSpec
from onceproof.scenario.phenomena import PhenomenonName
from onceproof.scenario.points import Point
from onceproof.scenario.problem import Loc
from onceproof.scenario.stack import StackSpec

#: More partitions of one topic only slow down brokers that share one machine.
Partitions = Annotated[int, Field(ge=1, le=256)]


class InputSpec(FormatFields):
    topic: str = Field(description="the topic to feed (for consumers of an AMQP broker: the queue)")
    dataset: str = Field(description="where its records come from: `onceproof list datasets`")
    rows: PositiveInt | None = Field(
        None, description="number of records, from the start of the data set (default: all)"
    )
    partitions: Partitions = Field(3, description="partitions of the topic (for consumers of an AMQP broker: queues)")
    chunks: PositiveInt = Field(
        10, description="number of parts to feed it in; each is sent after the job has committed the previous one"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options: `onceproof list datasets NAME`")
    config: dict[str, str] = Field(default_factory=dict, description="settings of the topic, by Kafka's names")
    encode: Encode | None = Field(
        None,
        description="feed the JSON values of the data set in this format, and decode them so (default: as they are)",
    )
    schemas: dict[NumberAsKey, str] = Field(
        default_factory=dict,
        description="with encode: number of a record, from 1 -> file of the schema with which it and later ones are written "
        "(default: schema, for all)",
    )

    @model_validator(mode="before")
    @classmethod
    def _decode_as_encoded(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("encode") is not None and "decode" not in data:
            return {**data, "decode": data["encode"]}
        return data


class TopicSpec(Model):
    partitions: Partitions = Field(1, description="partitions of the topic")
    config: dict[str, str] = Field(default_factory=dict, description="topic settings, by Kafka's names")


def _one_text(value: Any) -> Any:
    """Join named texts. The names let a scenario replace one text of its base, or add another."""
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
        default_factory=list, description="static tables of the data sets; {table.NAME} is the path of the Parquet file"
    )
    sql: _Statements = Field(
        "",
        description="SQL statements that run in the pipeline's database, as the pipeline's user, before the job starts: one "
        "text, or a mapping of names to texts, which run in order",
    )


def _argument(value: Any) -> Any:
    if value is True or (isinstance(value, int | str) and not isinstance(value, bool)):
        return value
    raise ValueError("the value of an option is text or a whole number; write true for an option without a value")


Argument = Annotated[
    Any,
    AfterValidator(_argument),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}, {"const": True}]}),
]

#: The command of consumers for which the scenario gives none.
WORKER = ["{python}", "-m", "onceproof.consumers.worker"]

#: The command that runs the function of ``pipeline.callable``, whose name follows.
DRIVER = ["{python}", "-m", "onceproof.pipeline.callable_driver"]

#: The program that runs a Connect server and the job's own command, which is its client (``pipeline.connect``).
CONNECT = ["{python}", "-m", "onceproof.pipeline.connect"]


def kind_of_pipeline(pipeline: Any) -> str:
    """The kind of pipeline that a scenario's ``pipeline`` describes, valid or not. It decides which faults are available."""
    consumes = isinstance(pipeline, dict) and pipeline.get("consumers") is not None
    return "consumers" if consumes else "command"


class ConnectSpec(Model):
    conf: dict[str, str] = Field(
        default_factory=lambda: {"spark.master": "local[2]"},
        description="settings of the server, such as spark.sql.shuffle.partitions; spark.master is local[2] unless set",
    )

    @field_validator("conf")
    @classmethod
    def _on_this_machine(cls, conf: dict[str, str]) -> dict[str, str]:
        for name in conf:
            if name.startswith("spark.connect.grpc.binding."):
                raise ValueError(f"{name} is set by onceproof: the server listens on loopback, on a free port")
        return {"spark.master": "local[2]", **conf}


class PipelineSpec(Model):
    command: list[str] = Field(min_length=1, description="the command of the job; templates in braces are filled in")
    callable: str | None = Field(
        None,
        description="instead of command: a Python function, module:function or {here}/file.py:function, that is called with the "
        "Spark session and args and returns the query's DataStreamWriter, not started (`onceproof explore` needs it)",
    )
    connect: ConnectSpec | None = Field(
        None,
        description="the job is a client of Spark Connect: onceproof starts the server, which is the driver, and the command with "
        "its address in SPARK_REMOTE. Client and server can crash separately; {} for no settings",
    )
    image: str | None = Field(
        None,
        description="a container image of this machine in which the command runs, instead of on this machine itself",
    )
    args: dict[str, Argument] = Field(
        default_factory=dict,
        exclude=True,  # `_args_in_command` moves them into the command
        description="options appended to the command: NAME: VALUE becomes --NAME=VALUE, NAME: true becomes --NAME",
    )
    env: dict[str, str] = Field(default_factory=dict, description="variables of the job; templates are filled in")
    secrets: list[str] = Field(
        default_factory=list,
        description="names of environment variables that the job gets from your shell; their values are never stored",
    )
    trigger: Literal["as-is", "fast"] = Field(
        "as-is",
        description="fast: each query waits at most 0.1 s for its next trigger, whatever interval the job sets; the verdict says so",
    )
    queries: list[str] = Field(
        default_factory=list,
        description="checkpoint folders of its queries below {checkpoint}: the input counts as drained only after each of "
        "these queries has started (needed only if one starts late)",
    )
    prepare: Prepare = Field(default_factory=Prepare, description="what to create before the job starts")
    consumers: ConsumersSpec | None = Field(None, description="plain consumers instead of a Spark job")

    @property
    def kind(self) -> str:
        """The kind of this pipeline (`onceproof.kinds`)."""
        return kind_of_pipeline({"consumers": self.consumers})

    @property
    def on_queues(self) -> bool:
        """Whether inputs and outputs are queues of an AMQP broker: their messages have no key."""
        return self.consumers is not None and self.consumers.broker == "amqp"

    @property
    def one_by_one(self) -> bool:
        """Whether it takes single messages, in the order of a schedule. If so, an order violation across keys is reported too."""
        return self.consumers is not None

    @property
    def own_topics(self) -> dict[tuple[str, ...], str]:
        """Topics that are neither inputs nor prepared: the field below ``pipeline`` that names each -> its name."""
        retry = self.consumers.retry if self.consumers is not None else None
        return {} if retry is None else {("consumers", "retry", "topic"): retry.topic}

    def texts(self) -> Iterator[tuple[Loc, str]]:
        """Each text that may hold templates, with its path in the document."""
        yield from ((("pipeline", "command", index), text) for index, text in enumerate(self.command))
        yield from ((("pipeline", "env", name), text) for name, text in self.env.items())

    @model_validator(mode="before")
    @classmethod
    def _own_worker(cls, data: Any) -> Any:
        return {"command": WORKER, **data} if kind_of_pipeline(data) == "consumers" else data

    @model_validator(mode="before")
    @classmethod
    def _driver_of_callable(cls, data: Any) -> Any:
        function = data.get("callable") if isinstance(data, dict) else None
        if not isinstance(function, str):
            return data
        own = [*DRIVER, function]
        if data.get("consumers") is not None:
            raise ValueError("callable builds a Spark query: remove it, or consumers")
        if (command := data.get("command", own))[: len(own)] != own:
            raise ValueError(f"callable replaces command: remove one of the two (command is {command})")
        if data.get("connect") is not None:
            raise ValueError(
                "callable is called in the driver, which a client of Spark Connect is not: remove it, or connect"
            )
        return {**data, "command": command}

    @model_validator(mode="after")
    def _connects_to_spark(self) -> Self:
        for name in ("connect", "image"):
            if self.consumers is not None and getattr(self, name) is not None:
                raise ValueError(f"{name} is for a Spark job: remove it, or consumers")
        return self

    @model_validator(mode="after")
    def _args_in_command(self) -> Self:
        args = [f"--{name}" if value is True else f"--{name}={value}" for name, value in self.args.items()]
        object.__setattr__(self, "command", [*self.command, *args])
        object.__setattr__(self, "args", {})
        return self


class At(Position):
    """A point of a Spark micro-batch."""

    batch: Annotated[int, Field(ge=0)] = Field(description="Spark's batch id")
    point: Point = Field(description="the place in the batch's commit protocol: `onceproof list points`")
    query: str | None = Field(None, description="checkpoint folder of the query below {checkpoint}; default: any")
    attempt: PositiveInt | None = Field(
        None,
        description="which attempt at the batch: 2 is its first replay (default: the first that reaches the point)",
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

    at: At = Field(description="when it strikes: the position in the job's work that triggers it")


class Elsewhere(Model):
    """What another consumer must be holding at that moment."""

    consumer: str = Field(description="the other consumer's name")
    holds: PositiveInt = Field(description="number of the message, from 1")


class AtMessage(Position):
    """The moment at which a consumer has done a certain step with a certain message."""

    message: PositiveInt = Field(description="number of the message in its data set, from 1")
    after: Literal["take", "effect", "acknowledge"] = Field(
        "take", description="the step that the consumer has just done"
    )
    while_: Elsewhere | None = Field(
        None,
        alias="while",
        description="only while another consumer holds a certain message: {consumer: NAME, holds: NUMBER}",
    )

    def __str__(self) -> str:
        also = f" while {self.while_.consumer} holds message {self.while_.holds}" if self.while_ else ""
        return f"message {self.message} after {self.after}{also}"

    def described(self) -> dict[str, Any]:
        return {"batch": None, "point": str(self)}


class ConsumerFaultSpec(AnyFaultSpec):
    """A fault of a consumer. Each kind extends this in its own file under ``chaos/consumers/``."""

    pipeline: ClassVar[str] = "consumers"
    numbers: ClassVar[tuple[str, ...]] = ()
    """Fields that are the number of a message, besides those of ``at``."""

    at: AtMessage = Field(description="when it strikes: the step of the consumer that triggers it")


SpecT = TypeVar("SpecT", bound=AnyFaultSpec)


class OracleSpec(Model):
    """Settings that every oracle has. Each kind extends this in its own file under ``oracle/``."""

    kind: str = Field(description="the kind of oracle: `onceproof list oracles`")


class ExpectedVerdict(Model):
    verdict: Literal["held", "violated", "inconclusive"] = Field("held", description="the verdict that a run must have")
    anomalies: list[str] = Field(
        default_factory=list, description="exactly the anomalies that a run must show and its claim does not allow"
    )


#: At most 30 days.
Seconds = Annotated[float, Field(gt=0, le=2_592_000)]


class Limits(Model):
    deadline_s: Seconds = Field(300.0, description="seconds that feeding and draining may take at most")
    stuck_s: Seconds = Field(60.0, description="seconds without progress after which the job counts as stuck")
    restarts: PositiveInt = Field(6, description="restarts in a row without progress after which the run gives up")


def fault_kinds(pipeline: PipelineSpec | None, item: Any) -> Registry[Any]:
    """The kinds of faults that ``item`` of ``chaos`` may name. For an unknown (None) pipeline the item's position decides."""
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
    name: str = Field(description="leave it out: it is the file's name without .yaml")
    about: str = Field(
        "", description="a sentence or two on what the scenario shows, for `onceproof list` and the report"
    )
    phenomena: list[PhenomenonName] = Field(
        default_factory=list, description="what it shows: `onceproof list --by row`"
    )
    base: str | None = Field(
        None,
        exclude=True,  # a stored scenario has its base merged in
        description="the scenario that this one changes: the name of a shipped one, or a file's path relative to this file",
    )
    seed: int = Field(0, description="seed of generated input")
    stack: StackSpec = Field(default_factory=StackSpec, description="the services that a run starts")
    input: list[InputSpec] = Field(
        min_length=1, max_length=50, description="the topics to feed, and the records to feed them with"
    )
    pipeline: PipelineSpec = Field(description="the job under test")
    # Each item has its own kind's Spec. SerializeAsAny: run.json must store that Spec's fields too.
    chaos: list[Annotated[SerializeAsAny[AnyFaultSpec], BeforeValidator(_fault)]] = Field(
        default_factory=list, description="the faults to inject, each at its position; may be empty"
    )
    # Each output likewise has its own store's Spec.
    outputs: Annotated[
        dict[str, Annotated[SerializeAsAny[OutputSpec], BeforeValidator(_output)]], AfterValidator(_in_one_store)
    ] = Field(min_length=1, max_length=50, description="name -> what the job writes, and how it is read")
    oracle: Annotated[SerializeAsAny[OracleSpec], BeforeValidator(_oracle)] = Field(
        description="what the outputs must hold, from the committed input"
    )
    claim: Claim = Field(default_factory=Claim, description="what the pipeline promises")
    expect: ExpectedVerdict = Field(
        default_factory=ExpectedVerdict, description="the result that `run --all` counts as right for this scenario"
    )
    limits: Limits = Field(default_factory=Limits, description="when a run gives up")

    def to_json(self) -> dict[str, Any]:
        """The scenario as plain values, from which `Scenario.model_validate` restores it."""
        return self.model_dump(mode="json", by_alias=True)

    def faults(self, kind: type[SpecT]) -> list[SpecT]:
        """The faults of that kind: all or none, as a scenario has one kind of pipeline."""
        return [fault for fault in self.chaos if isinstance(fault, kind)]

    def guaranteed_batches(self) -> int:
        """The number of batches that every run reaches; all but batch 0 hold data or act on a watermark that has moved.

        A chunk is fed after the job has committed the previous one, so each chunk makes one batch or more. The first
        chunk is fed once the job has fixed its start offsets, which it does by planning batch 0. Batch 0 is therefore
        nearly always empty, and the chunks are batches 1, 2, ...; but in rare cases batch 0 already takes the first chunk, so
        there may be no more batches than chunks. In a query that keeps state, Spark runs a batch without input after each
        chunk that moves the watermark, and the chunks are batches 1, 3, ...
        """
        return max(spec.chunks for spec in self.input)

    def job_command(self) -> list[str]:
        """The words that start the job, with templates: those of ``stack.spark.submit`` instead of ``{python}``, if there are any.

        A client of Spark Connect is started by `CONNECT`, together with its server.
        """
        if (connect := self.pipeline.connect) is not None:
            settings = (word for name, value in connect.conf.items() for word in ("--conf", f"{name}={value}"))
            return [*CONNECT, *settings, "--", *self.pipeline.command]
        submit = [] if self.stack.spark is None else self.stack.spark.submit
        return [*submit, *self.pipeline.command[1:]] if submit else self.pipeline.command

    def topics(self) -> list[str]:
        """Every topic that exists before the job starts: inputs first, then prepared ones."""
        return list(dict.fromkeys([*(spec.topic for spec in self.input), *self.pipeline.prepare.topics]))

    def known_as(self, topic: str) -> str:
        """The name that the scenario's file and its oracle use for a topic, without the prefix of an external stack."""
        return topic.removeprefix(self.stack.prefix)

    def claim_of(self, output: str) -> Claim:
        """The claim that ``output`` must meet: its own, or the scenario's. An input topic with a finding has the scenario's too."""
        spec = self.outputs.get(output)
        if spec is not None and spec.claim is None and spec.is_side_output:
            return Claim()  # it must hold nothing that does not belong there
        return (spec and spec.claim) or self.claim

    def asked(self) -> dict[str, OutputSpec]:
        """The outputs whose rows the oracle expects."""
        return {name: spec for name, spec in self.outputs.items() if not spec.is_side_output}


def consumers_of(scenario: Scenario) -> ConsumersSpec:
    """The consumers of a scenario that has them, for code that runs for no other scenario."""
    assert scenario.pipeline.consumers is not None, "a scenario of consumers"
    return scenario.pipeline.consumers
