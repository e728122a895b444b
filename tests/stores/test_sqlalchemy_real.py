"""Tables of a real MariaDB as outputs: their values, and what ends a run before it starts anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.timeline import Timeline
from onceproof.cli.app import app
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.stores.contract import ReadBack, make_ready, stores

from .mariadb.server import MariaDb, mariadb

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(600)]

SCENARIOS = Path(__file__).parent / "mariadb"
STORE = stores.get("sqlalchemy")


@pytest.fixture(scope="module")
def database() -> Iterator[MariaDb]:
    with mariadb() as found:
        found.execute("CREATE TABLE booked (order_id BIGINT)")
        yield found


@pytest.fixture(autouse=True)
def url(database: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DATABASE", database.url)


def scenario(table: str, **more: Any) -> Scenario:
    output = {"sql_table": table, "url_env": "SHOP_DATABASE", "identity": ["id"], **more}
    return cast(Scenario, SimpleNamespace(outputs={"out": STORE.Spec.model_validate(output)}))


def read_back(tmp_path: Path, table: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What ``run.json`` holds about the output, and the rows of its snapshot."""
    timeline = Timeline(tmp_path / "events.jsonl")
    with HistoryWriter(tmp_path) as writer:
        record = STORE.read_back(ReadBack(scenario(table), cast(Any, None), writer, timeline))
    timeline.close()
    rows = pq.read_table(tmp_path / "history/snapshot.parquet").to_pylist()
    return record["out"].to_json(), [json.loads(row["content"]) for row in rows]


def test_every_value_keeps_its_digits(database: MariaDb, tmp_path: Path) -> None:
    database.execute(
        """CREATE TABLE digits (id BIGINT UNSIGNED, amount DECIMAL(38, 20), at DATETIME(6), day DATE, span TIME(6),
           fraction DOUBLE, short FLOAT, text TEXT, bytes VARBINARY(9), none INT, `Strange ``name` INT, j JSON)""",
        """INSERT INTO digits VALUES (18446744073709551615, 123456789012345678.00000000000000000001,
           '2013-01-01 05:00:00.000001', '2013-01-01', '-26:00:00.5', 0.1, 0.1, 'ä☃"\\n', x'00ff', NULL, 1, '{"a": 1.10}')""",
    )
    record, rows = read_back(tmp_path, "digits")
    assert rows == [
        {
            "id": "18446744073709551615",
            "amount": "123456789012345678.00000000000000000001",
            "at": "2013-01-01T05:00:00.000001",
            "day": "2013-01-01",
            "span": "-26:00:00.500000",
            "fraction": "0.1",
            "short": "0.1",
            "text": 'ä☃"\n',
            "bytes": "\\x00ff",
            "none": None,
            "Strange `name": "1",
            "j": '{"a": 1.10}',
        }
    ]
    assert record["rows"] == 1 and record["columns"]["amount"] == "DECIMAL(38, 20)"


def test_rows_from_before_the_run_are_refused_or_deleted(database: MariaDb) -> None:
    database.execute("CREATE TABLE before_run (id INT)", "INSERT INTO before_run VALUES (1), (2)")
    with pytest.raises(
        EnvironmentProblem, match=r"table 'before_run' in mysql\+pymysql://booker@.* already has 2 rows"
    ) as found:
        make_ready(scenario("before_run"))
    assert "clear: true" in str(found.value.hint)
    make_ready(scenario("before_run", clear=True))
    assert database.execute("SELECT count(*) FROM before_run") == [(0,)]
    make_ready(scenario("shop.before_run"))


def test_its_state_is_its_number_of_rows(database: MariaDb) -> None:
    database.execute("CREATE TABLE counted (id INT)")
    specs = list(scenario("counted").outputs.values())
    assert STORE.state(None, specs) == {"table counted of SHOP_DATABASE": "0 rows"}
    database.execute("INSERT INTO counted VALUES (1)")
    assert STORE.state(None, specs) == {"table counted of SHOP_DATABASE": "1 row"}
    assert STORE.state(None, None) == {}


def ran(tmp_path: Path, table: str = "booked") -> tuple[int, str]:
    """Exit code and output of a run that must end before it starts anything."""
    path = tmp_path / "one.yaml"
    path.write_text(f"base: {SCENARIOS}/append.yaml\noutputs: {{booked: {{sql_table: {table}}}}}\n")
    done = CliRunner().invoke(app, ["run", str(path), "--runs", str(tmp_path / "runs")])
    assert not [log for log in tmp_path.rglob("*.log") if log.stat().st_size]
    return done.exit_code, " ".join(done.output.split())


def test_a_missing_table_is_named_with_one_that_is_there(tmp_path: Path) -> None:
    code, output = ran(tmp_path, "boked")
    assert code == 4 and "there is no table 'boked' in mysql+pymysql://booker@127.0.0.1" in output
    assert "did you mean 'booked'" in output


def test_a_wrong_password_is_refused_and_not_shown(
    database: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", database.url.replace(database.password, "wr0ng-passw0rd"))
    code, output = ran(tmp_path)
    assert code == 4 and "Access denied for user 'booker'@'127.0.0.1' (using password: YES) (error 1045)" in output
    assert "in the value of SHOP_DATABASE" in output and "wr0ng" not in output


def test_a_database_that_is_away_is_noticed_before_anything_starts(
    database: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SHOP_DATABASE", database.url.replace(str(database.port), str(taken.getsockname()[1])))
        code, output = ran(tmp_path)
    assert code == 4 and "cannot be reached: [Errno 111] Connection refused" in output
    assert database.password not in output
