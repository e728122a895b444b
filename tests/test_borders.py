"""Run records, verdicts and scenarios are parsed into typed values once; no code reads their fields by string keys."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from onceproof.history.run_record import JobRecord, RunRecord
from onceproof.judge.findings import Verdict

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent
PRODUCT = ("src/onceproof", "chaos", "sinks", "checkers", "reports", "benchmarks", "tools")

#: Keys that other JSON has too: a plan, a line of a log, a service's answer.
COMMON = {"error", "faults", "findings", "job", "outputs", "seconds", "slice", "versions"}
FIELDS = {
    *(field.alias or name for model in (RunRecord, JobRecord) for name, field in model.model_fields.items()),
    *(field.name for field in fields(Verdict)),
} - COMMON
#: Names of variables and attributes with such a value.
VALUES = {"run", "document", "verdict"}


def by_key(tree: ast.AST) -> Iterator[tuple[ast.expr, str | None, int]]:
    """Each ``value["key"]`` and ``value.get("key")`` that is read: the value, the key if it is a literal, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield node.value, _text(node.slice), node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield node.func.value, _text(node.args[0]) if node.args else None, node.lineno


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def read_by_key(text: str) -> Iterator[tuple[int, str]]:
    for value, key, line in by_key(ast.parse(text)):
        held = isinstance(value, ast.Attribute) and value.attr in VALUES and key is not None
        named = isinstance(value, ast.Name) and value.id in ("run", "verdict") and key is not None
        if key in FIELDS or held or named:
            yield line, ast.unparse(value)


def test_no_code_reads_a_record_or_a_verdict_by_string_keys() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for top in PRODUCT
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, what in read_by_key(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'case.run["drained"]',
        'case.run.get("stuck") is False',
        'history.document["scenario"]',
        'document.get("drain_note")',
        'stored["not_evaluated"]',
        'run.get("job")',
        'done.verdict["faults"]',
        '(case.run.get("job") or {}).get("starts", 1)',
    ],
)
def test_the_search_finds_access_by_string_keys(code: str) -> None:
    assert list(read_by_key(code))


@pytest.mark.parametrize("code", ["case.run.drained", 'row["id"]', 'document["outputs"] = 1', "verdict.faults[0]"])
def test_the_search_accepts_other_access(code: str) -> None:
    assert not list(read_by_key(code))
