"""docs/history.md agrees with the schema, and its examples work."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from onceproof.cli.app import app
from onceproof.history.sanity import RULES
from onceproof.history.schema import TABLES, VERSION
from onceproof.imports import Sources, import_history
from onceproof.judge.findings import Outcome
from onceproof.judge.verdict import check

pytestmark = pytest.mark.sources

DOCUMENT = (Path(__file__).parents[2] / "docs" / "history.md").read_text(encoding="utf-8")
_NAMES = {pa.bool_(): "bool", pa.float64(): "double"}


def section(table: str) -> str:
    found = re.search(rf"^### `{table}`\n(.*?)(?=^##)", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/history.md has no section for table {table}"
    return found.group(1)


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_those_of_the_schema(table: str) -> None:
    documented = re.findall(r"^\| `(\w+)` \| (\w+) \| (yes|no) \|", section(table), re.MULTILINE)
    required = set(RULES[table].required)
    real = [(f.name, _NAMES.get(f.type, str(f.type)), "no" if f.name in required else "yes") for f in TABLES[table]]
    assert documented == real


@pytest.mark.parametrize("table", TABLES)
def test_allowed_values_are_documented(table: str) -> None:
    for column, words in RULES[table].words.items():
        where = section("input") if column == "visibility" else section(table)
        assert all(f"`{word}`" in where for word in words), (table, column)


def test_documented_tables_are_those_of_the_schema() -> None:
    tables = DOCUMENT.partition("## Tables\n")[2].partition("## Visibility\n")[0]
    assert re.findall(r"^### `(\w+)`", tables, re.MULTILINE) == list(TABLES)
    assert f"key `onceproof.history`, now `{VERSION}`" in DOCUMENT


def test_the_import_example_works(tmp_path: Path) -> None:
    (scenario,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    files = {
        "orders.yaml": scenario,
        "orders.jsonl": '{"value": {"customer": "c", "amount": 1.10}}\n{"value": {"customer": "c", "amount": 2}}\n',
        "totals.jsonl": '{"customer": "c", "total": 3.1}\n',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    sources = Sources({"orders": tmp_path / "orders.jsonl"}, {"totals": tmp_path / "totals.jsonl"})
    verdict = check(import_history(tmp_path / "orders.yaml", sources, runs_dir=tmp_path / "runs"))
    assert verdict.outcome is Outcome.HELD, verdict.reasons


def test_the_example_of_a_writer_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(compile(code, "docs/history.md", "exec"), {})
    done = CliRunner().invoke(app, ["check", "my-run"])
    assert done.exit_code == 0, done.output
