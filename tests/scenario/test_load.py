from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError, UsageError
from onceproof.scenario.kinds import store_fields
from onceproof.scenario_files import load as loading
from onceproof.scenario_files.load import find, load, load_all, names

Told = Callable[..., str]


def test_a_valid_scenario_is_named_after_its_file(write: Callable[..., Path]) -> None:
    scenario = load(write())
    assert scenario.name == "mine"
    assert scenario.input[0].rows == 60000
    assert scenario.pipeline.command[-1] == '{"a": {"b": 1}}'


def test_a_stored_scenario_keeps_the_fields_of_its_kinds(write: Callable[..., Path]) -> None:
    scenario = load(write(("target: driver", "target: broker\n    leader_of: enriched/0")))
    stored = json.loads(json.dumps(scenario.model_dump(mode="json", by_alias=True)))
    assert stored["chaos"][0]["leader_of"] == "enriched/0"


# One change of the valid scenario each, and the whole of what is said.
ONE_PROBLEM = {
    "unknown key": (
        ("about: a job", "abuot: a job"),
        "mine.yaml:1:1: unknown key 'abuot'\n    did you mean 'about'?",
    ),
    "unknown key in a part": (
        ("brokers: 3", "borkers: 3"),
        "mine.yaml:3:11: unknown key 'borkers'\n    did you mean 'brokers'?",
    ),
    "unknown key of a fault": (
        ("target: driver", "target: driver\n    traget: x"),
        "mine.yaml:20:5: unknown key 'traget'\n    did you mean 'target'?",
    ),
    "unknown fault": (
        ("fault: crash", "fault: crsh"),
        "mine.yaml:18:12: unknown fault 'crsh'\n    did you mean 'crash'?",
    ),
    "unknown target": (
        ("target: driver", "target: drivr"),
        "mine.yaml:19:13: unknown target 'drivr'\n    did you mean 'driver'?",
    ),
    "unknown point": (
        ("after-sink-commit", "after-sink-comit"),
        "mine.yaml:20:27: unknown point 'after-sink-comit'\n"
        "    did you mean 'after-sink-commit' or 'before-sink-commit'?",
    ),
    "unknown dataset": (
        ("dataset: flights", "dataset: flihgts"),
        "mine.yaml:7:14: unknown dataset 'flihgts'\n    did you mean 'flights'?",
    ),
    "unknown oracle": (
        ("test-nothing", "test-nothin"),
        "mine.yaml:24:16: unknown oracle 'test-nothin'\n    did you mean 'test-nothing'?",
    ),
    "text for a number": (
        ("rows: 60000", "rows: many"),
        'mine.yaml:8:11: rows: "many" is not a whole number',
    ),
    "truth for a number": (
        ("batch: 2", "batch: true"),
        "mine.yaml:20:17: batch: true is not a whole number",
    ),
    "a number for text": (
        ('TARGET: "{postgres}"', "CORES: 4"),
        'mine.yaml:12:16: CORES: 4 is not text\n    quote it: "4"',
    ),
    "out of bounds": (
        ("chunks: 10", "chunks: 0"),
        "mine.yaml:9:13: chunks: 0 cannot be; want more than 0",
    ),
    "not one of the numbers": (
        ("brokers: 3", "brokers: 2"),
        "mine.yaml:3:20: brokers: 2 cannot be; want 1 or 3",
    ),
    "not a mapping": (
        ("oracle: {kind: test-nothing}", "oracle: test-nothing"),
        "mine.yaml:24:9: \"test-nothing\" is not a mapping\n    write 'kind: NAME' and its settings below it",
    ),
    "missing key": (
        ("    dataset: flights\n", ""),
        "mine.yaml:6:5: key 'dataset' is missing\n    dataset: a registered data set",
    ),
    "syntax": (
        ("brokers: 3}", "brokers: 3"),
        "mine.yaml:4:11: not YAML: expected ',' or '}', but got ':' while parsing a flow mapping",
    ),
    "duplicate key": (
        ("expect: {verdict: held}", "about: again"),
        'mine.yaml:25:1: found duplicate key "about" with value "again" (original value: "a job")\n'
        "    keep one of them: only one can count",
    ),
    "a batch that is never reached": (
        ("batch: 2", "batch: 40"),
        "mine.yaml:20:17: batch 40 is never surely reached: 60000 records in 10 chunks give batches 1 to 9\n"
        "    a batch from 1 to 9, or at least 41 chunks",
    ),
    "a batch just out of reach": (
        ("batch: 2", "batch: 10"),
        "mine.yaml:20:17: batch 10 is never surely reached: 60000 records in 10 chunks give batches 1 to 9\n"
        "    a batch from 1 to 9, or at least 11 chunks",
    ),
    "the empty batch": (
        ("batch: 2", "batch: 0"),
        "mine.yaml:20:17: batch 0 holds no data (the feed begins once the job has fixed its start offsets)\n"
        "    use 1 or later",
    ),
    "one chunk": (
        ("chunks: 10", "chunks: 1"),
        "mine.yaml:20:17: batch 2 is never surely reached: 60000 records in 1 chunks give none that surely holds data\n"
        "    at least 3 chunks",
    ),
    "two faults at one position": (
        (
            "after-sink-commit}",
            "after-sink-commit}\n  - fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit, query: q}",
        ),
        "mine.yaml:23:9: fault 1 (crash driver) is at batch 2, after-sink-commit already\n"
        "    use another batch, or `attempt: 2` for its next attempt",
    ),
    "two losses of one frame": (
        (
            "fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit}",
            "{fault: lost-ack, target: postgres, at: {batch: 2, point: commit-unacknowledged}}\n"
            "  - {fault: lost-ack, target: postgres, at: {batch: 2, point: commit-unacknowledged}}",
        ),
        "mine.yaml:19:45: fault 1 (lost-ack postgres) is at batch 2, commit-unacknowledged already, for the same frame\n"
        "    use another batch, or `attempt: 2` for its next attempt",
    ),
    "two services that refuse at once": (
        (
            "fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit}",
            "{fault: reject, target: postgres, how: unavailable, at: {batch: 2, point: after-offset-log}}\n"
            "  - {fault: reject, target: kafka, how: too-large, topic: enriched, at: {batch: 2, point: after-offset-log}}",
        ),
        "mine.yaml:19:73: fault 1 (reject postgres) is at batch 2, after-offset-log already, and one service refuses "
        "at a time\n    use another batch, or `attempt: 2` for its next attempt",
    ),
    "two deaths of the driver": (
        (
            "after-sink-commit}",
            "after-sink-commit}\n  - {fault: checkpoint-damage, target: checkpoint, what: metadata, "
            "at: {batch: 2, point: after-sink-commit}}",
        ),
        "mine.yaml:21:72: fault 1 (crash driver) is at batch 2, after-sink-commit already\n"
        "    use another batch, or `attempt: 2` for its next attempt",
    ),
    "an attempt that never comes": (
        ("point: after-sink-commit}", "point: after-sink-commit, attempt: 2}"),
        "mine.yaml:20:55: nothing makes batch 2 be attempted 2 times: no fault breaks an earlier attempt\n"
        "    for example {fault: crash, target: driver, at: {batch: 2, point: after-sink-commit}}",
    ),
    "an attempt after the batch is done": (
        (
            "point: after-sink-commit}",
            "point: after-commit-log}\n  - fault: crash\n    target: driver\n"
            "    at: {batch: 2, point: after-sink-commit, attempt: 2}",
        ),
        "mine.yaml:23:55: nothing makes batch 2 be attempted 2 times: no fault breaks an earlier attempt\n"
        "    for example {fault: crash, target: driver, at: {batch: 2, point: after-sink-commit}}",
    ),
    "more rows than there are": (
        ("rows: 60000", "rows: 600000"),
        "mine.yaml:8:11: data set 'flights' has 336776 records, not 600000",
    ),
    "more chunks than rows": (
        ("rows: 60000", "rows: 9"),
        "mine.yaml:9:13: 10 chunks of 9 records: some would be empty\n    a chunk needs at least one record",
    ),
    "an output that is nowhere": (
        ("table: flights_out, ", ""),
        f"mine.yaml:22:3: output 'rows' needs one of {', '.join(store_fields())}, and has none",
    ),
    "an output topic that nobody creates": (
        ("copy: {topic: enriched", "copy: {topic: enrichd"),
        "mine.yaml:23:17: output topic 'enrichd' is not created\n"
        "    add it under pipeline: prepare: topics; did you mean 'enriched'?",
    ),
    "an unknown static table": (
        ("tables: [planes]", "tables: [plane]"),
        "mine.yaml:16:14: no data set of the input has a static table 'plane'\n    did you mean 'planes'?",
    ),
    "a template for an unknown topic": (
        ("{topic.flights}", "{topic.flight}"),
        "mine.yaml:11:71: template {topic.flight}: no topic 'flight'\n"
        "    name it in prepare.topics or the input; did you mean 'flights'?",
    ),
    "a job file that does not exist": (
        ("{here}/job.py", "{here}/jobb.py"),
        "mine.yaml:11:25: job file '{here}/jobb.py' does not exist\n    did you mean 'job.py'?",
    ),
    "a file in an option": (
        ("{here}/job.py", "--job={here}/jobs.py"),
        "mine.yaml:11:25: job file '{here}/jobs.py' does not exist\n    did you mean 'job.py'?",
    ),
    "a job file by a path that means nothing to the job": (
        ("{here}/job.py", "job.py"),
        "mine.yaml:11:25: job file 'job.py' is a relative path\n"
        "    write '{here}/job.py': the job runs in a folder of its own",
    ),
    "a program that is not there": (
        ('["{python}"', '["pyhton3"'),
        "mine.yaml:11:13: program 'pyhton3' is not found\n    give its path, or put its folder on PATH",
    ),
    "an expectation that cannot be met": (
        ("verdict: held", "verdict: violated"),
        "mine.yaml:25:19: expect: violated without anomalies can never be met\n    name the anomalies under anomalies:",
    ),
    "a name that is not the file's": (
        ("about: a job", "name: other"),
        "mine.yaml:1:7: name 'other' is not that of the file, 'mine'\n    leave name out: it is the file's",
    ),
    "what the oracle itself refuses": (
        ("test-nothing}", "test-nothing, refuse: this}"),
        "mine.yaml:24:38: this cannot be\n    seen in mine",
    ),
}


def test_where_the_queries_are_named_another_name_never_comes(told: Told) -> None:
    message = told(
        ("  prepare:\n", "  queries: [flights, totals]\n  prepare:\n"),
        ("at: {batch: 2,", "at: {query: flihgts, batch: 2,"),
        ("rows: {table: flights_out,", "rows: {query: total, table: flights_out,"),
    )
    assert "pipeline.queries has no query 'flihgts'\n    did you mean 'flights'?" in message
    assert "pipeline.queries has no query 'total'\n    did you mean 'totals'?" in message


@pytest.mark.parametrize("change, message", ONE_PROBLEM.values(), ids=ONE_PROBLEM.keys())
def test_a_problem_is_told_with_place_value_and_mend(told: Told, change: tuple[str, str], message: str) -> None:
    assert told(change) == message


@pytest.mark.parametrize(
    "first, second",
    [
        ("batch: 9, point: after-sink-commit", "batch: 1, point: after-sink-commit"),
        ("batch: 1, point: after-sink-commit", "batch: 1, point: after-offset-log"),
        ("batch: 1, point: after-sink-commit, query: a", "batch: 1, point: after-sink-commit, query: b"),
    ],
)
def test_faults_at_different_positions_are_fine(write: Callable[..., Path], first: str, second: str) -> None:
    both = f"{first}}}\n  - fault: crash\n    target: driver\n    at: {{{second}"
    assert len(load(write(("batch: 2, point: after-sink-commit", both))).chaos) == 2


def test_a_table_or_template_without_postgres(told: Told) -> None:
    message = told(("  postgres: {}\n", ""), ("tables: [planes]", "sql: SELECT 1"))
    assert "mine.yaml:15:5: prepare.sql needs a Postgres" in message
    assert "mine.yaml:21:17: output table 'flights_out' needs a Postgres" in message
    assert "mine.yaml:11:17: template {postgres} needs a Postgres" in message
    assert "add 'postgres: {}' under stack" in message


def test_a_secret_that_is_not_set(told: Told, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    change = ("  env:", "  secrets: [MY_TOKEN]\n  env:")
    monkeypatch.delenv("MY_TOKEN", raising=False)
    assert "mine.yaml:12:13: secret 'MY_TOKEN': no environment variable of that name is set" in told(change)
    monkeypatch.setenv("MY_TOKEN", "x")
    assert load(write(change)).pipeline.secrets == ["MY_TOKEN"]


def test_every_problem_is_told_at_once_in_the_order_of_the_file(told: Told) -> None:
    message = told(("brokers: 3", "brokrs: 3"), ("target: driver", "target: drivr"), ("rows: 60000", "rows: x"))
    places = [line.split(": ")[0] for line in message.splitlines() if line.startswith("mine.yaml")]
    assert places == ["mine.yaml:3:11", "mine.yaml:8:11", "mine.yaml:19:13"]


@pytest.mark.parametrize(
    "text, said",
    [("", "the file is empty"), ("- a\n", "found a list"), ("hello\n", "found the single value 'hello'")],
)
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=said):
        load(path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(b"about: \xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(path)


def test_scenarios_are_found_by_name_and_by_path(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write()
    assert find(path) == path
    monkeypatch.setattr(loading, "folder", lambda: path.parent)
    assert names() == ["mine"]
    assert find("mine") == path
    with pytest.raises(UsageError, match="unknown scenario 'mne'; did you mean 'mine'"):
        find("mne")
    with pytest.raises(UsageError, match="does not exist") as caught:
        find(str(path.with_name("mime.yaml")))
    assert caught.value.hint == "did you mean 'mine.yaml'?"


def test_the_problems_of_all_named_scenarios_are_told_together(write: Callable[..., Path]) -> None:
    first, second = write(("brokers: 3", "brokers: 2"), name="a"), write(("rows: 60000", "rows: x"), name="b")
    with pytest.raises(UsageError) as caught:
        load_all([str(first), "no-such-one", str(second)])
    for part in ("a.yaml:3:20", "unknown scenario 'no-such-one'", "b.yaml:8:11"):
        assert part in str(caught.value)
