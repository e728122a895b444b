"""Decodes and encodes values by the settings of a scenario: the format, its schemas, and the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onceproof.base.errors import UsageError
from onceproof.formats import debezium, values, wire
from onceproof.formats.registry import (
    AVRO,
    JSON,
    KIND_OF,
    PROTOBUF,
    Access,
    Schema,
    SchemaSource,
    from_file,
    schema_path,
)
from onceproof.scenario.formats import FormatFields

if TYPE_CHECKING:
    from onceproof.formats.avro import Avro
    from onceproof.formats.json_schema import JsonSchema
    from onceproof.formats.protobuf import Protobuf

#: How a Debezium event becomes columns: as it is (an input), the row (an upsert), the row and the operation.
EVENT, ROW, ROW_AND_OPERATION = "event", "row", "row-and-operation"


@dataclass(frozen=True)
class Settings:
    """What decoding one topic needs. Its fields are plain values, so that they can be passed to another process."""

    format: str
    schema: str | None = None
    """Path of the schema by which values are read."""
    message: str | None = None
    framed: bool = False
    registry: Access | None = None
    shape: str = EVENT

    @classmethod
    def of(cls, fields: FormatFields, name: str, registry: Access | None, here: Path, shape: str = EVENT) -> Settings:
        """The settings of an input or an output for the format ``name``. ``here`` is the scenario's folder."""
        schema = None if fields.schema_ is None else str(schema_path(fields.schema_, here))
        # Debezium writes plain JSON unless its converter is changed; the other formats go with a registry.
        usual = registry is not None and name != "debezium"
        framed = usual if fields.framed is None else fields.framed
        return cls(name, schema, fields.message, framed, registry, shape)


class Decoded(NamedTuple):
    """A decoded value. ``document`` is a JSON object; None: the change deletes its row."""

    document: str | None


class Decoder:
    """Decodes the values of one topic. `types` grows while it decodes: each value may be written with another schema."""

    def __init__(self, settings: Settings) -> None:
        """Raises `UsageError` for a schema that cannot be used, `EnvironmentProblem` for a registry that cannot."""
        self._settings = settings
        self._source: SchemaSource | None = settings.registry.open() if settings.framed and settings.registry else None
        if settings.framed and self._source is None:
            raise UsageError("framed values need a registry")
        self.types: dict[values.Path, str] = {}
        self._typed: set[str] = set()
        self._by_id = cache(self._written_with)
        self._reader = None if settings.schema is None else parsed(from_file(Path(settings.schema)), settings)
        if self._source is None and self._reader is None and settings.format != "debezium":
            raise UsageError(f"{settings.format} needs a schema or a registry")

    def decode(self, value: bytes) -> Decoded:
        """Decode one value. Raises any `Exception` for one that cannot be decoded, `EnvironmentProblem` without a registry."""
        found = self._value(value)
        if self._settings.format == "debezium":
            return self._event(found)
        return Decoded(values.document(found))

    def _value(self, value: bytes) -> Any:
        if self._source is None:
            if self._reader is None:
                return values.parse(value)
            return self._read(None, self._reader, value)
        schema_id, body = wire.unframed(value)
        return self._read(schema_id, self._by_id(schema_id), body)

    def _written_with(self, schema_id: int) -> Avro | Protobuf | JsonSchema:
        assert self._source is not None, "only framed values have an id"
        schema = self._source.by_id(schema_id)
        wanted = KIND_OF.get(self._settings.format)
        if wanted is not None and schema.kind != wanted:
            raise ValueError(f"schema id {schema_id} is {schema.kind}, and decode is {self._settings.format}")
        try:
            return parsed(schema, Settings(self._settings.format))
        except UsageError as error:
            raise ValueError(f"schema id {schema_id}: {error.message}") from None

    def _read(self, schema_id: int | None, writer: Avro | Protobuf | JsonSchema, body: bytes) -> Any:
        """The value, by the scenario's schema if it has one, and else by the one with which it was written."""
        from onceproof.formats.avro import Avro
        from onceproof.formats.protobuf import Protobuf

        reader = self._reader or writer
        if isinstance(reader, Avro) and isinstance(writer, Avro):
            self._note_types(f"{schema_id if reader is writer else 'reader'}", reader.types)
            return writer.decode(body, None if reader is writer else reader)
        if isinstance(reader, Protobuf) and isinstance(writer, Protobuf):
            return self._message(schema_id, writer, reader, body)
        assert not isinstance(reader, Avro | Protobuf), "a topic has one format"
        return reader.decode(body)

    def _message(self, schema_id: int | None, writer: Protobuf, reader: Protobuf, body: bytes) -> Any:
        message = reader.message
        if schema_id is not None:
            indexes, body = wire.message_indexes(body)
            written = writer.at(indexes)
            if self._settings.message is not None and written != self._settings.message:
                raise ValueError(f"it is a message {written}, and the scenario names {self._settings.message}")
            message = written
        self._note_types(f"{schema_id if reader is writer else 'reader'} {message}", lambda: reader.types(message))
        return reader.decode(body, message)

    def _event(self, found: Any) -> Decoded:
        envelope, types = debezium.unwrapped(found)
        shape = self._settings.shape
        if shape == EVENT:
            values.merge_types(self.types, types)
        if envelope is None:
            return Decoded(None)  # a tombstone with a schema around it
        event = debezium.checked(envelope)
        if shape == EVENT:
            return Decoded(values.document(event))
        row = debezium.row_of(event, keep_operation=shape == ROW_AND_OPERATION)
        return Decoded(None if row is None else values.document(row))

    def _note_types(self, name: str, types: Callable[[], Mapping[values.Path, str]]) -> None:
        if name not in self._typed:
            self._typed.add(name)
            values.merge_types(self.types, types())


class Encoder:
    """Encodes the JSON values of a data set for one topic."""

    def __init__(self, settings: Settings, schemas: Mapping[int, str], topic: str) -> None:
        """``schemas``: number of a record, from 1 -> path of the schema from there. Raises as `Decoder`."""
        self._settings = settings
        self._subject = f"{topic}-value"
        self._source: SchemaSource | None = settings.registry.open() if settings.framed and settings.registry else None
        self._from = sorted(schemas.items())
        self._schema = cache(self._parsed)

    def encode(self, number: int, value: bytes, timestamp_ms: int) -> bytes:
        """The value of record ``number``, from 1. Raises `ValueError` for one that does not fit its schema."""
        if self._settings.format == "debezium":
            return values.document(debezium.envelope_of(values.parse(value), timestamp_ms)).encode()
        from onceproof.formats.json_schema import JsonSchema
        from onceproof.formats.protobuf import Protobuf

        path = self.schema_of(number)
        schema, made = self._schema(path)
        if isinstance(made, JsonSchema):
            body = made.encode(value)
        elif isinstance(made, Protobuf):
            import json

            body = made.encode(json.loads(value))
        else:
            body = made.encode(values.parse(value))
        if self._source is None:
            return body
        indexes = made.indexes() if isinstance(made, Protobuf) else None
        return wire.framed(self._source.id_of(self._subject, schema), body, indexes)

    def schema_of(self, number: int) -> str:
        """Path of the schema with which record ``number`` is written."""
        found = self._settings.schema
        for first, path in self._from:
            found = path if number >= first else found
        if found is None:
            raise UsageError(f"record {number} has no schema")
        return found

    def register(self) -> None:
        """Give every schema its id, before anything is fed. Raises as `SchemaSource.id_of`."""
        if self._source is not None and self._settings.format != "debezium":
            for path in dict.fromkeys(
                [*filter(None, [self._settings.schema][: not self._from]), *dict(self._from).values()]
            ):
                self._source.id_of(self._subject, from_file(Path(path)))

    def _parsed(self, path: str) -> tuple[Schema, Avro | Protobuf | JsonSchema]:
        schema = from_file(Path(path))
        return schema, parsed(schema, self._settings)


def parsed(schema: Schema, settings: Settings) -> Avro | Protobuf | JsonSchema:
    """The schema, ready to use. Raises `UsageError` if it is invalid, or not one of the settings' format."""
    wanted = KIND_OF.get(settings.format)
    if wanted is not None and schema.kind != wanted:
        raise UsageError(
            f"schema {schema.file or 'from the registry'!r} is {schema.kind}, and the format is {settings.format}"
        )
    if schema.kind == AVRO:
        from onceproof.formats.avro import Avro

        return Avro(schema)
    if schema.kind == PROTOBUF:
        from onceproof.formats.protobuf import Protobuf

        return Protobuf(schema, settings.message)
    if schema.kind == JSON:
        from onceproof.formats.json_schema import JsonSchema

        return JsonSchema(schema)
    raise UsageError(f"there is no format for schemas of kind {schema.kind!r}")
