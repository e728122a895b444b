"""Protobuf: messages of a .proto file, which protoc (of package grpcio-tools) compiles when it is first needed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path as File
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.formats import values
from onceproof.formats.registry import Schema
from onceproof.formats.values import ANY, DOUBLE, INSTANT, SINGLE, Path

_COMPILE_S = 60
_WRAPPED = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
#: Messages that are shown in Protobuf's own JSON form.
_AS_JSON = {f"google.protobuf.{name}" for name in ("Duration", "Struct", "Value", "ListValue", "FieldMask")}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Protobuf:
    """The messages of one file."""

    def __init__(self, schema: Schema, message: str | None = None) -> None:
        """``message``: the full name of the one that values hold (default: the first). Raises `UsageError`."""
        self._pool = descriptor_pool.DescriptorPool()
        files = _compiled(schema)
        for file in files.file:
            self._pool.Add(file)
        self._file: FileDescriptor = self._pool.FindFileByName(files.file[-1].name)
        place = schema.file or "from the registry"
        known = [found.full_name for found in _all(self._file.message_types_by_name.values())]
        if not known:
            raise UsageError(f"schema {place!r} defines no message")
        if message is not None and message not in known:
            raise UsageError(f"schema {place!r} has no message {message!r}", hint=f"it has {', '.join(known)}")
        self.message = message or self.at((0,))

    def at(self, indexes: Sequence[int]) -> str:
        """The full name of the message at these indexes. Raises `ValueError`."""
        messages = [self._file.message_types_by_name[name] for name in _names(self._file)]
        found: Descriptor | None = None
        for index in indexes:
            if index >= len(messages):
                raise ValueError(f"its message indexes {list(indexes)} lead to no message of its schema")
            found = messages[index]
            messages = list(found.nested_types)
        assert found is not None, "there is at least one index"
        return str(found.full_name)

    def indexes(self) -> list[int]:
        """The indexes of the message among those of its file."""
        found: list[int] = []
        descriptor: Descriptor = self._pool.FindMessageTypeByName(self.message)
        while (above := descriptor.containing_type) is not None:
            found.insert(0, [each.name for each in above.nested_types].index(descriptor.name))
            descriptor = above
        return [_names(self._file).index(descriptor.name), *found]

    def decode(self, body: bytes, message: str | None = None) -> dict[str, Any]:
        """The fields of a message. Fields that the schema does not have are left out. Raises `ValueError`."""
        made = self._empty(message or self.message)
        try:
            made.ParseFromString(body)
        except DecodeError as error:
            raise ValueError(f"it is not a message {message or self.message}: {error}") from None
        return _fields(made)

    def encode(self, value: Any) -> bytes:
        """A JSON object, as Protobuf's JSON mapping reads it, as bytes. Raises `ValueError` if it does not fit."""
        try:
            made = json_format.ParseDict(
                value, self._empty(self.message), ignore_unknown_fields=True, descriptor_pool=self._pool
            )
            return bytes(made.SerializeToString(deterministic=True))
        except (json_format.ParseError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a message {self.message}: {error}") from None

    def types(self, message: str | None = None) -> dict[Path, str]:
        """The fields whose type JSON does not show."""
        found = self._pool.FindMessageTypeByName(message or self.message)
        return dict(_types(found, (), frozenset()))

    def _empty(self, message: str) -> Message:
        try:
            descriptor = self._pool.FindMessageTypeByName(message)
        except KeyError:
            raise ValueError(f"its message is {message}, and the schema has none of this name") from None
        return message_factory.GetMessageClass(descriptor)()


def _compiled(schema: Schema) -> descriptor_pb2.FileDescriptorSet:
    """The file and all that it imports, in this order: each after what it needs. Raises `UsageError`."""
    with tempfile.TemporaryDirectory(prefix="onceproof-") as folder:
        source, target = File(folder, "schema.proto"), File(folder, "descriptors")
        paths = [folder]
        if schema.file is not None:
            paths.append(str(File(schema.file).parent.absolute()))
        for name, text in schema.references:
            file = (File(folder) / name).resolve()
            if not file.is_relative_to(File(folder).resolve()):
                raise UsageError(
                    f"a schema of the registry refers to {name!r}, which is not a path below its own folder"
                )
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        source.write_text(schema.text, encoding="utf-8")
        argv = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{path}" for path in paths)]
        argv += ["--include_imports", f"--descriptor_set_out={target}", str(source)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        except subprocess.TimeoutExpired:
            raise EnvironmentProblem(f"protoc did not end within {_COMPILE_S} s") from None
        if done.returncode or not target.exists():
            why = done.stderr.replace(f"{folder}/", "").strip()
            raise UsageError(f"schema {schema.file or 'from the registry'!r} is not a .proto file: {why}")
        return descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())


def _names(file: FileDescriptor) -> list[str]:
    """Names of the file's messages in their order."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return [message.name for message in proto.message_type]


def _all(messages: Any) -> Iterator[Descriptor]:
    for message in messages:
        yield message
        yield from _all(message.nested_types)


def _fields(message: Message) -> dict[str, Any]:
    """Field -> value. A field that distinguishes *not set* is None then; one that does not has its default."""
    given = {field.name: value for field, value in message.ListFields()}
    return {field.name: _field(field, given.get(field.name)) for field in message.DESCRIPTOR.fields}


def _field(field: Any, value: Any) -> Any:
    """The value of a field; None: it is not set."""
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return {_key(key): _value(inner, each) for key, each in (value or {}).items()}
    if field.is_repeated:
        return [_value(field, each) for each in value or ()]
    if value is None:
        return None if field.has_presence else _value(field, field.default_value)
    return _value(field, value)


def _value(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return values.single(value)
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return _moment(value.seconds, value.nanos)
    if name in _WRAPPED:
        return _value(value.DESCRIPTOR.fields_by_name["value"], value.value)
    return json_format.MessageToDict(value) if name in _AS_JSON else _fields(value)


def _moment(seconds: int, nanos: int) -> datetime:
    if nanos % 1000:
        raise ValueError(f"a timestamp has {nanos} nanoseconds, and columns hold whole microseconds")
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise ValueError(f"a timestamp of {seconds} seconds is after the year 9999 or before the year 1") from None


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _types(message: Any, path: Path, within: frozenset[str]) -> Iterator[tuple[Path, str]]:
    for field in message.fields:
        step: Path = (field.name,) if _is_map(field) or not field.is_repeated else (field.name, None)
        if _is_map(field):
            yield from _type(field.message_type.fields_by_name["value"], (*path, *step, ANY), within)
        else:
            yield from _type(field, (*path, *step), within | {message.full_name})


def _type(field: Any, path: Path, within: frozenset[str]) -> Iterator[tuple[Path, str]]:
    kinds = {FieldDescriptor.TYPE_FLOAT: SINGLE, FieldDescriptor.TYPE_DOUBLE: DOUBLE}
    if field.type in kinds:
        yield path, kinds[field.type]
    elif field.message_type is not None:
        name = field.message_type.full_name
        if name == "google.protobuf.Timestamp":
            yield path, INSTANT
        elif name not in within and name not in _WRAPPED | _AS_JSON:
            yield from _types(field.message_type, path, within)
