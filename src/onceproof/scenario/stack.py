"""``stack`` of a scenario: the services that its run uses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic.json_schema import SkipJsonSchema

from onceproof.scenario.base import Model
from onceproof.scenario.formats import RegistrySpec


class KafkaStack(Model):
    brokers: Literal[1, 3] = Field(1, description="1: a single node; 3: three brokers and a separate controller")


class PostgresStack(Model):
    pass


class AmqpStack(Model):
    broker: Literal["qpid", "rabbitmq"] = Field(
        "qpid", description="qpid: Qpid Broker-J, which is fetched; rabbitmq: RabbitMQ, if it is installed"
    )


class SparkStack(Model):
    master: Literal["standalone"] = Field("standalone", description="one process for the master and one per worker")
    workers: Annotated[int, Field(ge=1, le=8)] = Field(
        2, description="number of workers, with one executor each; to Spark each worker is a machine"
    )
    cores: PositiveInt = Field(1, description="cores per worker: how many tasks its executor runs at once")
    memory_mb: Annotated[int, Field(ge=512)] = Field(512, description="heap per executor, in MiB")


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
        default=None, description="a standalone Spark: write {} to have one (default: local mode)"
    )
    object_store: ObjectStoreStack | None = Field(
        default=None,
        description="an S3-compatible object store: write {} to have one, and {checkpoint} is an s3a:// URI in it",
    )
    amqp: AmqpStack | None = Field(default=None, description="an AMQP 0-9-1 broker for consumers: write {} to have one")
    registry: RegistrySpec | None = Field(default=None, description="where the schemas of framed values are")
