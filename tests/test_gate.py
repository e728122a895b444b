"""The gate covers each kind of fault at least once."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceproof.faults.contract import faults
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find, names

from .gate import OF_CONSUMERS, ON_A_CLUSTER, SCENARIOS, WITH_DATABASES, complaints
from .scheduling import Scheduling, group, has_spark

pytestmark = pytest.mark.sources  # the tests' scenarios use jobs from the source tree

HERE = Path(__file__).parent


def run_by_the_gate() -> dict[str, Path]:
    """The scenarios in `gate`, and those that tests name which take ``run_once`` and have no marker ``full``."""
    known = {path.stem: path for path in (HERE / "scenarios").glob("*.yaml")} | {name: find(name) for name in names()}
    named = (word.removesuffix(".yaml") for module in HERE.rglob("test_*.py") for word in words_of_tests(module))
    return {
        name: known[name]
        for name in (*SCENARIOS, *OF_CONSUMERS - WITH_DATABASES - ON_A_CLUSTER, *named)
        if name in known
    }


def words_of_tests(module: Path) -> Iterator[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    constants = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    if "pytestmark" in constants and "mark.full" in ast.unparse(constants["pytestmark"]):
        return
    for test in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        runs = "run_once" in {argument.arg for argument in test.args.args}
        if runs and not {"full", "pytest.mark.full"} & set(map(ast.unparse, test.decorator_list)):
            yield from words(test, constants)


def words(node: ast.AST, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Every text in ``node`` and in the constants of the module that it uses, without parameters that are marked ``full``."""
    if isinstance(node, ast.Call):
        marks = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "marks"]
        if ast.unparse(node.func) == "gate" or any("full" in mark for mark in marks):
            return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.Name) and node.id in constants:
        yield from words(constants[node.id], {})
    for child in ast.iter_child_nodes(node):
        yield from words(child, constants)


def test_each_kind_of_fault_is_in_the_gate() -> None:
    """Give a new kind a scenario in tests/scenarios, and a test that runs it (docs/add-a-fault.md)."""
    of_spark, of_consumers = set(), set()
    for path in run_by_the_gate().values():
        loaded = load(path)
        kinds = of_consumers if loaded.pipeline.kind == "consumers" else of_spark
        kinds.update(fault.fault for fault in loaded.chaos)
    assert set(faults.names()) - of_spark == set()
    assert set(faults.of("consumers").names()) - of_consumers == set()


def test_scenarios_of_tests_are_found_unless_marked_full() -> None:
    found = run_by_the_gate().keys()
    assert {"brokers-away", "swallows-errors", *SCENARIOS} <= found
    assert not {"in-tasks", "state-partly-committed", "held-against-itself", "avro-orders", "two-drivers"} & found


def test_the_gate_knows_which_tests_use_spark() -> None:
    """`scheduling.has_spark` goes by files: one with the marker ``services`` has no test that uses Spark, except in the full set."""
    real = {path: path.read_text(encoding="utf-8") for path in HERE.rglob("test_*.py") if path != Path(__file__)}
    real = {path: text for path, text in real.items() if "mark.real" in text}
    assert {path: with_spark(text) for path, text in real.items() if "mark.services" in text and with_spark(text)} == {}
    assert has_spark(group("tests/test_scenarios_real.py::test_it"))
    assert not has_spark(group("tests/consumers/test_scenarios_real.py::test_it"))


class Worker:
    """A process of pytest-xdist."""

    shutting_down = False

    def send_runtest_some(self, _indices: list[int]) -> None: ...

    def shutdown(self) -> None:
        self.shutting_down = True


def test_only_two_workers_get_tests_with_spark_and_they_get_others_once_there_is_none_left() -> None:
    spark = [f"tests/chaos/{name}.py" for name in ("test_puts", "test_disk_full")] + ["tests/test_scenarios_real.py"]
    others = [f"tests/consumers/{name}_real.py" for name in ("test_scenarios", "test_kafka", "test_amqp_faults")]
    first, second, third = workers = Worker(), Worker(), Worker()
    scheduling: Any = Scheduling.__new__(Scheduling)
    scheduling.assigned_work = {worker: {} for worker in workers}
    scheduling.workqueue = OrderedDict((file, {f"{file}::test_it": False}) for file in (*others, *spark))
    scheduling.registered_collections = {worker: [f"{file}::test_it" for file in others + spark] for worker in workers}
    for worker in (third, first, second, third, first, second):
        scheduling._assign_work_unit(worker)
    got = [[*scheduling.assigned_work[worker]] for worker in workers]
    assert got == [[spark[0], spark[2]], [spark[1], others[2]], others[:2]]
    scheduling.workqueue["tests/test_interrupt_real.py"] = {}
    scheduling._assign_work_unit(third)
    assert third.shutting_down and "tests/test_interrupt_real.py" in scheduling.workqueue
    first.shutting_down, crashed = True, second
    del scheduling.assigned_work[crashed]
    successor = Worker()
    scheduling.assigned_work[successor] = {}
    scheduling.registered_collections[successor] = scheduling.registered_collections[crashed]
    scheduling._assign_work_unit(successor)
    assert [*scheduling.assigned_work[successor]] == ["tests/test_interrupt_real.py"] and not scheduling.workqueue


def test_each_sink_has_a_group_of_its_own() -> None:
    checks = [
        f"tests/sinks/test_conformance.py::test_a_shipped_sink[{name}]" for name in ("a-b-replay", "a-b-gap", "a-gap")
    ]
    assert len({group(check) for check in checks}) == 2
    assert not any(has_spark(group(check)) for check in checks)


def with_spark(text: str) -> list[str]:
    """The tests of the gate that are real, and have no marker ``services``."""
    tree = ast.parse(text)
    of_all = "".join(
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    )
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    marks = {node.name: of_all + "".join(map(ast.unparse, node.decorator_list)) for node in functions}
    return [
        name for name, of in marks.items() if "mark.real" in of and "mark.services" not in of and "mark.full" not in of
    ]


def test_every_scenario_of_the_gate_exists() -> None:
    assert set(names()) >= SCENARIOS


def test_the_message_of_a_failed_run_has_the_last_complaints_of_each_log(tmp_path: Path) -> None:
    (tmp_path / "kafka-1.log").write_text("".join(f"INFO started {n}\nINFO Fencing broker {n}\n" for n in range(12)))
    (tmp_path / "postgres.log").write_text("LOG:  ready\nERROR:  no such table\n")
    assert complaints(tmp_path) == [
        *(f"kafka-1.log: INFO Fencing broker {n}" for n in range(2, 12)),
        "postgres.log: ERROR:  no such table",
    ]
