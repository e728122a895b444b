"""The fields of a scenario that say how values are encoded, and where schemas are."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from onceproof.scenario.base import Model, NumberAsKey
from onceproof.scenario.kinds import COMPLAINT

#: The values of ``decode`` and ``encode`` that `onceproof.formats` implements -> what they make of a value.
FORMATS = {
    "avro": "the fields of an Avro record, in the types of its schema",
    "protobuf": "the fields of a Protobuf message, in the types of its schema",
    "json-schema": "the fields of a JSON object, in the types of its schema",
    "debezium": "a change event, or the row after the change",
}
#: What ``encode`` may name.
Encode = Literal["avro", "protobuf", "json-schema", "debezium"]

DECODE = "how a value becomes columns: a name of `onceproof list decoders`, or module:function"


class RegistrySpec(Model):
    """A schema registry: a server that speaks Confluent's REST interface, or a list of files with their ids."""

    url: str | None = Field(None, description="address of the registry, without user and password")
    url_env: str | None = Field(None, description="environment variable with the address, instead of url")
    user_env: str | None = Field(None, description="environment variable with the user name, if the registry wants one")
    password_env: str | None = Field(None, description="environment variable with the password")
    files: dict[NumberAsKey, str] = Field(
        default_factory=dict, description="instead of a server: schema id -> file (.avsc, .proto or .json)"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = {"url": self.url, "url_env": self.url_env, "files": self.files}
        given = [name for name, value in sources.items() if value]
        if len(given) != 1:
            has = " and ".join(given) or "none"
            raise _complaint(f"a registry needs one of url, url_env and files, and has {has}", "remove the others")
        if self.files and (self.user_env or self.password_env):
            raise _complaint("files of schemas need neither user_env nor password_env", "remove them")
        if (self.user_env is None) != (self.password_env is None):
            raise _complaint("user_env and password_env belong together", "write both, or none")
        if self.url is not None and "@" in self.url:
            raise _complaint("the registry's url holds a user or a password", "write user_env and password_env instead")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise _complaint(f"the registry's url is {self.url!r}", "it begins with http:// or https://")
        return self


def _complaint(message: str, hint: str) -> PydanticCustomError:
    """An error that does not quote the value, which may hold a password."""
    return PydanticCustomError(COMPLAINT, "{message} ({hint})", {"message": message, "hint": hint, "at_key": True})


class FormatFields(Model):
    """What an input or an output says about the format of its values (`onceproof.formats`)."""

    decode: str = Field("json", description=DECODE)
    schema_: str | None = Field(
        None,
        alias="schema",
        description="file of the schema by which values are read (.avsc, .proto or .json); default: the schema with which "
        "each was written, from the registry",
    )
    message: str | None = Field(
        None, description="protobuf: full name of the message (default: the first one in the file of the schema)"
    )
    framed: bool | None = Field(
        None,
        description="whether a value begins with Confluent's header, a zero byte and the schema's id (default: yes, if the "
        "stack has a registry and the format is not debezium)",
    )
