"""The client of a schema registry, against a small server that speaks Confluent's REST interface (`registry_server`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.masking import masked
from onceproof.formats import wire
from onceproof.formats.codec import Decoder, Encoder, Settings
from onceproof.formats.registry import AVRO, Access, Schema, UnknownSchema

from .registry_server import RegistryServer, registry_server

OLD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
NEW = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int", "default": 7}]}
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def settings(server: RegistryServer, name: str = "avro", schema: Path | None = None) -> Settings:
    return Settings(name, schema and str(schema), framed=True, registry=Access(server.url))


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_feed_registers_its_schemas_and_a_reader_finds_them(server: RegistryServer, tmp_path: Path) -> None:
    old, new = file(tmp_path, "old.avsc", OLD), file(tmp_path, "new.avsc", NEW)
    encoder = Encoder(settings(server), {1: str(old), 2: str(new)}, "orders")
    encoder.register()
    assert server.subjects == {"orders-value": [1, 2]}
    values = [encoder.encode(number, b'{"id": 1, "n": 2}', 0) for number in (1, 2)]
    assert [wire.unframed(value)[0] for value in values] == [1, 2]
    by_writer, by_reader = Decoder(settings(server)), Decoder(settings(server, schema=new))
    assert [by_writer.decode(value).document for value in values] == ['{"id":1}', '{"id":1,"n":2}']
    assert [by_reader.decode(value).document for value in values] == ['{"id":1,"n":7}', '{"id":1,"n":2}']
    assert server.requests.count("GET /schemas/ids/1") == 2  # once per decoder, not once per value


def test_references_are_fetched(server: RegistryServer) -> None:
    money = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]})
    server.add("money", money)
    price = json.dumps({"type": "record", "name": "Price", "fields": [{"name": "price", "type": "Money"}]})
    number = server.add("price-value", price, references=[{"name": "Money", "subject": "money", "version": 1}])
    assert Access(server.url).open().by_id(number) == Schema(AVRO, price, (("Money", money),))
    value = wire.framed(number, b"\x0a")
    assert Decoder(settings(server)).decode(value).document == '{"price":{"cents":5}}'


def test_protobuf_messages_are_found_by_id_and_index(server: RegistryServer, tmp_path: Path) -> None:
    proto = file(tmp_path, "r.proto", 'syntax = "proto3"; message A { string a = 1; } message B { int64 id = 1; }')
    chosen = Settings("protobuf", str(proto), "B", framed=True, registry=Access(server.url))
    value = Encoder(chosen, {}, "orders").encode(1, b'{"id": 5}', 0)
    assert value == b"\x00\x00\x00\x00\x01\x02\x02\x08\x05" and server.schemas[0]["schemaType"] == "PROTOBUF"
    assert Decoder(settings(server, "protobuf")).decode(value).document == '{"id":5}'
    with pytest.raises(ValueError, match="it is a message A, and the scenario names B"):
        Decoder(chosen).decode(b"\x00\x00\x00\x00\x01\x00\x0a\x00")


def test_json_is_checked_by_the_schema_of_its_id(server: RegistryServer, tmp_path: Path) -> None:
    schema = file(tmp_path, "r.json", '{"type": "object", "required": ["id"]}')
    value = Encoder(settings(server, "json-schema", schema), {}, "orders").encode(1, b'{"id": 1.10}', 0)
    decoder = Decoder(settings(server, "json-schema"))
    assert decoder.decode(value).document == '{"id":1.10}'
    with pytest.raises(ValueError, match="'id' is a required property"):
        decoder.decode(wire.framed(1, b"{}"))


def test_an_unknown_id_is_a_problem_of_the_record(server: RegistryServer) -> None:
    with pytest.raises(UnknownSchema, match=f"schema id 9 is unknown to registry {server.url}"):
        Decoder(settings(server)).decode(wire.framed(9, b"\x02"))


def test_a_schema_of_another_kind_is_a_problem_of_the_record(server: RegistryServer) -> None:
    server.add("orders-value", '{"type": "object"}', "JSON")
    with pytest.raises(ValueError, match="schema id 1 is JSON, and decode is avro"):
        Decoder(settings(server)).decode(wire.framed(1, b"{}"))


def test_an_incompatible_schema_is_refused(server: RegistryServer, tmp_path: Path) -> None:
    server.refuses = True
    with pytest.raises(EnvironmentProblem, match="not compatible with the one before") as found:
        Encoder(settings(server, schema=file(tmp_path, "new.avsc", NEW)), {}, "orders").register()
    assert "READER_FIELD_MISSING" in found.value.message and found.value.exit_code == 4


def test_a_schema_that_the_registry_does_not_understand_is_refused(server: RegistryServer, tmp_path: Path) -> None:
    server.invalid = True
    with pytest.raises(EnvironmentProblem, match=r"refuses the schema for .*: Invalid schema") as found:
        Encoder(settings(server, schema=file(tmp_path, "new.avsc", NEW)), {}, "orders").register()
    assert found.value.hint is not None and "correct the schema" in found.value.hint


def test_a_registry_that_is_away_or_another_server(server: RegistryServer) -> None:
    with registry_server() as gone:
        away = Access(gone.url)
    with pytest.raises(EnvironmentProblem, match="cannot be reached") as found:
        away.open().check()
    assert found.value.exit_code == 4 and found.value.hint is not None
    server.schemas.append({"name": "another"})
    with pytest.raises(EnvironmentProblem, match="with something else than a schema: schema: Field required"):
        Access(server.url).open().by_id(1)
    with pytest.raises(EnvironmentProblem, match="HTTP 404"):
        Access(f"{server.url}/elsewhere").open().check()


def test_a_password_comes_from_the_environment_and_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REGISTRY_USER", "reader")
    monkeypatch.setenv("TEST_REGISTRY_PASSWORD", "hunter-of-schemas")
    with registry_server(("reader", "hunter-of-schemas")) as server:
        access = Access(server.url, user_env="TEST_REGISTRY_USER", password_env="TEST_REGISTRY_PASSWORD")
        access.open().check()
        assert masked("it is hunter-of-schemas") == "it is ***"
        assert "hunter" not in repr(access)
        with pytest.raises(EnvironmentProblem, match=r"refuses access to /subjects \(HTTP 401\)") as found:
            Access(server.url).open().check()
        assert "user_env" in (found.value.hint or "")
        monkeypatch.setenv("TEST_REGISTRY_PASSWORD", "wrong-one")
        with pytest.raises(EnvironmentProblem, match="HTTP 401") as found:
            access.open().check()
        assert "check the values" in (found.value.hint or "") and "wrong-one" not in str(found.value)
        monkeypatch.setenv("TEST_REGISTRY", server.url.replace("://", "://reader:hunter-of-schemas@"))
        Access(url_env="TEST_REGISTRY").open().check()


def test_a_variable_that_is_missing_or_holds_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_REGISTRY", raising=False)
    with pytest.raises(UsageError, match="variable 'TEST_REGISTRY' is not set") as found:
        Access(url_env="TEST_REGISTRY").open()
    assert found.value.exit_code == 2
    monkeypatch.setenv("TEST_REGISTRY", "reader:secret-word@127.0.0.1")
    with pytest.raises(UsageError, match="the value of TEST_REGISTRY is not the address") as found:
        Access(url_env="TEST_REGISTRY").open()
    assert "secret-word" not in str(found.value)


def test_files_can_be_the_registry(tmp_path: Path) -> None:
    old, new = file(tmp_path, "old.avsc", OLD), file(tmp_path, "new.avsc", NEW)
    access = Access(files={"3": str(old), "4": str(new)})
    chosen = Settings("avro", str(new), framed=True, registry=access)
    encoder = Encoder(chosen, {1: str(old), 2: str(new)}, "orders")
    values = [encoder.encode(number, b'{"id": 1, "n": 2}', 0) for number in (1, 2)]
    assert [wire.unframed(value)[0] for value in values] == [3, 4]
    assert [Decoder(chosen).decode(value).document for value in values] == ['{"id":1,"n":7}', '{"id":1,"n":2}']
    with pytest.raises(UnknownSchema, match=r"schema id 5 is unknown: stack\.registry\.files has 3, 4"):
        Decoder(chosen).decode(wire.framed(5, b"\x02"))
    with pytest.raises(UsageError, match="has no id"):
        Encoder(chosen, {1: str(file(tmp_path, "other.avsc", NEW))}, "orders").register()
