"""One database that a URL names, read with SQLAlchemy. Values become text without passing through a float.

No message holds the URL: it has a password. Databases are named without it, ``mysql+pymysql://booker@127.0.0.1:3306/shop``.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import NoneType, TracebackType
from typing import Any, NoReturn, Self
from urllib.parse import unquote

from sqlalchemy import Connection, Engine, create_engine, delete, func, inspect, select, table, text, types
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import CompileError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.masking import hide, masked
from onceproof.base.paths import exists
from onceproof.base.registry import suggest
from onceproof.values import foreign_files

_CONNECT_S = 10
#: Driver -> its own names of time-outs, in seconds. The second one of PyMySQL bounds a read that waits for a lock.
_TIMEOUTS: dict[str, dict[str, int]] = {
    "pymysql": {"connect_timeout": _CONNECT_S, "read_timeout": 120},
    "psycopg": {"connect_timeout": _CONNECT_S},
    "psycopg2": {"connect_timeout": _CONNECT_S},
}
#: Databases whose URL names a file, which their drivers create.
_IN_FILES = ("sqlite", "duckdb")
#: A name of DuckDB that is not the path of a file: a service (``md:orders``) or a default. ``C:`` is a path.
_ELSEWHERE = re.compile(r":default:|[a-z][a-z0-9]+:")
_SECRET = re.compile(r"pass|pwd|secret|token|key", re.IGNORECASE)
_FORM = "DIALECT+DRIVER://USER:PASSWORD@HOST:PORT/DATABASE, for example mysql+pymysql://..."


class Database:
    """A connection to the database of an environment variable, open inside its ``with`` block.

    Everything raises `EnvironmentProblem` if the database cannot be used, and `UsageError` for a variable that is not set or
    does not hold a URL.
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable
        self._url = _url(variable)
        self._engine: Engine | None = None
        self._open: Connection | None = None

    def __str__(self) -> str:
        """Its address without the password."""
        url = self._url
        user = f"{url.username}@" if url.username else ""
        port = f":{url.port}" if url.port else ""
        return masked(f"{url.drivername}://{user}{url.host or ''}{port}/{url.database or ''}")

    def __enter__(self) -> Self:
        self._engine = self._made()
        self._reach()
        self._find_file()
        try:
            self._open = self._engine.connect()
        except (SQLAlchemyError, TypeError, OSError) as error:  # TypeError: a parameter that the driver does not know
            self._engine.dispose()
            raise EnvironmentProblem(
                f"database {self} refuses the connection: {_cause(error)}",
                hint=f"correct the user, password, database or options in the value of {self._variable}",
            ) from None
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._open is not None and self._engine is not None:
            self._open.close()
            self._engine.dispose()

    def columns(self, name: str) -> dict[str, str]:
        """Column -> its type in the words of the database."""
        return {column: _words(self._connection, kind) for column, kind in self._types(name).items()}

    def count(self, name: str) -> int:
        """The number of committed rows."""
        self._find(name)
        with self._asking(name):
            found = self._connection.execute(select(func.count()).select_from(_table(name))).scalar_one()
            self._connection.rollback()  # so that the next question sees what was committed meanwhile
        return int(found)

    def delete_rows(self, name: str) -> None:
        with self._asking(name):
            self._connection.execute(delete(_table(name)))
            self._connection.commit()

    def rows(self, name: str, *, at_once: int) -> Iterator[dict[str, str | None]]:
        """Every row, column -> text or None. ``at_once``: how many of them the driver may hold in memory."""
        exact = {
            column: kind
            for column, kind in self._types(name).items()
            if isinstance(kind, types.Numeric | types.Integer) and not isinstance(kind, types.Float)
        }
        # Plain text, so that SQLAlchemy adds no conversion of its own: some of them pass decimals through a float.
        query = f"SELECT * FROM {self._connection.dialect.identifier_preparer.format_table(_table(name))}"  # noqa: S608
        with self._asking(name):
            streaming = self._connection.execution_options(stream_results=True, yield_per=at_once)
            for row in streaming.execute(text(query)).mappings():
                for column, kind in exact.items():
                    if isinstance(row.get(column), float):
                        self._refuse_float(name, column, _words(self._connection, kind))
                yield {str(column): _text(value) for column, value in row.items()}

    @property
    def _connection(self) -> Connection:
        assert self._open is not None, "only inside the with block"
        return self._open

    def _made(self) -> Engine:
        try:
            driver = self._url.get_dialect()().driver
            return create_engine(self._url, connect_args=dict(_TIMEOUTS.get(driver, {})))
        except NoSuchModuleError:
            raise EnvironmentProblem(
                f"SQLAlchemy knows no dialect and driver {self._url.drivername!r}, which the value of {self._variable} names",
                hint="correct it, or install the package of that dialect into the Python that runs onceproof",
            ) from None
        except ImportError as missing:
            raise EnvironmentProblem(
                f"the driver of {self._url.drivername!r} is not installed: {missing}",
                hint="install it into the Python that runs onceproof (for mysql+pymysql: pymysql)",
            ) from None

    def _reach(self) -> None:
        """Find out within the time-out, whatever the driver's own is, whether something listens there."""
        host, port = self._url.host, self._url.port
        if host is None or port is None:
            return
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            raise EnvironmentProblem(
                f"database {self} cannot be reached: {error}",
                hint=f"start it, or correct the host and port in the value of {self._variable}",
            ) from None

    def _find_file(self) -> None:
        """Raise `EnvironmentProblem` if the database is a file that is missing: the driver would create an empty one."""
        name, query = self._url.database, self._url.query
        if (
            self._url.get_backend_name() not in _IN_FILES
            or not name
            or ":memory:" in name
            or query.get("mode") == "memory"
            or (self._url.get_backend_name() == "duckdb" and _ELSEWHERE.match(name))
        ):
            return
        if name.startswith("file:"):  # a URI of SQLite, whose path may have escapes
            name = unquote(name.removeprefix("file:").partition("?")[0])
            name = name.removeprefix("//localhost") if name.startswith("//localhost/") else name
        if not exists(Path(name)):
            raise EnvironmentProblem(
                f"database {self} is a file that does not exist",
                hint=f"create it with its tables before the run, or correct the path in the value of {self._variable} "
                f"(a relative path is looked for in {Path.cwd()})",
            )

    def _find(self, name: str) -> None:
        """Raise `EnvironmentProblem` if there is no such table."""
        bare, schema = _parts(name)
        with self._asking(name):
            known = inspect(self._connection)
            if known.has_table(bare, schema=schema):
                return
            there = known.get_table_names(schema=schema)
        near = suggest(bare, there) if there else "it has no tables"
        raise EnvironmentProblem(
            f"there is no table {name!r} in {self}: {near}", hint="create it before the run, or correct sql_table"
        )

    def _types(self, name: str) -> dict[str, types.TypeEngine[Any]]:
        self._find(name)
        bare, schema = _parts(name)
        with self._asking(name):
            found = inspect(self._connection).get_columns(bare, schema=schema)
        return {column["name"]: column["type"] for column in found}

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError, ValueError) as error:  # ValueError: a driver that cannot convert a value
            raise EnvironmentProblem(f"table {name!r} in {self} cannot be read: {_cause(error)}") from None

    def _refuse_float(self, name: str, column: str, kind: str) -> NoReturn:
        raise EnvironmentProblem(
            f"column {column!r} of table {name!r} is {kind}, but the driver {self._url.drivername} returns it as a "
            "floating-point number, which may have lost digits",
            hint="use a driver that returns decimals, or store the column as text",
        )


def _url(variable: str) -> URL:
    value = os.environ.get(variable)
    if not value:
        raise UsageError(
            f"the environment variable {variable!r} is not set", hint=f"run `export {variable}=...` first: {_FORM}"
        )
    try:
        url = make_url(value)
    except (SQLAlchemyError, ValueError):  # their messages may quote the password
        raise UsageError(f"the value of {variable} is not a SQLAlchemy URL", hint=f"write {_FORM}") from None
    secrets = [str(url.password or "")]
    for name, given in url.query.items():
        if _SECRET.search(name):
            secrets += [given] if isinstance(given, str) else given
    for secret in filter(None, secrets):
        hide(secret)
    return url


def _parts(name: str) -> tuple[str, str | None]:
    """Table and schema."""
    schema, _, bare = name.rpartition(".")
    return bare, schema or None


def _table(name: str) -> Any:
    bare, schema = _parts(name)
    return table(bare, schema=schema)


def _words(connection: Connection, kind: types.TypeEngine[Any]) -> str:
    try:
        return kind.compile(connection.dialect)
    except CompileError:  # a type that SQLAlchemy does not know
        return "unknown"


_KNOWN = (NoneType, str, bytes, bool, int, float, Decimal, date, time, timedelta, dict, list)
#: Values of other types that drivers return -> their conversion.
_OTHER: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((bytearray, memoryview), bytes),
    ((set, frozenset), lambda members: ",".join(sorted(map(str, members)))),
)


def _text(value: Any) -> str | None:
    for kinds, convert in _OTHER:
        if isinstance(value, kinds):
            value = convert(value)
    return foreign_files.as_text(value) if isinstance(value, _KNOWN) else str(value)


def _cause(error: Exception) -> str:
    """The driver's own message: SQLAlchemy would add the statement and a link."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    arguments: tuple[Any, ...] = getattr(cause, "args", ())
    if len(arguments) == 2 and isinstance(arguments[0], int):  # MySQL's drivers: number and text
        return masked(f"{arguments[1]} (error {arguments[0]})")
    return masked(str(cause).strip()) or type(cause).__name__
