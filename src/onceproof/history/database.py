"""A DuckDB database over a stored run, with little memory, access to that run's files only, and interruptible queries."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from onceproof.history.reader import History
from onceproof.history.schema import LATER, TABLES
from onceproof.history.statements import Row, Rows, execute, fetch
from onceproof.scenario.model import Scenario
from onceproof.values import documents, nested, tolerance
from onceproof.values.canonical import literal
from onceproof.values.shapes import Shape, shape_of

# Little memory at first: what does not fit is spilled into the case's folder. Joining ten million causes with their
# effects is several times quicker in memory, so a large run gets more, up to a bound. Some operators cannot spill (a
# single huge value, the details of many findings): a statement that fails for that reason is repeated with each of the
# limits in ``_ROOMY``. The last one is for values of many megabytes: DuckDB counts the memory it reserves for their
# copies, a multiple of what it then uses.
_LEAN_MB, _MB_A_MILLION, _MOST_MB, _ROOMY = 128, 50, 1024, ("1GB", "4GB")
# A history of at most so many bytes, uncompressed, is judged in memory: reading files would take most of the time.
_SMALL = 2**20
_PAGE_ROWS = 1000
_SAMPLE = 100
_SETTINGS: dict[str, Any] = {"threads": 2, "preserve_insertion_order": False}


T = TypeVar("T")


class _Functions:
    """SQL functions in Python. A database gets each with the first statement that names it: making one takes two milliseconds.

    They are made on a connection of their own: on others a result may not be fetched yet, and once the connection is closed that
    a function was made on, DuckDB crashes.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection) -> None:
        self._db = db
        self._maker: duckdb.DuckDBPyConnection | None = None
        self._missing: dict[str, Callable[[duckdb.DuckDBPyConnection], object]] = {
            **nested.FUNCTIONS,
            **documents.FUNCTIONS,
            **tolerance.FUNCTIONS,
        }

    def provide(self, query: str) -> None:
        for name in [name for name in self._missing if name in query]:
            self._maker = self._maker or self._db.cursor()
            self._missing.pop(name)(self._maker)

    def close(self) -> None:
        """To be called when no other connection to the database is open."""
        if self._maker is not None:
            self._maker.close()


class Connection:
    """A connection to a database over a stored run."""

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        history: History,
        scenario: Scenario,
        folder: Path,
        *,
        of: Connection | None = None,
    ) -> None:
        """``of``: the connection that ``db`` is a cursor of. It outlives this one."""
        self.db = db
        self.history = history
        self.run = history.run
        self.scenario = scenario
        self.folder = folder
        self._is_first = of is None
        self._functions: _Functions = _Functions(db) if of is None else of._functions
        self.sql("SET enable_progress_bar = false")  # it would print to standard output, which is for the verdict

    def sql(self, query: str, values: dict[str, Any] | None = None) -> Rows:
        return self._run(execute, query, values)

    def _fetched(self, query: str, values: dict[str, Any] | None) -> tuple[list[str], list[Row]]:
        """The names of the columns, and all rows."""
        return self._run(fetch, query, values)

    def _run(
        self,
        how: Callable[[duckdb.DuckDBPyConnection, str, dict[str, Any] | None], T],
        query: str,
        values: dict[str, Any] | None,
    ) -> T:
        self._functions.provide(query)
        for room in _ROOMY:
            try:
                return how(self.db, query, values)
            except duckdb.OutOfMemoryException:
                execute(self.db, f"SET memory_limit = '{room}'", None)
        return how(self.db, query, values)

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """A query that is not run yet: to be read by `interruptible`, for example as Arrow tables."""
        self._functions.provide(query)
        return self.db.sql(query)

    def rows(self, query: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """All rows as column -> value. For small results, such as those that findings are made of."""
        names, rows = self._fetched(query, values)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def pages(self, query: str, values: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
        """The result in pieces, for results of any size. Other statements may run between two pieces."""
        result = self.sql(query, values)
        names = result.columns
        first = result.fetchmany(_PAGE_ROWS)
        # Spooled, because another statement on this connection would end this result.
        with tempfile.TemporaryFile(dir=self.folder) as spool:
            pieces = 0
            while len(first) == _PAGE_ROWS and (more := result.fetchmany(_PAGE_ROWS)):
                pickle.dump(more, spool)
                pieces += 1
            spool.seek(0)
            for number in range(pieces + 1):
                piece = first if number == 0 else pickle.load(spool)  # noqa: S301 (written above)
                yield [dict(zip(names, row, strict=True)) for row in piece]

    def number(self, query: str, values: dict[str, Any] | None = None) -> int:
        _, rows = self._fetched(query, values)
        return int(rows[0][0] or 0) if rows else 0

    def close(self) -> None:
        # Raised if a statement ignored the interrupt and still runs; the exception that interrupted it is already on its way.
        with suppress(duckdb.Error):
            self.db.close()
            if self._is_first:
                self._functions.close()


class Database(Connection):
    """A database over the files of a history, in memory or, for larger histories, in ``folder``."""

    def __init__(
        self, history: History, scenario: Scenario, folder: Path, *, files: Iterable[Path] = (), whole_run: bool = False
    ) -> None:
        """Allow it to read only ``files``, what is below ``folder`` and, with ``whole_run``, the whole history.

        The run may come from another person, and its scenario holds SQL.
        """
        self.small = _bytes(history) <= _SMALL
        """Whether its tables are read into memory, once."""
        settings = {**_SETTINGS, "memory_limit": f"{memory_mb(history)}MB", "temp_directory": str(folder)}
        if self.small:  # a second thread would only slow down each statement
            settings["threads"] = 1
        where = ":memory:" if self.small else str(folder / "case.duckdb")
        super().__init__(duckdb.connect(where, config=settings), history, scenario, folder)
        # GLOBAL: also for connections made from this one.
        settings = {
            "GLOBAL TimeZone": "'UTC'",
            "autoinstall_known_extensions": "false",
            # Otherwise a table's name could refer to a Python variable.
            "GLOBAL python_enable_replacements": "false",
            "enable_external_file_cache": "false",  # the files are read once or twice: not worth memory
            "allowed_paths": _list(files),
            # `run_files.refuse_links` has made sure that no link leads out of these folders.
            "allowed_directories": _list([history.run_dir / "history", folder] if whole_run else [folder]),
            "enable_external_access": "false",
        }
        self.sql("; ".join(f"SET {name} = {value}" for name, value in settings.items()))


def common_shape(db: Connection, text: str, source: str) -> Shape | None:
    """The shape that all texts have which the expression ``text`` gives over ``source`` (FROM ...). None if they differ."""
    some = db.sql(f"SELECT * FROM (SELECT {text} AS text {source}) WHERE text IS NOT NULL LIMIT {_SAMPLE}").fetchall()  # noqa: S608
    shape = shape_of(row[0] for row in some)
    if shape is None:
        return None
    other = f"SELECT * FROM (SELECT {text} AS text {source}) WHERE NOT regexp_full_match(text, {literal(shape.pattern)}) LIMIT 1"  # noqa: S608
    return None if db.sql(other).fetchall() else shape


def observed_rows(history: History, table: str) -> str:
    """A query for the rows of a history's table, with `later_columns`."""
    file = literal(str(history.tables[table]))
    return f"SELECT *{later_columns(history, table)} FROM read_parquet({file})"  # noqa: S608


def later_columns(history: History, table: str) -> str:
    """SQL that adds, as NULL, the columns of `LATER` that the table's file lacks."""
    has = history.footers[table].schema.names
    later = [column for column in LATER if column in TABLES[table].names and column not in has]
    return "".join(f", NULL::VARCHAR AS {column}" for column in later)


def _list(paths: Iterable[Path]) -> str:
    return f"[{', '.join(literal(str(path)) for path in paths)}]"


def memory_mb(history: History) -> int:
    """The memory limit of a database over this history, in MB, before any statement needed more."""
    records: int = sum(history.footers[table].num_rows for table in ("input", "output"))
    return min(_LEAN_MB + records * _MB_A_MILLION // 1_000_000, _MOST_MB)


def _bytes(history: History) -> int:
    return sum(
        footer.row_group(number).total_byte_size
        for footer in history.footers.values()
        for number in range(footer.num_row_groups)
    )
