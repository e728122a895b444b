"""The profile of an external stack, the names of what a run creates there, and its journal. No services."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.errors import UsageError
from onceproof.base.masking import masked
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find
from onceproof.stack.external import journal
from onceproof.stack.external.journal import Created, ObjectJournal
from onceproof.stack.external.names import RunNames, identity, prefixed
from onceproof.stack.external.profile import StackProfile, load_profile

WHOLE = """
[stack.staging]
provider = "external"
chaos = "allowed"
[stack.staging.kafka]
bootstrap = "127.0.0.1:9092, 127.0.0.2:9093"
security = "SASL_SSL"
sasl = {mechanism = "SCRAM-SHA-512", username = "${TEST_USER}", password = "${TEST_KAFKA_PASSWORD}"}
tls = {ca = "ca.pem", check_hostname = false}
[stack.staging.postgres]
uri = "postgresql://tester@127.0.0.1:5433/shop"
password = "${TEST_PG_PASSWORD}"
"""


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEST_USER", "tester")
    monkeypatch.setenv("TEST_KAFKA_PASSWORD", "kafka-secret")
    monkeypatch.setenv("TEST_PG_PASSWORD", "postgres-secret")
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "ca.pem").touch()
    monkeypatch.chdir(tmp_path)


def profile(text: str = WHOLE, name: str = "staging") -> StackProfile:
    Path("onceproof.toml").write_text(textwrap.dedent(text), encoding="utf-8")
    return load_profile(name)


def test_values_come_from_the_environment_and_files_from_the_folder_of_the_profile(tmp_path: Path) -> None:
    found = profile()
    assert found.kafka.client_settings() == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "tester",
        "sasl.password": "kafka-secret",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert found.kafka.addresses() == [("127.0.0.1", 9092), ("127.0.0.2", 9093)]
    assert found.postgres is not None and found.postgres.secret == "postgres-secret"


def test_the_nearest_file_above_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert load_profile("staging").name == "staging"


def test_its_secrets_are_masked_and_not_in_its_text() -> None:
    found = profile()
    assert masked("password kafka-secret, postgres-secret") == "password ***, ***"
    assert "secret" not in re.sub(r"SecretStr\('\*+'\)", "", repr(found)).replace("secrets", "")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("check_hostname = false", 'check_hostname = "${TEST_SECRET}"'),
        ("check_hostname = false", 'passwort = "${TEST_SECRET}"'),
        ("check_hostname = false", 'passwort = "literal-secret"'),
        ('uri = "', 'url = "postgresql://tester:literal-secret@127.0.0.1/shop"\nuri = "'),
        ('bootstrap = "127', 'bootstrap = "postgresql://x:literal-secret@127.0.0.1/shop,127'),
        ('"SASL_SSL"', '"postgresql://x:literal-secret@127.0.0.1/shop"'),
        ("127.0.0.1:9092", "${TEST_SECRET}"),
        ('tls = {ca = "ca.pem", check_hostname = false}', 'tls = "literal-secret"'),
    ],
)
def test_a_mistyped_profile_shows_no_secret(was: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SECRET", "hush-hush")
    assert was in WHOLE
    with pytest.raises(UsageError) as error:
        profile(WHOLE.replace(was, now))
    assert "hush" not in str(error.value) and "literal-secret" not in str(error.value)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('chaos = "allowed"', "", 'chaos is missing: .* write chaos = "allowed"'),
        ('chaos = "allowed"', 'chaos = "no"', "chaos is 'no'"),
        ('"SASL_SSL"', '"TLS"', r"kafka\.security: .*'SASL_SSL'.*, not 'TLS'"),
        ("127.0.0.1:9092", "127.0.0.1", r"kafka\.bootstrap: '127\.0\.0\.1' is not HOST:PORT"),
        ("127.0.0.1:9092", "127.0.0.1:99999", "is not HOST:PORT"),
        ('"${TEST_KAFKA_PASSWORD}"', '"written-here"', r"kafka\.sasl\.password is written in the file itself"),
        ('"${TEST_PG_PASSWORD}"', '"written-here"', r"postgres\.password is written in the file itself"),
        ("tester@127", "tester:written-here@127", r"postgres\.uri holds a password"),
        ("TEST_PG_PASSWORD", "TEST_UNSET", r"postgres\.password: the environment variable TEST_UNSET is not set"),
        ("TEST_PG_PASSWORD", "TEST_EMPTY", r"postgres\.password: the environment variable TEST_EMPTY is empty"),
        ("tester@", "", r"postgres: uri has no user"),
        ("5433/shop", "5433/shop?sslmode=require", "uri has the option 'sslmode'"),
        ('"SCRAM-SHA-512"', '"GSSAPI"', r"kafka\.sasl\.mechanism: .*not 'GSSAPI'"),
        ('security = "SASL_SSL"', 'security = "SSL"', "security is SSL: remove sasl"),
        ('security = "SASL_SSL"', 'security = "SASL_PLAINTEXT"', "which has no TLS: remove tls"),
        ('"ca.pem"', '"none.pem"', r"kafka\.tls\.ca: there is no file"),
        ("check_hostname", "verify", r"kafka\.tls\.verify: Extra"),
        ("[stack.staging.kafka]", "[stack.staging.kafkas]", r"kafka: Field required"),
        ("[stack.staging]", "[stack.staging", "not TOML: .*line 2"),
    ],
)
def test_a_wrong_profile_names_the_file_the_key_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, was: str, now: str, said: str
) -> None:
    assert was in WHOLE
    monkeypatch.setenv("TEST_EMPTY", "")
    with pytest.raises(UsageError, match=f"(?s)onceproof.toml.*{said}") as error:
        profile(WHOLE.replace(was, now))
    assert "written-here" not in str(error.value) and error.value.hint


def test_an_unknown_stack_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no \[stack.stagin\]") as error:
        profile(name="stagin")
    assert "staging" in str(error.value.hint)


def test_without_a_file_the_error_shows_one() -> None:
    with pytest.raises(UsageError, match=r"--stack needs a file onceproof\.toml") as error:
        load_profile("staging")
    assert "[stack.staging]" in str(error.value.hint)


@given(st.text(min_size=1, max_size=300))
def test_names_are_legal_and_the_same_from_their_prefix(run: str) -> None:
    names = RunNames("0123abcd", run)
    assert re.fullmatch(r"onceproof-0123abcd-[A-Za-z0-9_-]{1,100}\.", names.prefix)
    assert re.fullmatch(r"onceproof_0123abcd_[a-z0-9_]{1,44}", names.identifier)
    again = RunNames.of(names.prefix)
    assert (again.prefix, again.identity) == (names.prefix, names.identity)
    assert RunNames.of(again.prefix).identifier == again.identifier
    assert names.topic(names.topic("flights")) == f"{names.prefix}flights"


def test_this_installation_keeps_its_identity() -> None:
    first = identity()
    assert re.fullmatch("[0-9a-f]{8}", first) and identity() == first


@pytest.mark.parametrize(
    "name", ["effectively-once", "naive-append", "late-endtxn", "unclean-election", "aborted-input"]
)
def test_every_topic_of_a_scenario_gets_the_prefix_and_nothing_else_changes(name: str) -> None:
    scenario = load(find(name))
    names = RunNames("0123abcd", "run")
    there = prefixed(scenario, names)
    assert [*map(there.known_as, there.topics())] == scenario.topics()
    assert all(topic.startswith(names.prefix) for topic in there.topics())
    text = (
        json.dumps(there.to_json())
        .replace(names.prefix, "")
        .replace('"provider": "external"', '"provider": "embedded"')
    )
    assert Scenario.model_validate_json(text).to_json() == scenario.to_json()
    assert prefixed(there, names) == there


def test_an_object_is_in_the_journal_until_it_is_forgotten() -> None:
    made = [Created("topic", "onceproof-x.a"), Created("slot", "onceproof_x")]
    kept = ObjectJournal("run-1", "staging", "127.0.0.1:9092", "")
    for each in made:
        kept.will_create(each)
    kept.remove()
    entry = journal.read(kept.path)
    assert entry is not None and entry.objects == tuple(made) and entry.harness_is_alive()
    assert [*journal.abandoned("staging")] == []  # this process is alive
    journal.keep(kept.path, replace(entry, harness_start_ticks=entry.harness_start_ticks - 1))
    assert [found.run for _, found in journal.abandoned("staging")] == ["run-1"]
    assert [*journal.abandoned("another")] == []
    for each in made:
        kept.forget(each)
    kept.remove()
    assert not kept.path.exists()


@pytest.mark.parametrize("port", ["0", "65536", "99999", "abc", "\u0665"])
def test_a_port_that_does_not_exist_is_refused(port: str) -> None:
    from onceproof.stack.external.profile import PostgresProfile, split_address

    with pytest.raises(ValueError, match="port"):
        PostgresProfile(uri=f"host=db user=u dbname=d port={port}")
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(f"db:{port}")
    assert PostgresProfile(uri="postgresql://u@db:5433/d").parts()["port"] == "5433"
