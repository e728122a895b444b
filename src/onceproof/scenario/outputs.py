"""What a scenario says of an output, and what it claims of one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from onceproof.scenario.base import Model


class Claim(Model):
    """What the pipeline promises."""

    delivery: Literal["effectively-once", "at-least-once", "at-most-once"] = Field(
        "effectively-once",
        description="whether effects may be repeated (at-least-once) or lost (at-most-once) under a fault",
    )
    order: Literal["per-key", "per-partition", "none"] = Field(
        "none", description="effects come in the order of their input: that of each key, or of each input partition"
    )
    atomic: Literal["batch", "transaction", "none"] = Field(
        "none", description="what becomes visible in one step: a micro-batch, or an input transaction"
    )
    liveness: Literal["recovers", "none"] = Field(
        "recovers", description="recovers: healed and restarted, the job reaches the end of the input"
    )


class Source(Model):
    """Columns of an output that carry the input record which caused the row."""

    topic: str | None = Field(None, description="column with the topic (needed only where there are several inputs)")
    partition: str = Field(description="column with the input partition")
    offset: str = Field(description="column with the input offset")


class ProgressTable(Model):
    """A Postgres table in which the sink itself records how far it got."""

    table: str = Field(description="its name")
    topic: str | None = Field(None, description="column with the topic (needed only where there are several inputs)")
    partition: str = Field(description="column with the input partition")
    end_offset: str = Field(description="column with the offset up to which (exclusive) the input is done")


class Tolerance(Model):
    """How far a number may be from the expected one: whichever of the two is wider."""

    absolute: Annotated[float, Field(ge=0)] = Field(0.0, description="in the number's own unit")
    relative: Annotated[float, Field(ge=0)] = Field(0.0, description="of the expected number")


class OutputSpec(Model):
    topic: str | None = Field(None, description="the output is this Kafka topic (of consumers: this queue) ...")
    table: str | None = Field(None, description="... or this Postgres table")
    kind: Literal["append", "upsert", "changelog"] = Field(
        "append",
        description="append: each row is an effect; upsert: the last state of each identity is; "
        "changelog: each change of state is, in order",
    )
    identity: list[str] = Field(
        min_length=1,
        description="columns that together name one effect (not needed with expected: empty, or dead_letter_of and source)",
    )
    expected: Literal["rows", "empty"] = Field(
        "rows", description="empty: it must stay empty, whatever the input; the oracle says nothing of it"
    )
    dead_letter_of: str | None = Field(
        None,
        description="output whose rows this one takes where they cannot be written: what is here is not lost there. Found by "
        "identity (the same columns in the same order) or by source; the oracle says nothing of it",
    )
    compare: list[str] | None = Field(
        None, description="columns that are compared in addition to the identity (default: all that are not ignored)"
    )
    ignore: list[str] = Field(
        default_factory=list, description="columns that may differ on a replay (load times, generated ids)"
    )
    tolerance: dict[str, Tolerance] = Field(default_factory=dict, description="numeric column -> how far it may be off")
    decode: str = Field("json", description="how a Kafka value becomes columns: json, string, bytes or module:function")
    source: Source | None = Field(None, description="columns that carry the input position of a row")
    query: str | None = Field(
        None, description="checkpoint folder of the query that writes it (needed only where there are several)"
    )
    epoch: str | None = Field(None, description="column with the writer's epoch, which grows at each takeover")
    progress: ProgressTable | None = Field(None, description="the Postgres table that holds this sink's own progress")
    placement: Literal["key", "none"] = Field(
        "none", description="key: all records with one Kafka key are in one partition"
    )
    compare_key: bool | None = Field(
        None,
        description="false: the key of a Kafka record is not compared; true: it always is (default: with the oracle's _key, "
        "where that is the key of some record)",
    )
    headers: Literal["ignore", "compare"] = Field(
        "ignore", description="compare: the headers of a Kafka record, with the oracle's _headers"
    )
    claim: Claim | None = Field(None, description="a claim of its own, instead of the scenario's")

    @property
    def place(self) -> str:
        """What its store calls it: the topic, the table, ..."""
        return self.topic or self.table or ""

    @property
    def has_rows(self) -> bool:
        """It holds rows, which commits add and take away; a topic holds records."""
        return self.topic is None

    @property
    def is_aside(self) -> bool:
        """The oracle says nothing of it."""
        return self.expected == "empty" or self.dead_letter_of is not None

    @model_validator(mode="before")
    @classmethod
    def _own_identity(cls, data: Any) -> Any:
        """Of a row that must not be there its whole text is the name, and of a dead letter the input record."""
        if not isinstance(data, dict):
            return data
        if data.get("expected") == "empty":
            return {**data, "identity": ["row"]}
        source = data.get("source")
        if data.get("dead_letter_of") is not None and isinstance(source, dict) and "identity" not in data:
            carried = [source.get(name) for name in ("topic", "partition", "offset")]
            return {**data, "identity": [name for name in carried if name is not None]}
        return data
