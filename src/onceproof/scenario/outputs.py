"""A scenario's description of an output, and the claim that the output must meet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from onceproof.scenario.base import Model
from onceproof.scenario.formats import FormatFields


class Claim(Model):
    """What the pipeline promises."""

    delivery: Literal["effectively-once", "at-least-once", "at-most-once"] = Field(
        "effectively-once",
        description="whether a fault may duplicate rows (at-least-once), lose them (at-most-once), or neither",
    )
    order: Literal["per-key", "per-partition", "none"] = Field(
        "none",
        description="rows or records appear in the order of their input: within each key, or within each input partition",
    )
    atomic: Literal["batch", "transaction", "none"] = Field(
        "none", description="what becomes visible in one step: a whole micro-batch, or a whole input transaction"
    )
    liveness: Literal["recovers", "none"] = Field(
        "recovers",
        description="recovers: once the services are healed and the job is restarted, it reaches the end of the input",
    )


class Source(Model):
    """Columns of an output that hold the position of the input record that caused the row."""

    topic: str | None = Field(None, description="column with the topic (needed only if there are several inputs)")
    partition: str = Field(description="column with the input partition")
    offset: str = Field(description="column with the input offset")


class ProgressTable(Model):
    """A Postgres table in which the sink records its own progress through the input."""

    table: str = Field(description="name of the progress table")
    topic: str | None = Field(None, description="column with the topic (needed only if there are several inputs)")
    partition: str = Field(description="column with the input partition")
    end_offset: str = Field(description="column with the offset (exclusive) up to which the input is processed")


class Tolerance(Model):
    """How far a number may be from the expected one: the larger of the two tolerances counts."""

    absolute: Annotated[float, Field(ge=0)] = Field(0.0, description="in the unit of the number")
    relative: Annotated[float, Field(ge=0)] = Field(0.0, description="as a fraction of the expected number")


class OutputSpec(FormatFields):
    topic: str | None = Field(None, description="the output is this Kafka topic (of AMQP consumers: this queue)")
    table: str | None = Field(None, description="the output is this Postgres table")
    kind: Literal["append", "upsert", "changelog"] = Field(
        "append",
        description="what counts; append: each row or record; upsert: the last state of each identity; "
        "changelog: each change of state, in order",
    )
    identity: list[str] = Field(
        min_length=1,
        description="columns that together identify a row or record (not needed with expected: empty, or dead_letter_of and source)",
    )
    expected: Literal["rows", "empty"] = Field(
        "rows", description="empty: the output must stay empty whatever the input, and the oracle does not describe it"
    )
    dead_letter_of: str | None = Field(
        None,
        description="the output whose rejected rows this one holds: a row that is here does not count as lost there. Rows are "
        "matched by identity (the same columns in the same order) or by source; the oracle does not describe dead letters",
    )
    compare: list[str] | None = Field(
        None, description="columns to compare in addition to the identity (default: all that are not ignored)"
    )
    ignore: list[str] = Field(
        default_factory=list, description="columns that may differ on a replay (load times, generated ids)"
    )
    tolerance: dict[str, Tolerance] = Field(default_factory=dict, description="numeric column -> how far it may be off")
    source: Source | None = Field(None, description="columns with the position of a row's input record")
    query: str | None = Field(
        None, description="checkpoint folder of the query that writes the output (needed only if there are several)"
    )
    epoch: str | None = Field(None, description="column with the writer's epoch, which increases at each takeover")
    progress: ProgressTable | None = Field(None, description="the Postgres table that holds this sink's own progress")
    placement: Literal["key", "none"] = Field(
        "none", description="key: all records with the same Kafka key must be in the same partition"
    )
    compare_key: bool | None = Field(
        None,
        description="whether the keys of Kafka records are compared with the oracle's _key (default: if that is the key of some "
        "record)",
    )
    headers: Literal["ignore", "compare"] = Field(
        "ignore", description="compare: compare the headers of Kafka records with the oracle's _headers"
    )
    claim: Claim | None = Field(None, description="a claim for this output alone, instead of the scenario's")

    @property
    def place(self) -> str:
        """Its name in its store: the topic, the table, ..."""
        return self.topic or self.table or ""

    @property
    def has_rows(self) -> bool:
        """Whether it holds rows, which commits add and remove. A topic holds records instead."""
        return self.topic is None

    @property
    def is_side_output(self) -> bool:
        """Whether the oracle does not describe it: it must stay empty, or holds dead letters."""
        return self.expected == "empty" or self.dead_letter_of is not None

    @model_validator(mode="before")
    @classmethod
    def _own_identity(cls, data: Any) -> Any:
        """Fill in the identity of an output that must stay empty (the whole row), or of dead letters with a source (the source)."""
        if not isinstance(data, dict):
            return data
        if data.get("expected") == "empty":
            return {**data, "identity": ["row"]}
        source = data.get("source")
        if data.get("dead_letter_of") is not None and isinstance(source, dict) and "identity" not in data:
            carried = [source.get(name) for name in ("topic", "partition", "offset")]
            return {**data, "identity": [name for name in carried if name is not None]}
        return data
