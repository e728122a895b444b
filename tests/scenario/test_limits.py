"""Limits of a scenario file: each violation is refused quickly and with its own message."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError
from onceproof.cli.app import app
from onceproof.scenario_files.document import MAX_ALIASES, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from onceproof.scenario_files.load import load

Write = Callable[..., Path]

#: A guard against hanging, on a busy machine too.
_PATIENCE_S = 10.0

LAUGHS = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
FAULT = "  - {fault: crash, target: driver, at: {batch: 2, point: after-sink-commit}}\n"


def refused(path: Path) -> str:
    """What `validate` prints for a refused file: quickly, at most a page or two, with exit code 2."""
    begun = time.monotonic()
    done = CliRunner().invoke(app, ["validate", str(path)])
    assert time.monotonic() - begun < _PATIENCE_S
    assert done.exit_code == 2, done.output
    assert len(done.stderr) < 20_000
    return done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LAUGHS, f"with all aliases written out the file has more than {MAX_VALUES:,} values"),
        ("a: &a x\nb: [" + "*a, " * (MAX_ALIASES + 1) + "]\n", f"more than {MAX_ALIASES} aliases"),
        ("y: &y {<<: *y}\n", ":1:12: *y is inside &y"),
        ("y: &y [1, *y]\n", ":1:11: *y is inside &y"),
        ("x: " + "[" * 300 + "]" * 300, f"nested more than {MAX_DEPTH} levels deep"),
        ("".join(f"key{n}: 1\n" for n in range(4_500)), f"the file has more than {MAX_VALUES:,} values"),
        ("".join(f"k{n}: 1\n" for n in range(1_000_000)), f"a scenario may have {MAX_BYTES:,}"),
        ("# a comment\n" * 4_000_000, f"the file has 48,000,000 bytes; a scenario may have {MAX_BYTES:,}"),
        ("a: !!int abc\n", ":1:4: not YAML: 'abc' is not a value"),
        ("a: !!binary x\n", ":1:4: tag '!!binary' has no meaning in a scenario"),
        ("a: !ruby x\n", ":1:4: tag '!ruby' has no meaning in a scenario"),
        ("a: " + "1" * 5000 + "\n", ":1:4: not YAML: '1111"),
        ("a: 0x1" + "f" * 16 + "\n", "the whole number needs 65 bits; it may have 64"),
        ("a: 1e999\n", "'1e999' is not a finite number"),
        ("a: .nan\n", "'.nan' is not a finite number"),
        ('a: "x\\0y"\n', "the text has a NUL character"),
        ('a: "\\ud800"\n', "the text has half a surrogate pair"),
    ],
    ids=lambda value: value[:20],
)
def test_oversized_files_and_impossible_values_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    assert expected in refused(path)


@pytest.mark.parametrize("filler", ["#" * 70 + "\n", "#\n", "\n", "# " + "é" * 30 + "\n"])
def test_comments_up_to_the_limit_are_read_quickly(write: Write, filler: str) -> None:
    path = write()
    room = MAX_BYTES - path.stat().st_size
    path.write_text(path.read_text() + filler * (room // len(filler.encode())))
    begun = time.monotonic()
    load(path)
    assert time.monotonic() - begun < _PATIENCE_S


def test_an_impossible_date_is_kept_as_text(write: Write) -> None:
    assert load(write(("about: a job", "about: 2013-02-30"))).about == "2013-02-30"


def test_a_few_aliases_are_accepted(write: Write) -> None:
    path = write(("[src_partition, src_offset]}\n  copy", "&id [src_partition, src_offset]}\n  copy"))
    path.write_text(
        path.read_text().replace("enriched, identity: [src_partition, src_offset]", "enriched, identity: *id")
    )
    assert load(path).outputs["copy"].identity == ["src_partition", "src_offset"]


def test_too_many_faults_inputs_or_outputs_are_refused(write: Write) -> None:
    message = refused(write(("chaos:\n", "chaos:\n" + FAULT * 300)))
    assert "chaos: 301 faults are too many; a scenario has at most 200" in message
    inputs = "".join(f"  - {{topic: t{n}, dataset: numbers}}\n" for n in range(51))
    assert "input: want at most 50 entries" in refused(write(("input:\n", "input:\n" + inputs)))
    outputs = "".join(f"  o{n}: {{table: t{n}, identity: [a]}}\n" for n in range(51))
    assert "outputs: want at most 50 entries" in refused(write(("outputs:\n", "outputs:\n" + outputs)))


def test_the_first_of_many_problems_are_shown_and_the_others_counted(write: Write) -> None:
    path = write(("chaos:\n", "chaos:\n" + FAULT.replace("crash,", "crush,") * 190))
    message = refused(path)
    assert message.count("unknown fault 'crush'") == 50 and "and 140 more problems" in message
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert len(caught.value.problems) == 190, "a program gets all of them"


def test_long_values_are_shortened(write: Write) -> None:
    message = refused(write(("about: a job", f"{'k' * 900}: 1"), ("target: driver", f"target: {'t' * 5_000}")))
    assert "unknown key 'kkk" in message and len(message) < 3_000


TOPIC = "a topic's name has letters, digits, '.', '_' and '-', at most 249 of them"


@pytest.mark.parametrize("topic", ["../flights", "", "..", "x" * 300, "a b", "flüge", "a/b"])
def test_an_invalid_topic_name_is_refused(write: Write, topic: str) -> None:
    at_input = refused(write(("topic: flights\n", f'topic: "{topic}"\n')))
    assert TOPIC in at_input and ":6:" in at_input
    assert TOPIC in refused(write(("enriched: {partitions: 3}", f'enriched: {{partitions: 3}}\n      "{topic}": {{}}')))
    assert TOPIC in refused(write(("topic: enriched", f'topic: "{topic}"')))


def test_topics_that_differ_only_by_dot_and_underscore_are_refused(write: Write) -> None:
    message = refused(
        write(("enriched: {partitions: 3}", "enriched: {partitions: 3}\n      en.riched: {}\n      en_riched: {}"))
    )
    assert "topics 'en.riched' and 'en_riched'" in message


def test_input_topics_that_differ_only_by_case_are_refused(write: Write) -> None:
    more = "chunks: 10\n  - topic: Flights\n    dataset: flights\n"
    message = refused(write(("chunks: 10\n", more)))
    assert "topic 'Flights' differs only by case from input topic 'flights'" in message and ":10:12:" in message
    assert "rename one of the topics" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("chunks: 10", "chunks: 10\n    partitions: 1000000000"),
            "partitions: 1000000000 is not allowed; want at most 256",
        ),
        (("chunks: 10", "chunks: 10\n    partitions: 1e9"), "partitions: 1000000000.0"),
        (
            ("enriched: {partitions: 3}", "enriched: {partitions: 5000}"),
            "partitions: 5000 is not allowed; want at most 256",
        ),
        (("table: flights_out", 'table: ""'), 'table: "": a table\'s name is empty'),
        (("table: flights_out", "table: a."), 'table: "a.": a table\'s name is empty'),
        (("table: flights_out", f"table: {'t' * 64}"), "Postgres would cut the name off after 63 bytes"),
        (('{TARGET: "{postgres}"}', '{"A=B": x}'), "'A=B' is not a valid name of an environment variable"),
        (('{TARGET: "{postgres}"}', '{"": x}'), "'' is not a valid name of an environment variable"),
        (
            ("--kafka,", '"--kafka={kafkaa}",'),
            "unknown template {kafkaa}\n    did you mean 'kafka'",
        ),
        (("--kafka,", '"{postgres.jbdc}",'), "unknown template {postgres.jbdc}\n    did you mean"),
        (
            ("--kafka,", '"{topics.flights}",'),
            "unknown template {topics.flights}\n    did you mean",
        ),
        (('{TARGET: "{postgres}"}', '{A: "{chekpoint}/x"}'), "did you mean 'checkpoint'"),
        (("{here}/job.py", f"{{here}}/{'x' * 300}.py"), "does not exist"),
        (("{here}/job.py", f"{'y/' * 3000}x.py"), "does not exist"),
        (('"{python}", ', f'"{"z" * 5000}", '), "was not found"),
        (
            ("dataset: flights\n    rows: 60000", "dataset: file\n    options: {file: ~nosuchuser/x.jsonl}"),
            "'~nosuchuser/x.jsonl' does not exist",
        ),
        (
            ("dataset: flights\n    rows: 60000", f"dataset: file\n    options: {{file: {'x' * 300}.jsonl}}"),
            "does not exist",
        ),
        (("about: a job", "limits: {deadline_s: 1e300}"), "deadline_s: 1e+300 is not allowed; want at most"),
    ],
    ids=lambda value: value[1][:30] if isinstance(value, tuple) else "",
)
def test_values_that_cannot_work_are_refused(write: Write, change: tuple[str, str], expected: str) -> None:
    assert expected in refused(write(change))


@pytest.mark.parametrize("brace", ["{}", "{name}", '{"kafka": 1}', "{0}", "{x.y}", "${KAFKA}", "{kafka", "{ts:%Y}"])
def test_braces_that_are_not_templates_are_accepted(write: Write, brace: str) -> None:
    load(write(("--kafka,", f"'{brace}',")))


@pytest.mark.parametrize(
    "name", ["~nosuchuser/x.yaml", "x" * 300, "x" * 300 + ".yaml", "y/" * 3000 + "x.yaml", "a\0b.yaml", ""]
)
def test_an_impossible_file_name_is_refused(name: str) -> None:
    done = CliRunner().invoke(app, ["validate", name])
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
