"""A DuckDB database over a stored run: opened lean, confined to the files it may read, and queried so that a signal can end it."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from onceproof.history.reader import History
from onceproof.history.schema import LATER, TABLES
from onceproof.history.statements import Rows, execute
from onceproof.scenario.model import Scenario
from onceproof.values import documents, nested, tolerance
from onceproof.values.canonical import literal

# Lean at first: what does not fit is spilled into the case's folder. Joining ten million causes with their effects is
# several times quicker in memory, so a large run gets more, up to a bound. Some steps cannot spill (a single huge value, the details of many findings):
# the statement that fails for that is run once more, with room. The last step is for values of many megabytes: DuckDB
# counts what it sets aside for their copies, a multiple of what it then touches.
_LEAN_MB, _MB_A_MILLION, _MOST_MB, _ROOMY = 128, 50, 1024, ("1GB", "4GB")
# A history of so many bytes, uncompressed, is judged in memory: files are what judging a small one would spend its time on.
_SMALL = 2**20
_PAGE_ROWS = 1000
_SETTINGS: dict[str, Any] = {"threads": 2, "preserve_insertion_order": False}


class Connection:
    """One connection to a database over a stored run."""

    def __init__(self, db: duckdb.DuckDBPyConnection, history: History, scenario: Scenario, folder: Path) -> None:
        self.db = db
        self.history = history
        self.run = history.run
        self.scenario = scenario
        self.folder = folder
        self.sql("SET enable_progress_bar = false")  # it would go to standard output, which belongs to the verdict

    def sql(self, query: str, values: dict[str, Any] | None = None) -> Rows:
        for room in _ROOMY:
            try:
                return execute(self.db, query, values)
            except duckdb.OutOfMemoryException:
                execute(self.db, f"SET memory_limit = '{room}'", None)
        return execute(self.db, query, values)

    def rows(self, query: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The result as column -> value, for the small results that findings are made of."""
        result = self.sql(query, values)
        names = result.columns
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def pages(self, query: str, values: dict[str, Any] | None = None) -> Iterator[list[dict[str, Any]]]:
        """The result in pieces, for results of any size. Between two pieces other statements may run."""
        result = self.sql(query, values)
        names = result.columns
        first = result.fetchmany(_PAGE_ROWS)
        with tempfile.TemporaryFile(dir=self.folder) as spool:  # another statement would end the one being read
            pieces = 0
            while len(first) == _PAGE_ROWS and (more := result.fetchmany(_PAGE_ROWS)):
                pickle.dump(more, spool)
                pieces += 1
            spool.seek(0)
            for number in range(pieces + 1):
                piece = first if number == 0 else pickle.load(spool)  # noqa: S301 (written a moment ago, above)
                yield [dict(zip(names, row, strict=True)) for row in piece]

    def number(self, query: str, values: dict[str, Any] | None = None) -> int:
        row = self.sql(query, values).fetchone()
        return int(row[0] or 0) if row else 0

    def close(self) -> None:
        with suppress(duckdb.Error):  # busy: a statement that heeded no interrupt, and the reason why is on its way up
            self.db.close()


class Database(Connection):
    """One database over the files of a history. It lives in memory, or for larger histories in ``folder``."""

    def __init__(
        self, history: History, scenario: Scenario, folder: Path, *, files: Iterable[Path] = (), whole_run: bool = False
    ) -> None:
        """It can read ``files`` and what is below ``folder``, with ``whole_run`` the whole history, and nothing else.

        A run may come from somebody else, and its scenario holds SQL.
        """
        self.small = _bytes(history) <= _SMALL
        """Its tables are read once, into memory."""
        settings = {**_SETTINGS, "memory_limit": f"{_memory_mb(history)}MB", "temp_directory": str(folder)}
        if self.small:  # nothing in it is worth a second thread, and each costs every statement its time
            settings["threads"] = 1
        where = ":memory:" if self.small else str(folder / "case.duckdb")
        super().__init__(duckdb.connect(where, config=settings), history, scenario, folder)
        nested.register(self.db)
        documents.register(self.db)
        tolerance.register(self.db)
        # For each connection that is made of this one too.
        self.sql("SET GLOBAL TimeZone = 'UTC'")
        self.sql("SET autoinstall_known_extensions = false")
        self.sql(
            "SET GLOBAL python_enable_replacements = false"
        )  # else a table's name may be a variable of this program
        self.sql("SET enable_external_file_cache = false")  # the files are read once or twice: no memory for them
        self.sql(f"SET allowed_paths = {_list(files)}")
        # No link among these files leads out of them.
        folders = [history.run_dir / "history", folder] if whole_run else [folder]
        self.sql(f"SET allowed_directories = {_list(folders)}")
        self.sql("SET enable_external_access = false")


def observed_rows(table: str, file: Path) -> str:
    """A query for the rows of a history's table, with `later_columns`."""
    return f"SELECT *{later_columns(table, file)} FROM read_parquet({literal(str(file))})"  # noqa: S608


def later_columns(table: str, file: Path) -> str:
    """SQL for the columns that the table did not have yet when the history was written: they are NULL."""
    has = pq.read_schema(file).names
    later = [column for column in LATER if column in TABLES[table].names and column not in has]
    return "".join(f", NULL::VARCHAR AS {column}" for column in later)


def _list(paths: Iterable[Path]) -> str:
    return f"[{', '.join(literal(str(path)) for path in paths)}]"


def _memory_mb(history: History) -> int:
    records: int = sum(pq.read_metadata(history.tables[table]).num_rows for table in ("input", "output"))
    return min(_LEAN_MB + records * _MB_A_MILLION // 1_000_000, _MOST_MB)


def _bytes(history: History) -> int:
    files = [pq.read_metadata(path) for path in history.tables.values()]
    return sum(file.row_group(number).total_byte_size for file in files for number in range(file.num_row_groups))
