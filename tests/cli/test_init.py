"""`onceproof init`: every scenario that it writes is valid, and if it refuses its arguments it leaves no file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onceproof.cli.app import app
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.drafts import draft
from onceproof.scenario_files.load import load

ORDERS = [
    {"customer_id": n % 7, "order_id": 1000 + n, "amount": n * 1.5, "placed_at": f"2026-01-01T00:{n:02}Z", "order": {}}
    for n in range(40)
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs").mkdir()
    for name in ("job.py", "jobs/sums.py", "my job.py"):
        (tmp_path / name).write_text("print()\n")
    sample("orders.jsonl", *map(json.dumps, ORDERS), folder=tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sample(name: str, *lines: str, folder: Path = Path()) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def init(*words: str) -> Scenario:
    done = invoke("init", "--json", *words)
    assert done.exit_code == 0, done.output
    path = Path(json.loads(done.stdout)["scenario"])
    checked = invoke("validate", str(path))
    assert checked.exit_code == 0, checked.output
    return load(path)


def refused(*words: str) -> str:
    before = sorted(Path().rglob("*"))
    done = invoke("init", *words)
    assert done.exit_code == 2, done.output
    assert sorted(Path().rglob("*")) == before
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--", "python", "job.py"),
        ("python3", "job.py", "--kafka", "broker:9092", "--checkpoint", "/data/cp"),
        (
            "--topic",
            "orders",
            "--",
            "python",
            "jobs/sums.py",
            "orders",
            "local[2]",
            "--conf",
            "a.b=c",
            '{"a": {"b": 1}}',
        ),
        ("--table", "public.Sums", "--", "python", "job.py", "postgresql://me:secret@db/shop"),
        ("--table", "sums", "--output-topic", "sums", "--", "python", "my job.py", "", "#", "a: b", "- x", "'", '"'),
        ("--topic", "true", "--output-topic", "1.0", "--", "python", "job.py", "yes", "null", "12:30", "~", "ü\n"),
        ("--env", "A={kafka}", "--env", "B=*x", "--env", "C=", "--", "python", "job.py", "{topic.flights"),
        ("--sample", "orders.jsonl", "--table", "sums", "--", "python", "job.py"),
        ("--sample", "orders.jsonl", "--to", "jobs/other.yaml", "--", "python", "job.py"),
    ],
)
def test_the_written_scenario_is_valid(words: tuple[str, ...]) -> None:
    scenario = init(*words)
    assert scenario.chaos and scenario.outputs


@pytest.mark.parametrize(
    "lines",
    [
        ['{"id": 1}'],
        ['{"id": 1}', '{"id": 2}'],
        ['{"a": 1}', '{"a": 1}', '{"a": 1}'],
        ['{"select": 1, "select from": "x", "A\\"b": null, "# c": true}', '{"select": 2, "\\n": [1], "yes": 1e400}'],
        ['{"sensor": 1, "value": 2.5}', '{"sensor": 1, "value": 2.6}'],
        ['{"a": 1, "b": 1, "c": {}}', '{"a": 1, "b": 2, "c": {}}', '{"a": 2, "b": 1, "c": {}}'],
        ["{}"],
    ],
)
def test_the_written_scenario_is_valid_for_any_sample(lines: list[str]) -> None:
    sample("s.jsonl", *lines)
    scenario = init("--sample", "s.jsonl", "--table", "t", "--output-topic", "o", "--", "python", "job.py")
    assert bool(scenario.chaos) == (len(lines) > 1), "with a single record there is no batch for a fault"


def test_a_sample_proposes_identity_and_key() -> None:
    scenario = init("--topic", "orders", "--table", "sums", "--sample", "orders.jsonl", "--", "python", "job.py")
    (output,) = scenario.outputs.values()
    assert output.identity == ["order_id"]
    assert scenario.input[0].options["key"] == "customer_id"
    assert scenario.oracle.model_dump()["columns"] == {"sums_table": {"order_id": "order_id"}}


def test_fields_that_differ_only_by_case_get_distinct_columns() -> None:
    sample("trades.jsonl", *(f'{{"t":{n},"T":17000000000{n},"s":"A","v":{n}.5}}' for n in range(10, 20)))
    made = init(
        "--to",
        "mine.yaml",
        "--topic",
        "in",
        "--output-topic",
        "out",
        "--sample",
        "trades.jsonl",
        "--",
        "python",
        "job.py",
    )
    text = Path("mine.yaml").read_text()
    assert "T is T_1, t is t_2" in text
    assert "SELECT t_2, T_1, s, v, _topic" in text
    (output,) = made.outputs.values()
    assert output.identity in (["t_2"], ["T_1"])


def test_several_fields_together_can_be_the_identity() -> None:
    sample("s.jsonl", *(json.dumps({"day": n // 3, "price": 1, "shop_id": n % 3}) for n in range(9)))
    scenario = init("--sample", "s.jsonl", "--table", "t", "--", "python", "job.py")
    assert sorted(scenario.outputs["t_table"].identity) == ["day", "shop_id"]


def test_without_any_identity_the_position_is_proposed() -> None:
    sample("s.jsonl", *['{"a": 1}'] * 5)
    scenario = init("--sample", "s.jsonl", "--table", "t", "--", "python", "job.py")
    assert scenario.outputs["t_table"].identity == ["src_partition", "src_offset"]


def test_addresses_checkpoints_and_files_become_templates() -> None:
    scenario = init(
        *("--to", "jobs/mine.yaml", "--topic", "orders", "--env", "DATABASE_URL=postgresql://me:pw@db/shop"),
        *(
            "--",
            "python",
            "job.py",
            "--bootstrap-servers=a:9092,b:9092",
            "--input-topic",
            "orders",
            "--out-topic",
            "sums",
        ),
        *(
            "--url",
            "jdbc:postgresql://db/shop?password=pw",
            "--checkpoint-dir",
            "s3://bucket/cp/sums",
            "--password",
            "pw",
        ),
    )
    assert scenario.pipeline.command == [
        *(
            "{python}",
            "{here}/../job.py",
            "--bootstrap-servers={kafka}",
            "--input-topic",
            "{topic.orders}",
            "--out-topic",
        ),
        *(
            "{topic.sums}",
            "--url",
            "{postgres.jdbc}",
            "--checkpoint-dir",
            "{checkpoint}/sums",
            "--password",
            "CHANGE-ME",
        ),
    ]
    assert scenario.pipeline.env == {"DATABASE_URL": "{postgres}"}
    assert (scenario.input[0].topic, list(scenario.pipeline.prepare.topics)) == ("orders", ["sums"])
    assert "pw" not in Path("jobs/mine.yaml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--db-pass", "s3cr3t"),
        ("--dbpassword=s3cr3t",),
        ("--api-key", "s3cr3t"),
        ("--apiKey=s3cr3t",),
        ("--fs.azure.account.key", "s3cr3t"),
        ("--conf", "spark.db.password=s3cr3t"),
        ("--conf=spark.db.password=s3cr3t",),
        ("--conf", "spark.url=jdbc:mysql://db/shop?user=me&password=s3cr3t"),
        ("-Ddb.password=s3cr3t",),
        ("-Dopts=--token=s3cr3t",),
        ("--password", "-s3cr3t"),
        ("--password", "s3cr3t{kafka}"),
        ("--opts", "servers={kafka};password=s3cr3t"),
        ("--uri", "mongodb+srv://me:s3cr3t@db/shop"),
        ("--uri", "redis://:a/s3cr3t@db"),
        ("--uri", "https://s3cr3t@example/x.git"),
        ("--url", "jdbc:oracle:thin:scott/s3cr3t@db:1521/shop"),
        ("--json", '{"password": "s3cr3t"}'),
        ("--jaas", 'PlainLoginModule required username="me" password="s3cr3t";'),
        ("--header", "Authorization: Bearer s3cr3t"),
        ("PGPASSWORD=s3cr3t",),
        ("-c", "PGPASSWORD=s3cr3t run"),
        ("-c", "run --password s3cr3t"),
    ],
)
def test_a_secret_is_never_stored(words: tuple[str, ...]) -> None:
    init("--", "python", "job.py", *words)
    written = Path("job.yaml").read_text()
    assert "s3cr3t" not in written and "CHANGE-ME" in written


@pytest.mark.parametrize("variable", ["API_TOKEN=s3cr3t", "URL=amqp://s3cr3t@broker", "OPTS=a={kafka} token=s3cr3t"])
def test_a_secret_in_a_variable_is_never_stored(variable: str) -> None:
    scenario = init("--env", variable, "--", "python", "job.py")
    assert "s3cr3t" not in Path("job.yaml").read_text() and "CHANGE-ME" in str(scenario.pipeline.env)


@pytest.mark.parametrize(
    "words",
    [
        ("--key-field", "id", "--partition-key", "customer"),
        ("--tokenizer", "words", "--passes", "3", "--passengers", "all", "--bypass", "no"),
        ("--path", "abfss://container@account/x"),
        ("--url", "http://example:8080/x", "--conf", "spark.sql.shuffle.partitions=4"),
        ("-Dlog.level=info", "--password", "{postgres}"),
        ("--no-password", "--rows", "4"),
    ],
)
def test_harmless_values_are_kept(words: tuple[str, ...]) -> None:
    assert init("--", "python", "job.py", *words).pipeline.command[2:] == list(words)


def test_a_given_topic_is_recognised_in_any_variable() -> None:
    env = ("--env", "A=orders", "--env", "B=sums", "--env", "C=other")
    scenario = init("--topic", "orders", "--output-topic", "sums", *env, "--", "python", "job.py")
    assert scenario.pipeline.env == {"A": "{topic.orders}", "B": "{topic.sums}", "C": "other"}


def test_what_only_the_user_can_decide_is_printed_and_marked() -> None:
    done = invoke("init", "--", "python", "job.py")
    written = Path("job.yaml").read_text()
    decisions = [line for line in done.stdout.splitlines() if line.startswith("  - ")]
    assert len(decisions) == written.count("# DECIDE: ") > 5
    for word in ("which topic", "Kafka's address", "checkpoint", "does the job write", "guarantee"):
        assert any(word in line for line in decisions), word


def test_the_commented_statement_for_a_table_is_valid_once_uncommented() -> None:
    init("--table", "sums", "--output-topic", "o", "--sample", "orders.jsonl", "--", "python", "job.py")
    lines = Path("job.yaml").read_text().splitlines()
    first = lines.index("  #   sql: |")
    last = lines.index("  #     );")
    lines[first : last + 1] = [line.replace("# ", "", 1) for line in lines[first : last + 1]]
    Path("job.yaml").write_text("\n".join(lines))
    statement = load(Path("job.yaml")).pipeline.prepare.sql
    assert statement.startswith("CREATE TABLE sums (\n  customer_id bigint,\n  order_id bigint,")
    assert '"order" jsonb\n' in statement


def test_a_program_next_to_this_python_is_reported_with_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert f"it is in {Path(sys.executable).parent}: put that folder on PATH" in refused("--", "spark-submit", "job.py")


def test_nothing_is_overwritten_without_force() -> None:
    Path("job.yaml").write_text("mine")
    assert "exists already" in refused("--", "python", "job.py")
    assert Path("job.yaml").read_text() == "mine"
    init("--force", "--", "python", "job.py")


def test_a_draft_that_does_not_load_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = draft.text
    monkeypatch.setattr(
        draft, "text", lambda made: right(made).replace("{delivery: effectively-once,", "{delivery: perhaps,")
    )
    assert "no valid scenario can be made from this: unknown delivery 'perhaps'" in refused("--", "python", "job.py")
    Path("job.yaml").write_text("mine")
    refused("--force", "--", "python", "job.py")
    assert Path("job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "the command that starts the job is missing"),
        (("--topic", "orders", "--"), "the command that starts the job is missing"),
        (("--", "python", "jbo.py"), "job file 'jbo.py' does not exist\n  did you mean 'job.py'"),
        (("--", "no-such-program"), "program 'no-such-program' was not found"),
        (("--", "job.py"), "python job.py"),
        (("--sample", "orders.json", "--", "python", "job.py"), "orders.json has an unknown ending: .json"),
        (("--sample", "order.jsonl", "--", "python", "job.py"), "did you mean 'orders.jsonl'?"),
        (("--topic", "a b", "--", "python", "job.py"), "'a b' is not a valid name of a Kafka topic"),
        (("--topic", "a", "--output-topic", "a", "--", "python", "job.py"), "topic 'a' would be both read and written"),
        (("--env", "A", "--", "python", "job.py"), "--env 'A' is not NAME=VALUE"),
        (("--to", "job.txt", "--", "python", "job.py"), "is not named like a YAML file"),
        (("--to", "nowhere/job.yaml", "--", "python", "job.py"), "nowhere' does not exist"),
    ],
)
def test_wrong_usage_names_the_value_and_a_fix(words: tuple[str, ...], expected: str) -> None:
    assert expected in refused(*words)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "has no records"),
        (
            ['{"a": 1}', "not json at all"],
            "s.jsonl:2: not JSON: Expecting value: line 1 column 1 (char 0): 'not json at all'",
        ),
        (['{"a": 1}', "", "[1, 2]"], "s.jsonl:3: [1, 2] is not a JSON object"),
        (['{"key": "k", "value": {"a": 1}}'], "seems to hold whole records with keys, not only values"),
    ],
)
def test_a_wrong_sample_is_reported_with_its_line(lines: list[str], expected: str) -> None:
    sample("s.jsonl", *lines)
    assert expected in refused("--sample", "s.jsonl", "--", "python", "job.py")


def test_help_shows_options_and_examples() -> None:
    text = invoke("init", "--help").output
    assert all(word in text for word in ("templates", "--sample", "onceproof init --topic orders", "--force"))


def test_each_topic_has_its_own_sample() -> None:
    sample("refunds.jsonl", *(json.dumps({"refund_id": n, "order_id": n % 3}) for n in range(9)))
    scenario = init(
        *(
            "--topic",
            "orders",
            "--topic",
            "refunds",
            "--sample",
            "orders=orders.jsonl",
            "--sample",
            "refunds=refunds.jsonl",
        ),
        *("--table", "a", "--table", "b", "--output-topic", "c", "--output-topic", "d", "--", "python", "job.py"),
    )
    assert [(spec.topic, Path(spec.options["file"]).name) for spec in scenario.input] == [
        ("orders", "orders.jsonl"),
        ("refunds", "refunds.jsonl"),
    ]
    assert [spec.options["key"] for spec in scenario.input] == ["customer_id", "order_id"]
    assert list(scenario.outputs) == ["a_table", "b_table", "c_topic", "d_topic"]
    assert list(scenario.pipeline.prepare.topics) == ["c", "d"]


def test_names_of_options_decide_whether_their_topics_are_read_or_written() -> None:
    scenario = init(
        *("--", "python", "job.py", "--clicks-topic", "clicks", "--views-topic", "views", "--output-topic", "pairs"),
        *("--dlq-topic", "dead"),
    )
    assert [spec.topic for spec in scenario.input] == ["clicks", "views"]
    assert list(scenario.pipeline.prepare.topics) == ["pairs", "dead"]


def test_a_sample_of_records_is_fed_with_keys_headers_and_timestamps() -> None:
    sample(
        "s.jsonl", *(json.dumps({"key": f"k{n}", "headers": {"h": "x"}, "value": {"id": n, "a": 1}}) for n in range(4))
    )
    assert "--records, or --values" in refused("--sample", "s.jsonl", "--", "python", "job.py")
    scenario = init("--records", "--sample", "s.jsonl", "--table", "t", "--", "python", "job.py")
    assert scenario.input[0].options["form"] == "records" and scenario.outputs["t_table"].identity == ["id"]
    scenario = init("--values", "--sample", "s.jsonl", "--table", "t", "--force", "--", "python", "job.py")
    assert scenario.input[0].options["form"] == "values" and scenario.outputs["t_table"].identity == ["key"]


def test_packages_on_the_class_path_are_left_out() -> None:
    kafka = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
    other = "org.example:other:1.0"
    for words in (
        ("--packages", f"{kafka},org.postgresql:postgresql:42.7.3"),
        (f"--packages={kafka}",),
        ("--conf", f"spark.jars.packages={kafka}"),
    ):
        scenario = init("--force", "--", "python", *words, "job.py")
        assert scenario.pipeline.command == ["{python}", "{here}/job.py"]
    scenario = init("--force", "--", "python", "job.py", "--packages", f"{kafka},{other}")
    assert scenario.pipeline.command[2:] == ["--packages", other]
    assert f"DECIDE: Spark fetches packages {other} from the network" in Path("job.yaml").read_text()


def test_the_users_jars_are_found_and_the_driver_becomes_a_template() -> None:
    for name in ("postgresql-42.7.3.jar", "mine.jar"):
        Path(name).write_text("")
    scenario = init("--", "python", "job.py", "--jars", "postgresql-42.7.3.jar,mine.jar")
    assert scenario.pipeline.command[2:] == ["--jars", "{postgres.driver},{here}/mine.jar"]


@pytest.mark.parametrize("path", ["/srv/out/sums", "~/sums", "s3a://bucket/sums", "file:///srv/out"])
def test_a_path_outside_the_run_is_marked(path: str) -> None:
    init("--topic", "orders", "--", "python", "job.py", "--out-dir", path)
    written = Path("job.yaml").read_text()
    assert f"DECIDE: does the job write to {path} (--out-dir)?" in written
    done = invoke("validate", "job.yaml")
    assert f"warning: '{path}' is outside the run directory" in done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--topic", "a", "--topic", "b", "--sample", "orders.jsonl"), "needs its topic: there are a, b"),
        (("--sample", "orders.jsonl", "--sample", "x.jsonl"), "--sample TOPIC=FILE"),
        (("--topic", "a.orders", "--sample", "orders=orders.jsonl"), "did you mean 'a.orders'?"),
        (("--sample", "a=orders.jsonl", "--sample", "a=orders.jsonl"), "topic 'a' has two samples"),
        (("--table", ""), "a table's name is empty"),
        (("--schema", "nowhere.sql"), "schema 'nowhere.sql' cannot be read"),
        (("--records", "--sample", "orders.jsonl"), "orders.jsonl:1"),
        (("--sample", "~nosuchuser/x.jsonl"), "does not exist"),
        (("--to", f"{'x' * 300}.yaml"), "cannot be written"),
    ],
)
def test_wrong_samples_and_tables_are_refused(words: tuple[str, ...], expected: str) -> None:
    assert expected in refused(*words, "--", "python", "job.py")
