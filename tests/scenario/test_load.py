from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.base.errors import ScenarioError, UsageError
from onceproof.cli.app import app
from onceproof.scenario.kinds import store_fields
from onceproof.scenario_files import shipped
from onceproof.scenario_files.load import load, load_all
from onceproof.scenario_files.shipped import find, names

ProblemsOf = Callable[..., str]


@pytest.mark.parametrize("command", ["run", "validate", "plan", "qualify", "explore"])
def test_a_job_instead_of_a_scenario_is_refused_with_the_command_that_drafts_one(command: str, tmp_path: Path) -> None:
    job = tmp_path / "my job.py"
    job.write_text("print()\n")
    done = CliRunner().invoke(app, [command, str(job)])
    assert done.exit_code == 2 and "is a Python file, not a scenario" in done.stderr
    assert f"onceproof init -- python '{job}'" in done.stderr


def test_a_valid_scenario_is_named_after_its_file(write: Callable[..., Path]) -> None:
    scenario = load(write())
    assert scenario.name == "mine"
    assert scenario.input[0].rows == 60000
    assert scenario.pipeline.command[-1] == '{"a": {"b": 1}}'


def test_a_stored_scenario_keeps_the_fields_of_its_kinds(write: Callable[..., Path]) -> None:
    scenario = load(write(("target: driver", "target: broker\n    leader_of: enriched/0")))
    stored = json.loads(json.dumps(scenario.model_dump(mode="json", by_alias=True)))
    assert stored["chaos"][0]["leader_of"] == "enriched/0"


# One change of the valid scenario each, and the complete message.
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
    "a boolean for a number": (
        ("batch: 2", "batch: true"),
        "mine.yaml:20:17: batch: true is not a whole number",
    ),
    "a number for text": (
        ('TARGET: "{postgres}"', "CORES: 4"),
        'mine.yaml:12:16: CORES: 4 is not text\n    quote it: "4"',
    ),
    "out of bounds": (
        ("chunks: 10", "chunks: 0"),
        "mine.yaml:9:13: chunks: 0 is not allowed; want more than 0",
    ),
    "not one of the numbers": (
        ("brokers: 3", "brokers: 2"),
        "mine.yaml:3:20: brokers: 2 is not allowed; want 1 or 3",
    ),
    "not a mapping": (
        ("oracle: {kind: test-nothing}", "oracle: test-nothing"),
        "mine.yaml:24:9: \"test-nothing\" is not a mapping\n    write 'kind: NAME' and its settings below it",
    ),
    "missing key": (
        ("    dataset: flights\n", ""),
        "mine.yaml:6:5: key 'dataset' is missing\n    dataset: where its records come from: `onceproof list datasets`",
    ),
    "syntax": (
        ("brokers: 3}", "brokers: 3"),
        "mine.yaml:4:11: not YAML: expected ',' or '}', but got ':' while parsing a flow mapping",
    ),
    "duplicate key": (
        ("expect: {verdict: held}", "about: again"),
        'mine.yaml:25:1: found duplicate key "about" with value "again" (original value: "a job")\n'
        "    remove one of them",
    ),
    "a batch beyond the guaranteed ones": (
        ("batch: 2", "batch: 40"),
        "mine.yaml:20:17: the job may never reach batch 40: 60,000 records in 10 chunks guarantee only batches 1 to 9\n"
        "    a batch from 1 to 9, or at least 41 chunks",
    ),
    "the first batch that is not guaranteed": (
        ("batch: 2", "batch: 10"),
        "mine.yaml:20:17: the job may never reach batch 10: 60,000 records in 10 chunks guarantee only batches 1 to 9\n"
        "    a batch from 1 to 9, or at least 11 chunks",
    ),
    "batch 0, which holds no data": (
        ("batch: 2", "batch: 0"),
        "mine.yaml:20:17: batch 0 holds no data (the feed begins once the job has fixed its start offsets)\n"
        "    use 1 or later",
    ),
    "a single chunk": (
        ("chunks: 10", "chunks: 1"),
        "mine.yaml:20:17: the job may never reach batch 2: 60,000 records in 1 chunk guarantee no batch with data\n"
        "    at least 3 chunks",
    ),
    "two faults at one position": (
        (
            "after-sink-commit}",
            "after-sink-commit}\n  - fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit, query: q}",
        ),
        "mine.yaml:23:9: fault 1 (crash driver) is already at batch 2, after-sink-commit\n"
        "    use another batch, or `attempt: 2` for the batch's next attempt",
    ),
    "two lost acknowledgements of one frame": (
        (
            "fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit}",
            "{fault: lost-ack, target: postgres, at: {batch: 2, point: commit-unacknowledged}}\n"
            "  - {fault: lost-ack, target: postgres, at: {batch: 2, point: commit-unacknowledged}}",
        ),
        "mine.yaml:19:45: fault 1 (lost-ack postgres) is already at batch 2, commit-unacknowledged, for the same frame\n"
        "    use another batch, or `attempt: 2` for the batch's next attempt",
    ),
    "two services that refuse in one batch": (
        (
            "fault: crash\n    target: driver\n    at: {batch: 2, point: after-sink-commit}",
            "{fault: reject, target: postgres, how: unavailable, at: {batch: 2, point: after-offset-log}}\n"
            "  - {fault: reject, target: kafka, how: too-large, topic: enriched, at: {batch: 2, point: after-offset-log}}",
        ),
        "mine.yaml:19:73: fault 1 (reject postgres) is already at batch 2, after-offset-log, and one service refuses "
        "at a time\n    use another batch, or `attempt: 2` for the batch's next attempt",
    ),
    "two faults that kill the driver": (
        (
            "after-sink-commit}",
            "after-sink-commit}\n  - {fault: checkpoint-damage, target: checkpoint, what: metadata, "
            "at: {batch: 2, point: after-sink-commit}}",
        ),
        "mine.yaml:21:72: fault 1 (crash driver) is already at batch 2, after-sink-commit\n"
        "    use another batch, or `attempt: 2` for the batch's next attempt",
    ),
    "an attempt that never happens": (
        ("point: after-sink-commit}", "point: after-sink-commit, attempt: 2}"),
        "mine.yaml:20:55: batch 2 has no attempt 2: no fault breaks an earlier attempt\n"
        "    add one: {fault: crash, target: driver, at: {batch: 2, point: after-sink-commit}}",
    ),
    "an attempt at a committed batch": (
        (
            "point: after-sink-commit}",
            "point: after-commit-log}\n  - fault: crash\n    target: driver\n"
            "    at: {batch: 2, point: after-sink-commit, attempt: 2}",
        ),
        "mine.yaml:23:55: batch 2 has no attempt 2: no fault breaks an earlier attempt\n"
        "    add one: {fault: crash, target: driver, at: {batch: 2, point: after-sink-commit}}",
    ),
    "more rows than the data set has": (
        ("rows: 60000", "rows: 600000"),
        "mine.yaml:8:11: data set 'flights' has only 336776 records, not 600000",
    ),
    "more chunks than rows": (
        ("rows: 60000", "rows: 9"),
        "mine.yaml:9:13: 9 records in 10 chunks: some chunks would be empty\n    a chunk needs at least one record",
    ),
    "an output without a store": (
        ("table: flights_out, ", ""),
        f"mine.yaml:22:3: output 'rows' needs one of {', '.join(store_fields())}, and has none",
    ),
    "an output topic that nothing creates": (
        ("copy: {topic: enriched", "copy: {topic: enrichd"),
        "mine.yaml:23:17: output topic 'enrichd' is not created\n"
        "    add it under pipeline: prepare: topics; did you mean 'enriched'?",
    ),
    "an unknown static table": (
        ("tables: [planes]", "tables: [plane]"),
        "mine.yaml:16:14: none of the input's data sets has a static table 'plane'\n    did you mean 'planes'?",
    ),
    "a template for an unknown topic": (
        ("{topic.flights}", "{topic.flight}"),
        "mine.yaml:11:71: template {topic.flight}: no topic 'flight'\n"
        "    declare it under prepare.topics or the input; did you mean 'flights'?",
    ),
    "a job file that does not exist": (
        ("{here}/job.py", "{here}/jobb.py"),
        "mine.yaml:11:25: job file '{here}/jobb.py' does not exist\n    did you mean 'job.py'?",
    ),
    "a file in an option": (
        ("{here}/job.py", "--job={here}/jobs.py"),
        "mine.yaml:11:25: job file '{here}/jobs.py' does not exist\n    did you mean 'job.py'?",
    ),
    "a job file by a relative path": (
        ("{here}/job.py", "job.py"),
        "mine.yaml:11:25: job file 'job.py' is a relative path\n"
        "    write '{here}/job.py': the job runs in another folder than the scenario's",
    ),
    "a program that does not exist": (
        ('["{python}"', '["pyhton3"'),
        "mine.yaml:11:13: program 'pyhton3' was not found\n    give its path, or put its folder on PATH",
    ),
    "an expectation that no run can meet": (
        ("verdict: held", "verdict: violated"),
        "mine.yaml:25:19: expect: no run can be violated without anomalies\n    name the expected ones under anomalies:",
    ),
    "a name that is not the file's": (
        ("about: a job", "name: other"),
        "mine.yaml:1:7: name 'other' differs from the file's name, 'mine'\n    remove `name`: a scenario is named by its file",
    ),
    "a problem that the oracle reports": (
        ("test-nothing}", "test-nothing, refuse: this}"),
        "mine.yaml:24:38: this cannot be\n    seen in mine",
    ),
}


def test_a_query_that_is_not_among_the_listed_ones_is_refused(problems_of: ProblemsOf) -> None:
    message = problems_of(
        ("  prepare:\n", "  queries: [flights, totals]\n  prepare:\n"),
        ("at: {batch: 2,", "at: {query: flihgts, batch: 2,"),
        ("rows: {table: flights_out,", "rows: {query: total, table: flights_out,"),
    )
    assert "query 'flihgts' is not listed under pipeline.queries\n    did you mean 'flights'?" in message
    assert "query 'total' is not listed under pipeline.queries\n    did you mean 'totals'?" in message


@pytest.mark.parametrize("change, message", ONE_PROBLEM.values(), ids=ONE_PROBLEM.keys())
def test_a_problem_is_reported_with_its_place_its_value_and_a_fix(
    problems_of: ProblemsOf, change: tuple[str, str], message: str
) -> None:
    assert problems_of(change) == message


@pytest.mark.parametrize(
    "first, second",
    [
        ("batch: 9, point: after-sink-commit", "batch: 1, point: after-sink-commit"),
        ("batch: 1, point: after-sink-commit", "batch: 1, point: after-offset-log"),
        ("batch: 1, point: after-sink-commit, query: a", "batch: 1, point: after-sink-commit, query: b"),
    ],
)
def test_faults_at_different_positions_are_accepted(write: Callable[..., Path], first: str, second: str) -> None:
    both = f"{first}}}\n  - fault: crash\n    target: driver\n    at: {{{second}"
    assert len(load(write(("batch: 2, point: after-sink-commit", both))).chaos) == 2


def test_tables_and_templates_without_postgres_are_refused(problems_of: ProblemsOf) -> None:
    message = problems_of(("  postgres: {}\n", ""), ("tables: [planes]", "sql: SELECT 1"))
    assert "mine.yaml:15:5: prepare.sql needs Postgres" in message
    assert "mine.yaml:21:17: output table 'flights_out' needs" in message
    assert "mine.yaml:11:17: template {postgres} needs Postgres" in message
    assert "add 'postgres: {}' under stack" in message


def test_a_secret_that_is_not_set_is_refused(
    problems_of: ProblemsOf, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    change = ("  env:", "  secrets: [MY_TOKEN]\n  env:")
    monkeypatch.delenv("MY_TOKEN", raising=False)
    assert "mine.yaml:12:13: secret 'MY_TOKEN': the environment variable is not set" in problems_of(change)
    monkeypatch.setenv("MY_TOKEN", "x")
    assert load(write(change)).pipeline.secrets == ["MY_TOKEN"]


def test_all_problems_are_reported_together_in_the_order_of_the_file(problems_of: ProblemsOf) -> None:
    message = problems_of(("brokers: 3", "brokrs: 3"), ("target: driver", "target: drivr"), ("rows: 60000", "rows: x"))
    places = [line.split(": ")[0] for line in message.splitlines() if line.startswith("mine.yaml")]
    assert places == ["mine.yaml:3:11", "mine.yaml:8:11", "mine.yaml:19:13"]


@pytest.mark.parametrize(
    "text, expected",
    [("", "the file is empty"), ("- a\n", "found a list"), ("hello\n", "found the single value 'hello'")],
)
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=expected):
        load(path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(b"about: \xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load(path)


def test_scenarios_are_found_by_name_and_by_path(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write()
    assert find(path) == path
    monkeypatch.setattr(shipped, "folder", lambda: path.parent)
    assert names() == ["mine"]
    assert find("mine") == path
    with pytest.raises(UsageError, match="unknown scenario 'mne'; did you mean 'mine'"):
        find("mne")
    with pytest.raises(UsageError, match="does not exist") as caught:
        find(str(path.with_name("mime.yaml")))
    assert caught.value.hint == "did you mean 'mine.yaml'?"


def test_the_problems_of_several_scenarios_are_reported_together(write: Callable[..., Path]) -> None:
    first, second = write(("brokers: 3", "brokers: 2"), name="a"), write(("rows: 60000", "rows: x"), name="b")
    with pytest.raises(UsageError) as caught:
        load_all([str(first), "no-such-one", str(second)])
    for part in ("a.yaml:3:20", "unknown scenario 'no-such-one'", "b.yaml:8:11"):
        assert part in str(caught.value)
