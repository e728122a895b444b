"""Tables of any database as outputs: what a scenario may say, and the errors. With SQLite, which needs no server."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceproof.base.errors import EnvironmentProblem, HistoryError, ScenarioError, UsageError
from onceproof.base.masking import masked
from onceproof.base.timeline import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load
from onceproof.scenario_files.plan import plan
from onceproof.stores.contract import OutsideStack, ReadBack, SnapshotOnly, make_ready, stores
from onceproof.stores.sqlalchemy import database as databases
from onceproof.stores.sqlalchemy.database import Database

STORE = stores.get("sqlalchemy")
SCENARIO = """\
base: naive-append
pipeline: {secrets: [SHOP_DATABASE]}
outputs:
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path / 'shop.db'}")
    return sqlite3.connect(tmp_path / "shop.db", isolation_level=None)


def loaded(tmp_path: Path, **more: Any) -> Scenario:
    output = {"table": None, "sql_table": "departures", "url_env": "SHOP_DATABASE", **more}
    path = tmp_path / "one.yaml"
    path.write_text(SCENARIO + f"  departures_table: {json.dumps(output)}\n")
    return load(path)


def one(table: str) -> Scenario:
    output = STORE.Spec.model_validate({"sql_table": table, "url_env": "SHOP_DATABASE", "identity": ["id"]})
    return cast(Scenario, SimpleNamespace(outputs={"out": output}))


def test_it_has_no_commits_and_is_outside_the_stack() -> None:
    assert isinstance(STORE, SnapshotOnly) and isinstance(STORE, OutsideStack)
    assert [name for name, store in stores.items() if isinstance(store, SnapshotOnly)] == ["sqlalchemy"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kind": "changelog"}, "kind changelog needs each change of the table"),
        ({"sql_table": "a..b"}, "cannot be the name of a table"),
        ({"url_env": "OTHER"}, r"url_env 'OTHER' is not under pipeline: secrets(.|\n)*secrets: \[OTHER\]"),
        (
            {"progress": {"table": "p", "partition": "a", "end_offset": "b"}},
            "progress is read from the stack's Postgres",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(
    shop: sqlite3.Connection, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        loaded(tmp_path, **more)


def test_a_url_in_place_of_its_variable_is_refused_and_not_shown(shop: sqlite3.Connection, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="url_env is not the name of an environment variable") as found:
        loaded(tmp_path, url_env="mysql+pymysql://booker:pa55@127.0.0.1/shop")
    assert "pa55" not in str(found.value)


def test_the_variable_must_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_DATABASE", raising=False)
    with pytest.raises(ScenarioError, match="secret 'SHOP_DATABASE': the environment variable is not set"):
        loaded(tmp_path)
    with pytest.raises(UsageError, match="'SHOP_DATABASE' is not set"):
        Database("SHOP_DATABASE")


@pytest.mark.parametrize(("clear", "then"), [(True, "its rows are deleted"), (False, "it must be empty")])
def test_plan_says_what_a_run_does_to_the_table(
    shop: sqlite3.Connection, tmp_path: Path, clear: bool, then: str
) -> None:
    planned = plan(loaded(tmp_path, clear=clear)).outputs[0]
    assert planned.where.startswith(f"sql_table departures, in the database of SHOP_DATABASE; {then}")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("no url with s3cret", UsageError, "the value of SHOP_DATABASE is not a SQLAlchemy URL"),
        ("mysql://u:s3cret@127.0.0.1:port/d", UsageError, "the value of SHOP_DATABASE is not a SQLAlchemy URL"),
        ("nodb://u:s3cret@127.0.0.1/d", EnvironmentProblem, "SQLAlchemy knows no dialect and driver 'nodb'"),
        (
            "mysql+mysqldb://u:s3cret@127.0.0.1/d",
            EnvironmentProblem,
            "driver of 'mysql[+]mysqldb' is not installed: No mod",
        ),
        ("mysql+pymysql://u:s3cret@127.0.0.1:3306/d?no_such=s3cret", EnvironmentProblem, "cannot be|refuses"),
        ("mysql+pymysql://u:s3cret@127.0.0.1:999999/d", EnvironmentProblem, "cannot be reached"),
        (
            "sqlite:////no/such/folder/shop.db",
            EnvironmentProblem,
            "is a file that does not exist",
        ),
    ],
)
def test_a_url_that_leads_nowhere(
    url: str, error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", url)
    with pytest.raises(error, match=message) as found:
        make_ready(one("booked"))
    assert "s3cret" not in str(found.value)


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(databases._TIMEOUTS, "pymysql", {"connect_timeout": 1, "read_timeout": 1})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SHOP_DATABASE", f"mysql+pymysql://u:s3cret@127.0.0.1:{silent.getsockname()[1]}/d")
        with pytest.raises(EnvironmentProblem, match=r"refuses the connection: .*timed out"):
            make_ready(one("booked"))


def test_its_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DATABASE", "postgresql+psycopg://u:p%40ss-1@127.0.0.1/d?sslpassword=p%40ss-2")
    assert str(Database("SHOP_DATABASE")) == "postgresql+psycopg://u@127.0.0.1/d"
    assert masked("p@ss-1 p%40ss-1 p@ss-2") == "*** *** ***"


def test_a_missing_table_ends_the_run(shop: sqlite3.Connection) -> None:
    with pytest.raises(EnvironmentProblem, match=r"there is no table 'booked' in sqlite:///.*: it has no tables"):
        make_ready(one("booked"))
    shop.execute("CREATE TABLE bookings (id INT)")
    with pytest.raises(EnvironmentProblem, match="did you mean 'bookings'"):
        make_ready(one("booking"))


def read_back(tmp_path: Path, table: str) -> None:
    timeline = Timeline(tmp_path / "events.jsonl")
    try:
        with HistoryWriter(tmp_path) as writer:
            STORE.read_back(ReadBack(one(table), cast(Any, None), writer, timeline))
    finally:
        timeline.close()


def test_a_decimal_that_arrives_as_a_float_is_refused(shop: sqlite3.Connection, tmp_path: Path) -> None:
    """SQLite has no decimals, and makes a double of this number."""
    shop.execute("CREATE TABLE booked (id INT, amount DECIMAL(30, 10))")
    shop.execute("INSERT INTO booked VALUES (1, 0.1)")
    with pytest.raises(
        HistoryError, match=r"column 'amount' of table 'booked' is DECIMAL\(30, 10\), but the driver sqlite"
    ):
        read_back(tmp_path, "booked")


def test_a_table_that_is_gone_after_the_run(shop: sqlite3.Connection, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="the outputs cannot be read back: there is no table 'booked'"):
        read_back(tmp_path, "booked")


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite+pysqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_a_file_that_is_missing_is_an_error_and_is_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    file = tmp_path / "a shop.db"
    path = str(file).replace(" ", "%20") if "uri" in form else str(file)
    monkeypatch.setenv("SHOP_DATABASE", form.format(path))
    with pytest.raises(EnvironmentProblem, match="is a file that does not exist") as found:
        make_ready(one("departures"))
    assert found.value.exit_code == 4 and "SHOP_DATABASE" in str(found.value)
    assert not list(tmp_path.iterdir())
    sqlite3.connect(file).execute("CREATE TABLE departures (id int)")
    make_ready(one("departures"))


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [("md:orders", True), (":default:", True), ("C:/orders.db", False), ("orders.db", False), ("/a/md:b", False)],
)
def test_a_database_of_duckdb_may_be_elsewhere(name: str, elsewhere: bool) -> None:
    assert bool(databases._ELSEWHERE.match(name)) == elsewhere
