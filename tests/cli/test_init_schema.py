"""`onceproof init --schema`, and what a draft with a table proposes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load

ORDERS = [{"customer_id": n % 7, "order_id": 1000 + n, "amount": n * 1.5} for n in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text("print()\n")
    (tmp_path / "orders.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in ORDERS))
    monkeypatch.chdir(tmp_path)


def init(*words: str) -> Scenario:
    done = CliRunner().invoke(app, ["init", "--json", *words])
    assert done.exit_code == 0, done.output
    return load(Path(json.loads(done.stdout)["scenario"]))


def test_a_schema_creates_the_tables() -> None:
    Path("schema.sql").write_text("CREATE TABLE sums (\n  id bigint\n);\n\nCREATE TABLE bad (line text);\n")
    scenario = init(
        *("--schema", "schema.sql", "--table", "sums", "--table", "bad", "--output-topic", "o"),
        *("--", "python", "job.py"),
    )
    assert scenario.pipeline.prepare.sql == "CREATE TABLE sums (\n  id bigint\n);\n\nCREATE TABLE bad (line text);\n"
    assert "CREATE TABLE" not in [
        line for line in Path("job.yaml").read_text().splitlines() if line.strip().startswith("#")
    ]


TOTALS = """CREATE TABLE totals (customer_id bigint PRIMARY KEY, orders bigint, updated_at timestamptz DEFAULT now());
CREATE TABLE seen (order_id bigserial, at timestamp DEFAULT now(), PRIMARY KEY (order_id));
CREATE TABLE other (uid uuid PRIMARY KEY, n int);
"""


def test_the_primary_key_of_a_table_is_its_identity() -> None:
    Path("schema.sql").write_text(TOTALS)
    scenario = init(
        *("--schema", "schema.sql", "--sample", "orders.jsonl", "--topic", "orders", "--output-topic", "alerts"),
        *("--table", "totals", "--table", "seen", "--table", "other", "--", "python", "job.py"),
    )
    found = {name: (spec.kind, spec.identity, spec.ignore) for name, spec in scenario.outputs.items()}
    assert found == {
        "totals_table": ("upsert", ["customer_id"], ["updated_at"]),
        "seen_table": ("append", ["order_id"], ["at"]),
        "other_table": ("append", ["order_id"], []),
        "alerts_topic": ("append", ["order_id"], []),
    }
    queries = {name: " ".join(text.split()) for name, text in scenario.oracle.model_dump()["queries"].items()}
    assert queries["totals_table"] == "SELECT DISTINCT customer_id FROM orders"
    assert queries["alerts_topic"] == "SELECT order_id, _topic, _partition, _offset, _key FROM orders"
    assert "the table has no such column. Its primary key is uid" in Path("job.yaml").read_text()


def test_a_primary_key_that_is_the_records_changes_only_what_is_ignored() -> None:
    Path("schema.sql").write_text(TOTALS)
    words = ("--schema", "schema.sql", "--sample", "orders.jsonl", "--table", "seen", "--", "python", "job.py")
    scenario = init(*words)
    assert scenario.oracle.model_dump()["columns"] == {"seen_table": {"order_id": "order_id"}}
    assert scenario.outputs["seen_table"].ignore == ["at"]


def test_a_crash_between_two_outputs_is_proposed_as_a_comment() -> None:
    init("--table", "sums", "--output-topic", "alerts", "--sample", "orders.jsonl", "--", "python", "job.py")
    text = Path("job.yaml").read_text()
    Path("job.yaml").write_text(text.replace("  # - {fault: crash-at-frame", "  - {fault: crash-at-frame"))
    _, second = load(Path("job.yaml")).chaos
    assert second.model_dump()["at"]["point"] == "between-sinks" and second.model_dump()["frame"]["topic"] == "alerts"
    init("--force", "--table", "sums", "--sample", "orders.jsonl", "--", "python", "job.py")
    assert "between-sinks" not in Path("job.yaml").read_text()
