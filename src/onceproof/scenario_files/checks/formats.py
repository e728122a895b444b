"""Checks what a scenario says about formats: schemas that exist and are valid, ids, variables, and the first records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.data import dataset_of, rows_of
from onceproof.formats.codec import Encoder, Settings, parsed
from onceproof.formats.feed import access_of
from onceproof.formats.registry import Access, from_file, schema_path
from onceproof.kinds.contract import kind_of
from onceproof.scenario.formats import FORMATS, FormatFields
from onceproof.scenario.model import InputSpec, Scenario
from onceproof.scenario.problem import Complaint, Loc


def complaints(scenario: Scenario, here: Path, *, fed: bool = True) -> list[Complaint]:
    """Everything wrong with the formats of a scenario. ``fed``: its inputs will be fed. Asks no registry server."""
    if relative := [*_relative_paths(scenario)]:
        return relative
    check = _Check(scenario, here)
    found = [*check.registry()]
    for index, spec in enumerate(scenario.input):
        loc: Loc = ("input", index)
        found += [*check.decoding(loc, spec), *(check.encoding(loc, spec) if fed else ())]
    for name, output in scenario.outputs.items():
        found += check.decoding(("outputs", name), output)
    return found


def warnings(scenario: Scenario) -> Iterator[Complaint]:
    """Schemas with which no record is written. Not an error: a schedule that is made smaller may end before its schema changes."""
    for index, spec in enumerate(scenario.input):
        if spec.schemas:
            has = rows_of(spec, scenario.seed)
            for number in (number for number in spec.schemas if number > has):
                message = f"there is no record {number}: the input has {has} records"
                yield Complaint(("input", index, "schemas", number), message, "choose a smaller number", at_key=True)


def _relative_paths(scenario: Scenario) -> Iterator[Complaint]:
    """Paths that another folder would change: a resolved scenario, or one that a run stores, may be put anywhere."""
    registry = scenario.stack.registry
    named: list[tuple[Loc, str]] = []
    named += [(("stack", "registry", "files", n), file) for n, file in (registry.files if registry else {}).items()]
    specs: list[tuple[Loc, FormatFields]] = [(("input", index), spec) for index, spec in enumerate(scenario.input)]
    specs += [(("outputs", name), output) for name, output in scenario.outputs.items()]
    named += [((*loc, "schema"), spec.schema_) for loc, spec in specs if spec.schema_ is not None]
    for index, fed in enumerate(scenario.input):
        named += [(("input", index, "schemas", number), file) for number, file in fed.schemas.items()]
    for loc, file in named:
        if not file.startswith(("{here}", "/")):
            yield Complaint(loc, f"schema file {file!r} is a relative path", f"write '{{here}}/{file}'")


class _Check:
    def __init__(self, scenario: Scenario, here: Path) -> None:
        self._scenario = scenario
        self._here = here
        self._access = access_of(scenario, here)
        self._read = cache(lambda path, name, message: parsed(from_file(Path(path)), Settings(name, message=message)))

    def _parsed(self, path: str, settings: Settings) -> Any:
        """The schema in a file. Raises `UsageError`, `EnvironmentProblem`."""
        return self._read(path, settings.format, settings.message)

    def registry(self) -> Iterator[Complaint]:
        spec = self._scenario.stack.registry
        if spec is None:
            return
        loc: Loc = ("stack", "registry")
        for field, name in (
            ("url_env", spec.url_env),
            ("user_env", spec.user_env),
            ("password_env", spec.password_env),
        ):
            if name is not None and not os.environ.get(name):
                message = f"stack.registry: the environment variable {name!r} is not set"
                yield Complaint((*loc, field), message, f"run `export {name}=...` first")
        for number, file in spec.files.items():
            try:
                from_file(schema_path(file, self._here))
            except UsageError as error:
                yield Complaint((*loc, "files", number), error.message, error.hint)

    def decoding(self, loc: Loc, spec: FormatFields) -> Iterator[Complaint]:
        name = spec.decode
        given = {"schema": spec.schema_, "message": spec.message, "framed": spec.framed}
        if name not in FORMATS:
            # The feed may need them although a function decodes.
            unused = not (isinstance(spec, InputSpec) and spec.encode is not None)
            for field in (field for field, value in given.items() if value is not None and unused):
                message = f"{field} is only for values with a format, and decode is {name}"
                yield Complaint((*loc, field), message, f"write `decode: avro` (or another format), or remove {field}")
            return
        if spec.message is not None and name != "protobuf":
            yield Complaint((*loc, "message"), f"message is only for decode: protobuf, not {name}", "remove message")
            return
        settings = self._settings(spec, name)
        if settings.framed and self._access is None:
            message = "framed values name a schema by its id, and the stack has no registry"
            yield Complaint(
                (*loc, "framed"), message, "add `registry: {url: ...}` or `registry: {files: ...}` to stack"
            )
        elif settings.schema is None and not settings.framed and name != "debezium":
            message = f"decode: {name} needs a schema"
            yield Complaint((*loc, "decode"), message, "add `schema: FILE`, or a registry to stack")
        elif settings.schema is not None:
            yield from self._file((*loc, "schema"), settings.schema, settings)

    def encoding(self, loc: Loc, spec: InputSpec) -> Iterator[Complaint]:
        if spec.encode is None:
            if spec.schemas:
                message = "schemas are those with which the feed writes, and it writes values as they are"
                yield Complaint((*loc, "schemas"), message, "add `encode: avro` (or another format), or remove schemas")
            return
        if not kind_of(self._scenario).micro_batches:
            yield Complaint((*loc, "encode"), "encode is for the input of a Spark job", "remove encode")
            return
        if spec.decode in (*FORMATS, "json", "string") and spec.decode != spec.encode:
            message = f"values are encoded as {spec.encode}, and decode is {spec.decode}"
            yield Complaint((*loc, "decode"), message, f"remove decode, or write `decode: {spec.encode}`")
            return
        settings = self._settings(spec, spec.encode)
        if settings.framed and spec.encode == "debezium":
            message = "the feed writes Debezium's events as JSON, without Confluent's header"
            yield Complaint((*loc, "framed"), message, "remove framed")
            return
        yield from self._written(loc, spec, settings)

    def _written(self, loc: Loc, spec: InputSpec, settings: Settings) -> Iterator[Complaint]:
        """What is wrong with the schemas with which an input is written, and with its first records."""
        if spec.encode == "debezium":
            if spec.schemas:
                yield Complaint(
                    (*loc, "schemas"), "the feed writes Debezium's events without a schema", "remove schemas"
                )
                return
        elif settings.schema is None and 1 not in spec.schemas:
            message = f"encode: {spec.encode} needs the schema of the first record"
            yield Complaint((*loc, "encode"), message, "add `schema: FILE`, or `schemas: {1: FILE}`")
            return
        schemas = {number: str(schema_path(file, self._here)) for number, file in spec.schemas.items()}
        wrong = [
            problem
            for number, path in schemas.items()
            for problem in self._writer((*loc, "schemas", number), path, settings)
        ]
        # `decoding` has reported a reader's file that is wrong.
        if wrong or any(self._file(loc, path, settings) for path in filter(None, [settings.schema])):
            yield from wrong
        elif not settings.framed or self._access is not None:
            yield from self._records(loc, spec, settings, schemas)

    def _writer(self, loc: Loc, path: str, settings: Settings) -> list[Complaint]:
        """What is wrong with one schema that writes: its file, or that the scenario's schema cannot read its values."""
        from onceproof.formats.avro import Avro  # most scenarios have no Avro, and start without its library

        if wrong := self._file(loc, path, settings):
            return wrong
        try:
            reader = None if settings.schema is None else self._parsed(settings.schema, settings)
        except (UsageError, EnvironmentProblem):
            return []  # `decoding` reports it
        writer = self._parsed(path, settings)
        problem = writer.resolve_problem(reader) if isinstance(writer, Avro) and isinstance(reader, Avro) else None
        if problem is None:
            return []
        message = f"values of {Path(path).name} cannot be read by {Path(str(settings.schema)).name}: {problem}"
        return [Complaint(loc, message, "give the new field a default, or read by another schema")]

    def _records(self, loc: Loc, spec: InputSpec, settings: Settings, schemas: dict[int, str]) -> Iterator[Complaint]:
        """The first record of each schema, which is enough to find a field of another name or type."""
        offline = settings
        registry = self._scenario.stack.registry
        if registry is not None and not registry.files:
            offline = Settings(settings.format, settings.schema, settings.message)  # ids would be asked from the server
        dataset = dataset_of(spec, self._scenario.seed)
        rows = min(dataset.rows(), spec.rows or dataset.rows())
        for number in sorted({1, *schemas}):
            where: Loc = (*loc, "schemas", number) if number in schemas else (*loc, "encode")
            if number > rows:
                continue  # `warnings` reports it
            record = next(dataset.records(number - 1, number))
            try:
                Encoder(offline, schemas, spec.topic).encode(number, record.value, record.timestamp_ms)
            except (UsageError, EnvironmentProblem) as error:
                yield Complaint(where, error.message, error.hint)
            except (ValueError, ArithmeticError, TypeError) as error:
                message = f"record {number} of {spec.topic} cannot be encoded: {error}"
                yield Complaint(where, message, "correct the schema, or the data set's record")

    def _file(self, loc: Loc, path: str, settings: Settings) -> list[Complaint]:
        try:
            self._parsed(path, settings)
        except (UsageError, EnvironmentProblem) as error:
            return [Complaint(loc, error.message, error.hint)]
        return []

    def _settings(self, spec: FormatFields, name: str) -> Settings:
        access: Access | None = self._access
        return Settings.of(spec, name, access, self._here)
