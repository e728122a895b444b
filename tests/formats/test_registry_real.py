"""The client of a schema registry against a real one, Apicurio: every format, references, and what a registry refuses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from jsonschema import Draft7Validator

from onceproof.base.errors import EnvironmentProblem
from onceproof.formats import wire
from onceproof.formats.codec import Decoder, Encoder, Settings
from onceproof.formats.registry import AVRO, Access, Schema, UnknownSchema

from .apicurio import Apicurio, apicurio

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.full, pytest.mark.timeout(400)]

OLD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 10}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "n", "type": "int", "default": 7}]}
ORDER = b'{"id": 9007199254740993, "amount": "12345678901234567890.0123456789", "at": "2013-01-01T05:00:00.000001Z", "n": 2}'
READ = (
    '"id":9007199254740993,"amount":12345678901234567890.0123456789,"at":"2013-01-01T05:00:00.000001+00:00","note":null'
)
PROTO = 'syntax = "proto3"; message A { string a = 1; } message B { int64 id = 1; }'
CHECKED = {"$schema": Draft7Validator.META_SCHEMA["$schema"], "type": "object", "required": ["id"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with apicurio(tmp_path_factory.mktemp("apicurio")) as running:
        yield running


@pytest.fixture
def access(server: Apicurio, monkeypatch: pytest.MonkeyPatch) -> Access:
    monkeypatch.setenv("TEST_REGISTRY_USER", server.user)
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", server.password)
    return Access(server.url, user_env="TEST_REGISTRY_USER", password_env="TEST_REGISTRY_PASSWORD")


def file(folder: Path, name: str, schema: object) -> Path:
    (folder / name).write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return folder / name


def put(server: Apicurio, path: str, body: object, method: str = "POST") -> None:
    answer = requests.request(method, server.url + path, json=body, auth=(server.user, server.password), timeout=20)
    answer.raise_for_status()


def test_avro_whose_schema_changes_in_the_middle_of_a_topic(access: Access, tmp_path: Path) -> None:
    old, new = file(tmp_path, "old.avsc", OLD), file(tmp_path, "new.avsc", NEW)
    settings = Settings("avro", str(new), framed=True, registry=access)
    encoder = Encoder(settings, {1: str(old), 3: str(new)}, "evolving")
    encoder.register()
    values = [encoder.encode(number, ORDER, 0) for number in (1, 2, 3)]
    ids = [wire.unframed(value)[0] for value in values]
    assert ids[0] == ids[1] != ids[2], "each value begins with the id of the schema with which it was written"
    assert [Decoder(settings).decode(value).document for value in values] == [
        f'{{{READ},"n":7}}',
        f'{{{READ},"n":7}}',
        f'{{{READ},"n":2}}',
    ]
    by_writer = Decoder(Settings("avro", framed=True, registry=access))
    assert [by_writer.decode(value).document for value in values[1:]] == [f"{{{READ}}}", f'{{{READ},"n":2}}']
    again = Encoder(settings, {1: str(old), 3: str(new)}, "evolving")
    assert [wire.unframed(again.encode(number, ORDER, 0))[0] for number in (1, 2, 3)] == ids


def test_protobuf(access: Access, tmp_path: Path) -> None:
    chosen = Settings("protobuf", str(file(tmp_path, "r.proto", PROTO)), "B", framed=True, registry=access)
    value = Encoder(chosen, {}, "protobuf").encode(1, b'{"id": "9007199254740993"}', 0)
    assert value[5:7] == b"\x02\x02", "one index, zigzag: the second message of the file"
    for settings in (chosen, Settings("protobuf", framed=True, registry=access)):
        assert Decoder(settings).decode(value).document == '{"id":9007199254740993}'


def test_json_schema(access: Access, tmp_path: Path) -> None:
    settings = Settings("json-schema", str(file(tmp_path, "r.json", CHECKED)), framed=True, registry=access)
    value = Encoder(settings, {}, "json").encode(1, b'{"id": 1.10}', 0)
    decoder = Decoder(Settings("json-schema", framed=True, registry=access))
    assert decoder.decode(value).document == '{"id":1.10}'
    with pytest.raises(ValueError, match="'id' is a required property"):
        decoder.decode(wire.framed(wire.unframed(value)[0], b"{}"))


def test_a_json_schema_that_it_does_not_recognise_is_refused(access: Access, tmp_path: Path) -> None:
    bare = file(tmp_path, "bare.json", {"type": "object"})
    with pytest.raises(EnvironmentProblem, match="refuses the schema for /subjects/bare-value/versions") as found:
        Encoder(Settings("json-schema", str(bare), framed=True, registry=access), {}, "bare").register()
    assert found.value.hint is not None and "by its $schema" in found.value.hint


def test_references_are_followed(server: Apicurio, access: Access) -> None:
    money = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]})
    price = json.dumps({"type": "record", "name": "Price", "fields": [{"name": "price", "type": "Money"}]})
    put(server, "/subjects/money/versions", {"schema": money})
    reference = {"name": "Money", "subject": "money", "version": 1}
    body = {"schema": price, "references": [reference]}
    put(server, "/subjects/price-value/versions", body)
    answer = requests.get(
        f"{server.url}/subjects/price-value/versions/1", auth=(server.user, server.password), timeout=20
    )
    number = answer.json()["id"]
    assert access.open().by_id(number) == Schema(AVRO, price, (("Money", money),))
    value = wire.framed(number, b"\x0a")
    assert Decoder(Settings("avro", framed=True, registry=access)).decode(value).document == '{"price":{"cents":5}}'


def test_an_id_that_it_does_not_have_is_a_problem_of_the_record(server: Apicurio, access: Access) -> None:
    with pytest.raises(UnknownSchema, match=f"schema id 999 is unknown to registry {server.url}"):
        Decoder(Settings("avro", framed=True, registry=access)).decode(wire.framed(999, b"\x02"))


def test_an_incompatible_schema_is_refused(server: Apicurio, access: Access, tmp_path: Path) -> None:
    narrow = {**OLD, "fields": [{"name": "id", "type": "long"}]}
    other = {**OLD, "fields": [{"name": "id", "type": "string"}]}
    Encoder(Settings("avro", str(file(tmp_path, "a.avsc", narrow)), None, True, access), {}, "strict").register()
    put(server, "/config/strict-value", {"compatibility": "BACKWARD"}, "PUT")
    with pytest.raises(EnvironmentProblem, match="not compatible with the one before") as found:
        Encoder(Settings("avro", str(file(tmp_path, "b.avsc", other)), None, True, access), {}, "strict").register()
    assert found.value.exit_code == 4


def test_a_wrong_password_and_none(server: Apicurio, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    access.open().check()
    with pytest.raises(EnvironmentProblem, match=r"refuses access to /subjects \(HTTP 401\)") as found:
        Access(server.url).open().check()
    assert found.value.hint is not None and "name the variables with its user and password" in found.value.hint
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", "wr0ng-passw0rd")
    with pytest.raises(EnvironmentProblem, match=r"refuses access to /subjects \(HTTP 401\)") as found:
        access.open().check()
    assert found.value.hint is not None and "check the values of" in found.value.hint
    assert "wr0ng" not in str(found.value) and found.value.exit_code == 4


def test_the_address_of_the_server_is_not_that_of_its_registry(server: Apicurio, access: Access) -> None:
    with pytest.raises(EnvironmentProblem, match="HTTP 404") as found:
        Access(server.root, user_env=access.user_env, password_env=access.password_env).open().check()
    assert found.value.hint is not None and "/apis/ccompat/v7" in found.value.hint


def test_a_registry_that_is_away_or_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(EnvironmentProblem, match=r"cannot be reached: .*timed out"):
            Access(url).open().check()
        assert time.monotonic() - began < 20
    with pytest.raises(EnvironmentProblem, match=r"cannot be reached: .*refused") as found:
        Access(url).open().check()
    assert found.value.hint == "start it, or correct stack.registry"
