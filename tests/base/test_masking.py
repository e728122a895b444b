"""A secret is masked in every form in which a program prints it; the rest of the text stays readable."""

from __future__ import annotations

import base64
import html
import json
import os
import shlex
import stat
import urllib.parse
import xml.sax.saxutils
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.masking import hiding, masked, masked_value
from onceproof.base.timeline import Timeline
from onceproof.history.run_directory import RunDir, private_files
from onceproof.judge.findings import Outcome

SECRETS = ["hunter2-plain", "p\"a's\\s/w+o rd&<é😀", "tab\there\nand a second line\nthird, last", "ümläut ß"]

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON, not ASCII alone": lambda s: json.dumps(s, ensure_ascii=False),
    "JSON in JSON": lambda s: json.dumps(json.dumps(json.dumps(s))),
    "JSON with escaped slashes": lambda s: json.dumps(s).replace("/", "\\/"),
    "repr": repr,
    "repr of bytes": lambda s: repr(s.encode()),
    "ascii": ascii,
    "URL": lambda s: urllib.parse.quote(s, safe=""),
    "URL with slashes": urllib.parse.quote,
    "form": urllib.parse.quote_plus,
    "URL in lower case": lambda s: urllib.parse.quote(s, safe="").lower() if s.isascii() else "",
    "URL in a URL": lambda s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe=""),
    "XML": xml.sax.saxutils.escape,
    "HTML": html.escape,
    "shell": shlex.quote,
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 in lines": lambda s: base64.encodebytes(b"u" * 48 + s.encode()).decode()[64:],
    "base64 for URLs": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
    "hex": lambda s: s.encode().hex(),
    "HEX:WITH:COLONS": lambda s: s.encode().hex(":").upper(),
    **{
        f"base64 after {n} letters": lambda s, n=n: base64.b64encode(b"u" * n + s.encode() + b"@").decode()
        for n in range(4)
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_form_of_a_secret_is_shown(secret: str, form: str) -> None:
    shown = FORMS[form](secret)
    with hiding([secret]):
        left = masked(f"connecting with {shown} failed")
    assert left.startswith("connecting with ")
    assert left.endswith(" failed")
    if shown:
        assert "***" in left
    # A few letters at both ends of base64 may remain, which reveal almost nothing; of any other form only quotes.
    rest = left.removeprefix("connecting with ").removesuffix(" failed").replace("***", "")
    assert len(rest.strip()) <= 16 if "base64" in form else not any(map(str.isalnum, rest.strip("b"))), rest


def test_nothing_is_masked_after_the_block() -> None:
    with hiding(["hunter2-plain"]):
        pass
    assert masked("hunter2-plain") == "hunter2-plain"


def test_each_line_of_a_secret_is_masked(tmp_path: object) -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nd2l0aCBtb3JlIGxpbmVz\n}\n-----END KEY-----"
    log = "\n".join(f"12:00 ERROR {line}" for line in key.splitlines())
    with hiding([key]):
        assert masked(log) == "12:00 ERROR ***\n12:00 ERROR ***\n12:00 ERROR ***\n12:00 ERROR }\n12:00 ERROR ***"


@pytest.mark.parametrize(
    "secret", ["postgresql://app:s%40cret-1@127.0.0.1:5432/orders", "host=db user=app password=s@cret-1 dbname=orders"]
)
def test_the_password_of_a_connection_string_is_also_masked_alone(secret: str) -> None:
    with hiding([secret]):
        assert masked('password authentication failed: "s@cret-1"') == 'password authentication failed: "***"'


def test_names_that_the_judge_compares_are_not_masked() -> None:
    @dataclass(frozen=True)
    class Report:
        query: str
        why: tuple[str, ...]
        outcome: Outcome

    with hiding(["orders", "held"]):
        assert masked_value({"query": "orders", "evidence": ["read orders"], "count": 1}) == {
            "query": "orders",
            "evidence": ["read ***"],
            "count": 1,
        }
        report = Report("orders", ("of orders",), Outcome.HELD)
        assert masked_value(report) == Report("orders", ("of ***",), Outcome.HELD)


def test_an_error_that_leaves_the_block_is_masked_with_its_causes() -> None:
    with pytest.raises(EnvironmentProblem) as raised, hiding(["hunter2-plain"]):
        try:
            raise ValueError("no hunter2-plain")
        except ValueError as cause:
            raise EnvironmentProblem("it printed hunter2-plain", hint="not hunter2-plain") from cause
    assert str(raised.value) == "it printed ***\n  not ***"
    assert str(raised.value.__cause__) == "no ***"


@given(st.text(min_size=1, max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_secret_is_masked_in_any_text(secret: str, before: str, after: str) -> None:
    with hiding([secret]):
        for form in (str, json.dumps, repr):
            left = masked(f"{before}{form(secret)}{after}")
            assert "***" in left


@pytest.mark.parametrize("secret", ["\\" * 200 + "x", "a" * 5000, "A+/" * 300, "\n" * 50 + "abc", " \n" * 300 + "end"])
@pytest.mark.parametrize("text", ["\\" * 20_000, "a" * 20_000, "QUFB" * 5_000, "\n " * 10_000, "%25" * 7_000])
@pytest.mark.timeout(60)
def test_the_pattern_of_a_secret_does_not_backtrack(secret: str, text: str) -> None:
    """A second is enough; a pattern that backtracks would run into the timeout."""
    with hiding([secret]):
        assert secret not in masked(text)


def test_a_jobs_output_is_stored_without_secrets_in_files_that_only_their_owner_can_read(tmp_path: Path) -> None:
    secret = SECRETS[1]
    before = os.umask(0o022)
    try:
        with private_files(), hiding([secret]):
            directory = RunDir.create(tmp_path / "runs", "leaks")
            timeline = Timeline(directory.events)
            printed = [form(secret) for form in FORMS.values()]
            timeline.emit("warning", message="; ".join(printed), query=secret)
            timeline.close()
            directory.update(job={"traceback": "\n".join(printed)}, error=json.dumps(secret))
        folders = {stat.S_IMODE(path.stat().st_mode) for path in directory.path.rglob("*") if path.is_dir()}
        files = {stat.S_IMODE(path.stat().st_mode) for path in directory.path.rglob("*") if path.is_file()}
    finally:
        os.umask(before)
    assert (stat.S_IMODE(directory.path.stat().st_mode), folders, files) == (0o700, {0o700}, {0o600})
    document = json.loads((directory.path / "run.json").read_text())
    event = json.loads(directory.events.read_text())
    assert document["error"] == '"***"'
    assert event["query"] == secret, "a name that the judge compares"
    for text in (document["job"]["traceback"], event["message"]):
        assert secret not in text and base64.b64encode(secret.encode()).decode()[:12] not in text
        assert "é" not in text and "%C3" not in text
