"""``stack`` of a scenario: the services that its run uses."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from onceproof.scenario.base import Model
from onceproof.scenario.formats import RegistrySpec


class KafkaStack(Model):
    brokers: Literal[1, 3] = Field(1, description="1: a single node; 3: three brokers and a separate controller")


ReplicaKind = Literal["asynchronous", "synchronous"]


class PostgresStack(Model):
    replica: ReplicaKind | None = Field(
        None,
        description="a streaming replica, from which consumers can read; synchronous: commits wait for it, unless a client sets "
        "synchronous_commit to local or off",
    )


class AmqpStack(Model):
    broker: Literal["qpid", "rabbitmq"] = Field(
        "qpid", description="qpid: Qpid Broker-J, which is fetched; rabbitmq: RabbitMQ, if it is installed"
    )


STANDALONE = "standalone"
LOOPBACK = "127.0.0.1"
_PLACE = r"[A-Za-z0-9._-]+:\d{1,5}"
_MASTER = re.compile(rf"spark://{_PLACE}(,{_PLACE})*")


def _master(text: str) -> str:
    if text == STANDALONE or (_MASTER.fullmatch(text) and all(0 < int(p) < 65536 for p in re.findall(r":(\d+)", text))):
        return text
    scheme = text.partition(":")[0].partition("[")[0]
    if scheme in ("k8s", "yarn", "mesos"):
        raise ValueError(f"{scheme} is not supported, see docs/your-spark.md: write spark://HOST:PORT, or standalone")
    if scheme.startswith("local"):
        raise ValueError("local mode needs no cluster: remove spark from the stack")
    raise ValueError("write standalone, or the address of your own master: spark://HOST:PORT")


def _listens(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError("write an IPv4 address of this machine, for example 10.0.0.7") from None
    if address.is_unspecified:
        raise ValueError("executors cannot connect to 0.0.0.0: write the one address of this machine that they reach")
    return text


class SparkStack(Model):
    master: Annotated[str, AfterValidator(_master)] = Field(
        STANDALONE,
        description="standalone: one process for the master and one per worker; or spark://HOST:PORT, a cluster that you operate",
    )
    workers: Annotated[int, Field(ge=1, le=8)] = Field(
        2, description="number of workers, with one executor each; to Spark each worker is a machine"
    )
    cores: PositiveInt = Field(1, description="cores per worker: how many tasks its executor runs at once")
    memory_mb: Annotated[int, Field(ge=512)] = Field(512, description="heap per executor, in MiB")
    submit: list[str] = Field(
        default_factory=list,
        description="words that start the job instead of {python}: [spark-submit, --conf, NAME=VALUE], or a script",
    )
    bind: Annotated[str, AfterValidator(_listens)] = Field(
        LOOPBACK, description="address of this machine at which executors reach the proxies and the driver"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        sizes = {"workers": 2, "cores": 1, "memory_mb": 512}
        if self.external and (given := [name for name, default in sizes.items() if getattr(self, name) != default]):
            raise ValueError(
                f"{given[0]} is for a standalone Spark of the run: {self.master} has its own workers; set executors by "
                "submit, for example [spark-submit, --conf, spark.executor.memory=2g]"
            )
        if not self.external and self.bind != LOOPBACK:
            raise ValueError("bind is for a Spark on other machines: the run's own workers are on loopback")
        return self

    @property
    def external(self) -> bool:
        """Whether it is the user's own: onceproof neither starts, sees nor ends its processes."""
        return self.master != STANDALONE


class ObjectStoreStack(Model):
    pass


class StackSpec(Model):
    provider: Literal["embedded", "external"] = Field(
        "embedded",
        description="embedded: Kafka and Postgres are processes on the loopback interface; external: set by --stack NAME, "
        "never by a file",
    )
    prefix: SkipJsonSchema[str] = Field(
        "", description="what the names of this run's topics start with: set by --stack NAME, never by a file"
    )
    kafka: KafkaStack = Field(default_factory=KafkaStack, description="Kafka, which every run has")
    postgres: PostgresStack | None = Field(default=None, description="a Postgres server: write {} to have one")
    spark: SparkStack | None = Field(
        default=None,
        description="a standalone Spark, {}, or your own: {master: spark://HOST:PORT} (default: local mode)",
    )
    object_store: ObjectStoreStack | None = Field(
        default=None,
        description="an S3-compatible object store: write {} to have one, and {checkpoint} is an s3a:// URI in it",
    )
    amqp: AmqpStack | None = Field(default=None, description="an AMQP 0-9-1 broker for consumers: write {} to have one")
    registry: RegistrySpec | None = Field(default=None, description="where the schemas of framed values are")
