"""The files with the job's login to Kafka: readable by this user alone, and no character of a password breaks them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from onceproof.scenario_files.shipped import folder
from onceproof.stack.external.client_files import escaped, java_settings, quoted, write_client_files
from onceproof.stack.external.profile import KafkaProfile, Sasl, Tls

HARNESS = Sasl(mechanism="PLAIN", username="harness", password=SecretStr("harness-secret"))
JOB = Sasl(mechanism="SCRAM-SHA-512", username="job", password=SecretStr('a "b\\c=d#e é'))
SECURED = KafkaProfile(bootstrap="h:1", security="SASL_SSL", sasl=HARNESS, job=JOB, tls=Tls())


def test_the_shipped_jobs_read_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java, librdkafka = write_client_files(tmp_path, SECURED, "/run/ca.pem", "/run/trust.p12")
    monkeypatch.setenv("KAFKA_PROPERTIES", java)
    monkeypatch.setenv("LIBRDKAFKA_PROPERTIES", librdkafka)
    security = runpy.run_path(str(folder() / "jobs" / "common.py"))["kafka_security"]
    assert security("KAFKA_PROPERTIES") == java_settings(SECURED, "/run/trust.p12")
    assert security("LIBRDKAFKA_PROPERTIES") == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "job",
        "sasl.password": 'a "b\\c=d#e é',
        "ssl.ca.location": "/run/ca.pem",
    }
    options = runpy.run_path(str(folder() / "jobs" / "foreign" / "kafka_login.py"))["options"]
    assert options() == {f"kafka.{name}": value for name, value in java_settings(SECURED, "/run/trust.p12").items()}
    assert [oct(Path(path).stat().st_mode & 0o777) for path in (java, librdkafka)] == ["0o600", "0o600"]


def test_a_cluster_without_login_and_tls_needs_no_file(tmp_path: Path) -> None:
    assert write_client_files(tmp_path, KafkaProfile(bootstrap="h:1"), "", "") == ("", "")
    assert [*tmp_path.iterdir()] == []


def test_without_a_login_of_its_own_the_job_uses_the_harness_login() -> None:
    settings = java_settings(SECURED.model_copy(update={"job": None}), "")
    assert 'username="harness" password="harness-secret"' in settings["sasl.jaas.config"]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n")))
def test_a_value_is_the_same_after_java_has_read_it(text: str) -> None:
    assert quoted(text).count("\n") == 0
    written = escaped(quoted(text))
    assert written.isascii()
    # As java.util.Properties: a backslash and u, then four digits, is one unit of UTF-16; else it stands for the next character.
    units = re.sub(r"\\(?:u([0-9a-f]{4})|(.))", lambda m: chr(int(m[1], 16)) if m[1] else m[2], written)
    read = units.encode("utf-16", "surrogatepass").decode("utf-16")
    assert re.sub(r"\\(.)", r"\1", read[1:-1]) == text  # as the parser of JAAS


@pytest.mark.parametrize("text", ["a\nb", "a\n", "a\r"])
def test_a_password_with_a_line_break_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="it has a line break"):
        Sasl(mechanism="PLAIN", username="a", password=SecretStr(text))
