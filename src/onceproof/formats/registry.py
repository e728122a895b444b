"""Where schemas come from: files, or a registry that speaks Confluent's REST interface.

A registry's user and password come from the environment, never from a file or an argument, and messages do not show them.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from pydantic import BaseModel, Field, ValidationError

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.masking import hide, masked
from onceproof.scenario.formats import RegistrySpec
from onceproof.scenario.templates import fill

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
_KINDS = {".avsc": AVRO, ".proto": PROTOBUF, ".json": JSON}
#: Format -> the kind of its schemas.
KIND_OF = {"avro": AVRO, "protobuf": PROTOBUF, "json-schema": JSON}

_TIMEOUT_S = 10.0
_ADDRESS = "is this the address of a schema registry? (Apicurio's ends with /apis/ccompat/v7)"
_NOT_FOUND = 404
_TYPE = "application/vnd.schemaregistry.v1+json"
#: A longer chain of references is a mistake.
_MOST_REFERENCES = 200


class UnknownSchema(ValueError):
    """No schema has the id that a value names."""


@dataclass(frozen=True)
class Schema:
    """One schema as text. ``references`` are the schemas that it uses, each after those that it uses itself: name -> text."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()
    file: str | None = None


class SchemaSource(Protocol):
    def by_id(self, schema_id: int) -> Schema:
        """Raises `UnknownSchema`, and `EnvironmentProblem` if the registry does not answer."""

    def id_of(self, subject: str, schema: Schema) -> int:
        """The id of a schema, which is registered if it is new. Raises `EnvironmentProblem` and `UsageError`."""

    def check(self) -> None:
        """Raises `EnvironmentProblem` if schemas cannot be had."""


def from_file(path: Path) -> Schema:
    """The schema in a file. Raises `UsageError` if it cannot be read, or its name does not say what it is."""
    kind = _KINDS.get(path.suffix)
    if kind is None:
        raise UsageError(
            f"schema file {str(path)!r} is none of {', '.join(_KINDS)}", hint="the ending of its name says what it is"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
        raise UsageError(f"schema file {str(path)!r} {why}") from None
    return Schema(kind, text, file=str(path))


def schema_path(written: str, here: Path) -> Path:
    """The path of a schema file as a scenario writes it: ``{here}`` and relative paths are the scenario's folder."""
    return here / fill(written, {"here": str(here)})


@dataclass(frozen=True)
class FileSchemas:
    """Schemas in files, each with an id: a registry for tests that need no server."""

    files: Mapping[int, Path]

    def by_id(self, schema_id: int) -> Schema:
        if schema_id not in self.files:
            known = ", ".join(map(str, sorted(self.files)))
            raise UnknownSchema(f"schema id {schema_id} is unknown: stack.registry.files has {known}")
        return from_file(self.files[schema_id])

    def id_of(self, _subject: str, schema: Schema) -> int:
        for schema_id, path in self.files.items():
            if schema.file is not None and path.resolve() == Path(schema.file).resolve():
                return schema_id
        raise UsageError(f"schema file {schema.file!r} has no id", hint="add it to stack.registry.files: ID: FILE")

    def check(self) -> None:
        for path in self.files.values():
            from_file(path)


@dataclass(frozen=True)
class Access:
    """The address of a registry and the names of the variables with its credentials: what may be stored and passed on."""

    url: str | None = None
    url_env: str | None = None
    user_env: str | None = None
    password_env: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    """Schema id -> path. The keys are texts, as in JSON."""

    @classmethod
    def of(cls, spec: RegistrySpec, here: Path) -> Access:
        files = {str(number): str(schema_path(file, here)) for number, file in spec.files.items()}
        return cls(spec.url, spec.url_env, spec.user_env, spec.password_env, files)

    def variables(self) -> list[str]:
        """Names of the environment variables that it needs."""
        return [name for name in (self.url_env, self.user_env, self.password_env) if name is not None]

    def open(self) -> SchemaSource:
        """Raises `UsageError` for a variable that is not set, or an address that is none."""
        if self.files:
            return FileSchemas({int(number): Path(path) for number, path in self.files.items()})
        for name in self.variables():
            if not os.environ.get(name):
                raise UsageError(
                    f"stack.registry: the environment variable {name!r} is not set",
                    hint=f"run `export {name}=...` first",
                )
        user, password = (os.environ[name] if name else None for name in (self.user_env, self.password_env))
        url = os.environ[self.url_env] if self.url_env is not None else self.url or ""
        parts = urlsplit(url)
        if password is None and parts.password is not None:
            user, password = unquote(parts.username or ""), unquote(parts.password)
        if password is not None:
            hide(password)
        bare = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            where = f"the value of {self.url_env}" if self.url_env else repr(masked(url))
            raise UsageError(f"stack.registry: {where} is not the address of a registry", hint="write http://HOST:PORT")
        return Registry(bare, None if password is None else (user or "", password))


class _Reference(BaseModel):
    name: str
    subject: str
    version: int


class _Registered(BaseModel):
    """A registry's answer for one schema."""

    text: str = Field(alias="schema")
    kind: str = Field(AVRO, alias="schemaType")
    references: list[_Reference] = []


class Registry:
    """A client of a registry server."""

    def __init__(self, url: str, credentials: tuple[str, str] | None = None) -> None:
        self._url = url
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, str], int] = {}
        import requests  # a command that asks no registry starts without it

        self._unreachable = requests.RequestException
        self._session = requests.Session()
        self._session.headers["Accept"] = f"{_TYPE}, application/json"
        self._session.auth = credentials
        # A proxy for the internet does not reach this machine; and a .netrc must not add credentials.
        self._session.trust_env = not _is_loopback(urlsplit(url).hostname or "")
        self._has_credentials = credentials is not None

    def by_id(self, schema_id: int) -> Schema:
        if schema_id not in self._schemas:
            path = f"/schemas/ids/{schema_id}"
            answer = self._registered(path, self._call("GET", path, found=lambda: self._unknown(schema_id)))
            references: dict[str, str] = {}
            self._collect(answer, references)
            self._schemas[schema_id] = Schema(answer.kind, answer.text, tuple(references.items()))
        return self._schemas[schema_id]

    def id_of(self, subject: str, schema: Schema) -> int:
        key = (subject, schema.text)
        if key not in self._ids:
            body = {"schema": schema.text} | ({} if schema.kind == AVRO else {"schemaType": schema.kind})
            answer = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
            if not isinstance(answer.get("id"), int):
                raise EnvironmentProblem(f"registry {self._url} gave subject {subject!r} no id: {_short(answer)}")
            self._ids[key] = answer["id"]
        return self._ids[key]

    def check(self) -> None:
        self._call("GET", "/subjects")

    def _unknown(self, schema_id: int) -> Exception:
        return UnknownSchema(f"schema id {schema_id} is unknown to registry {self._url}")

    def _registered(self, path: str, answer: Any) -> _Registered:
        try:
            return _Registered.model_validate(answer)
        except ValidationError as error:
            why = error.errors()[0]
            where = ".".join(map(str, why["loc"]))
            raise EnvironmentProblem(
                f"registry {self._url} answered {path} with something else than a schema: {where}: {why['msg']}",
                hint=_ADDRESS,
            ) from None

    def _collect(self, answer: _Registered, found: dict[str, str]) -> None:
        """Add the schemas to which a schema refers, deepest first."""
        for reference in answer.references:
            if reference.name in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise EnvironmentProblem(
                    f"registry {self._url}: more than {_MOST_REFERENCES} references below one schema"
                )
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            used = self._registered(path, self._call("GET", path))
            self._collect(used, found)
            found[reference.name] = used.text

    def _call(self, method: str, path: str, body: Any = None, *, found: Any = None) -> Any:
        """The answer as JSON. ``found`` makes the error for an answer 404. Raises `EnvironmentProblem` for all others."""
        try:
            answer = self._session.request(
                method,
                self._url + path,
                data=None if body is None else json.dumps(body),
                headers={} if body is None else {"Content-Type": _TYPE},
                timeout=_TIMEOUT_S,
            )
        except self._unreachable as error:
            raise EnvironmentProblem(
                f"registry {self._url} cannot be reached: {masked(str(error))}",
                hint="start it, or correct stack.registry",
            ) from None
        if answer.status_code in (401, 403):
            hint = (
                "check the values of stack.registry.user_env and password_env"
                if self._has_credentials
                else "name the variables with its user and password: stack.registry.user_env and password_env"
            )
            raise EnvironmentProblem(
                f"registry {self._url} refuses access to {path} (HTTP {answer.status_code})", hint=hint
            )
        if answer.status_code == _NOT_FOUND and found is not None:
            raise found()
        try:
            content = answer.json()
        except ValueError:
            content = None
        if answer.status_code == 409:
            raise EnvironmentProblem(
                f"registry {self._url} refuses the schema for {path}: it is not compatible with the one before: {_short(content)}",
                hint="change the schema, or the subject's compatibility in the registry",
            )
        if answer.status_code == 422:
            raise EnvironmentProblem(
                f"registry {self._url} refuses the schema for {path}: {_short(content)}",
                hint="correct the schema (Apicurio recognises a JSON Schema by its $schema)",
            )
        if not answer.ok or content is None:
            raise EnvironmentProblem(
                f"registry {self._url} answered {path} with HTTP {answer.status_code}: {_short(content)}",
                hint=_ADDRESS,
            )
        return content


def _short(content: Any) -> str:
    message = content.get("message") if isinstance(content, dict) else None
    return masked(str(message or content))[:300]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
