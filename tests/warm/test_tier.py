"""Which jobs the warm tier leaves to real kills, and how it limits the batches. It needs no Spark for that."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.history.execution import Execution
from onceproof.history.memory import MemoryTables
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.stores.postgres.compartments import Compartments
from onceproof.stores.postgres.pgoutput import Message, Relation, Truncate
from onceproof.warm.tier import Unavailable, WarmTier, _Sent, records_per_batch, unavailable


@pytest.fixture
def scenario() -> Scenario:
    return load_file(find("callable-append")).scenario


def with_pipeline(scenario: Scenario, **changed: Any) -> Scenario:
    return scenario.model_copy(update={"pipeline": scenario.pipeline.model_copy(update=changed)})


def with_argument(scenario: Scenario, name: str, value: str) -> Scenario:
    command = [word for word in scenario.pipeline.command if not word.startswith(f"--{name}=")]
    return with_pipeline(scenario, command=[*command, f"--{name}={value}"])


@pytest.mark.parametrize("path", ["{checkpoint}/a/b", "{checkpoint}/", "{checkpoint}", "{checkpoint}/{topic.flights}"])
def test_a_plain_path_below_the_root_is_a_checkpoint_of_each_schedule(scenario: Scenario, path: str) -> None:
    assert unavailable(with_argument(scenario, "checkpoint", path)) is None


@pytest.mark.parametrize(
    "path",
    ["file://{checkpoint}/q", "{here}/q", "q", "/tmp/q", "{checkpoint}-q", "{checkpoint}/../q"],
)
def test_any_other_checkpoint_is_left_to_real_kills(scenario: Scenario, path: str) -> None:
    why = unavailable(with_argument(scenario, "checkpoint", path))
    assert why is not None and why.startswith(f"its checkpoint is {path}: ")


@pytest.mark.parametrize("template", ["postgres", "postgres.jdbc", "postgres.host", "postgres.port", "checkpoint"])
def test_a_variable_with_what_each_schedule_has_of_its_own_is_left_to_real_kills(
    scenario: Scenario, template: str
) -> None:
    why = unavailable(with_pipeline(scenario, env={"DATABASE_URL": f"x{{{template}}}"}))
    assert why is not None and why.startswith(f"variable DATABASE_URL uses {{{template}}}: ")


def test_other_templates_in_variables_are_warmed(scenario: Scenario) -> None:
    env = {"PGPASSWORD": "{postgres.password}", "PGUSER": "{postgres.user}", "TOPIC": "{topic.flights}"}
    assert unavailable(with_pipeline(scenario, env=env)) is None


@pytest.mark.parametrize("template", ["postgres.host", "postgres.port"])
def test_a_server_without_a_schema_is_left_to_real_kills(scenario: Scenario, template: str) -> None:
    why = unavailable(with_argument(scenario, "server", f"{{{template}}}"))
    assert why is not None and why.startswith(f"--server={{{template}}} uses {{{template}}}: ")


class Refusing(Compartments):
    """Its Postgres refuses each schema, as `Compartments.create` reports it."""

    def __init__(self, refusal: psycopg.Error) -> None:
        self._refusal = refusal

    def create(self, name: str) -> None:
        raise EnvironmentProblem(f"Postgres refused: {self._refusal}") from self._refusal


class Truncated(Compartments):
    """A job has truncated a table."""

    def __init__(self) -> None:
        pass

    def _messages(self) -> Iterator[Message]:
        yield Truncate((Relation(1, "s000001", "staging", ("id",)),))


def tier(scenario: Scenario, places: Compartments) -> WarmTier:
    made = WarmTier(cast(Execution, SimpleNamespace(scenario=scenario)), last_batch=3)
    made._places = places
    return made


@pytest.mark.parametrize("refusal", [psycopg.errors.DuplicateTable, psycopg.errors.ActiveSqlTransaction])
def test_statements_that_cannot_be_repeated_are_left_to_real_kills(
    scenario: Scenario, refusal: type[psycopg.Error]
) -> None:
    with pytest.raises(Unavailable, match=r"pipeline\.prepare\.sql cannot be repeated .*: relation x exists"):
        tier(scenario, Refusing(refusal("relation x exists")))._create("s000002")


@pytest.mark.parametrize("refusal", [psycopg.OperationalError, psycopg.errors.AdminShutdown, psycopg.errors.DiskFull])
def test_a_server_that_is_gone_is_no_reason_for_real_kills(scenario: Scenario, refusal: type[psycopg.Error]) -> None:
    with pytest.raises(EnvironmentProblem, match="Postgres refused"):
        tier(scenario, Refusing(refusal("the connection is lost")))._create("s000002")


def test_a_truncated_table_is_left_to_real_kills(scenario: Scenario) -> None:
    with pytest.raises(Unavailable, match="truncated a table"):
        tier(scenario, Truncated())._read()


def spark_batches(sizes: list[int], limit: int) -> int:
    """How many batches Spark makes of partitions with that many records (`KafkaMicroBatchStream.rateLimit`)."""
    left, batches = list(sizes), 0
    while total := sum(left):
        shares = [limit * size / total for size in left]
        left = [
            max(0, size - (math.ceil(share) if share < 1 else math.floor(share)))
            for size, share in zip(left, shares, strict=True)
        ]
        batches += 1
    return batches


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 7, 8, 12, 15, 20])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 10, 30])
def test_the_input_makes_at_least_as_many_batches_as_chunks(rows: int, partitions: int) -> None:
    spread = [len(range(start, 3 * rows, partitions)) for start in range(partitions)]
    uneven = [3 * rows - 2 * (rows // 2), rows // 2, rows // 2, *[0] * (partitions - 3)] if partitions > 2 else spread
    for sizes in (spread, uneven):
        made = spark_batches(sizes, records_per_batch(3 * rows, 3, partitions))
        assert made >= 3 or min(size for size in sizes if size) < 3  # each batch takes a record of each partition
    if rows == 30 and partitions <= 7:
        assert spark_batches(spread, records_per_batch(90, 3, partitions)) == 3


def test_the_query_has_the_name_that_an_ordinary_run_gives_it(scenario: Scenario, tmp_path: Path) -> None:
    made = tier(scenario, cast(Compartments, SimpleNamespace(take=lambda name: (MemoryTables(), {}))))
    made._execution = cast(Execution, SimpleNamespace(directory=SimpleNamespace(checkpoint=tmp_path / "checkpoint")))
    made._folder = tmp_path
    for path, name in ((tmp_path / "s000001", "checkpoint"), (tmp_path / "s000001" / "a" / "q", "a/q")):
        executed = made._executed(_Sent(1, (), path, 0.0), {"ended": True}, 1.0)
        assert executed.query == name
