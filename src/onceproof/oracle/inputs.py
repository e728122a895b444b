"""What an oracle is asked in: a database of its own, in which the pipeline's outputs do not exist.

It holds what the scenario's own SQL may read, and nothing else of the run:

``main``
    ``input`` (the committed input records as bytes), one decoded view for each input topic under the topic's name
    (`onceproof.judge.case.views`), the static tables.
``history``
    ``input`` as it was observed, and ``batches``, by which late records are found (`onceproof.judge.relations.late`).

It can open the files of these, and no others: neither a path nor a function reaches ``history/output.parquet``.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from onceproof.base.errors import NotEvaluated
from onceproof.history.database import Database, later_columns, observed_rows
from onceproof.history.reader import History
from onceproof.scenario.model import OracleSpec, Scenario
from onceproof.values.canonical import literal, quote

#: Input records (with those of static tables) up to which every oracle's query is run twice: it costs less than a second.
CHEAP_ROWS = 200_000

_TABLES = ("input", "batches")


class Inputs(Database):
    """The database in which an oracle's queries are run. What they give leaves it as a file (`store`)."""

    def __init__(self, history: History, scenario: Scenario, oracle: OracleSpec, folder: Path) -> None:
        folder.mkdir()
        made = [path for name in ("expected", "decoded") for path in (history.run_dir / "history" / name).glob("*")]
        known = [history.tables[name] for name in _TABLES]
        super().__init__(history, scenario, folder, files=[*known, *history.static.values(), *made])
        self.oracle = oracle
        self.renamed: dict[str, dict[str, str]] = {}
        """Input topic -> the fields whose names differ only by case, each with the column that it is."""
        self.reads_stored = False
        """The oracle was asked when the run ended: what it said is stored."""
        self._answer = folder / "answer.parquet"

    def observe(self) -> None:
        """Make the tables of schema ``history``. Raises `duckdb.Error` for files that cannot be read."""
        self.sql("CREATE SCHEMA history")
        for name in _TABLES:
            kind = "TABLE" if self.small else "VIEW"
            self.sql(f"CREATE {kind} history.{name} AS {observed_rows(name, self.history.tables[name])}")

    def stored(self, file: Path) -> str:
        """A query for rows that were stored with the run. Raises `NotEvaluated` for a file that cannot be read."""
        self.reads_stored = True
        view = quote(f"{file.name} (stored)")
        try:
            self.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {_file(file)}")  # noqa: S608
        except duckdb.Error as error:
            raise NotEvaluated(f"what the oracle expects cannot be read: {error}") from error
        return f"SELECT * FROM {view}"  # noqa: S608

    def store(self, query: str) -> Path:
        """Run ``query`` and put its rows into a file, which the next call replaces."""
        self._answer.unlink(missing_ok=True)
        self.sql(f"COPY ({query}) TO {literal(str(self._answer))} (FORMAT parquet, COMPRESSION lz4_raw)")
        return self._answer

    def types(self, query: str) -> dict[str, str]:
        """Column -> type of a query's rows. Nothing is run. Raises `duckdb.Error` for a query that cannot be run."""
        return {row[0]: row[1] for row in self.sql(f"DESCRIBE (\n{query}\n)").fetchall()}

    def renamings(self) -> str:
        """Lines that name the columns of `renamed`, for the error of a query that misses one."""
        return "".join(
            f"\nfields of topic {topic!r} whose names differ only by case are the columns "
            + ", ".join(f"{column} (field {name})" for name, column in named.items())
            for topic, named in self.renamed.items()
        )

    def is_cheap(self) -> bool:
        """Whether the input is so small that asking twice costs next to nothing."""
        sources = ["history.input", *map(quote, self.history.static)]
        return sum(self.number(f"SELECT count(*) FROM {source}") for source in sources) <= CHEAP_ROWS  # noqa: S608

    def in_another_order(self) -> None:
        """From now on the same rows come last first, and by another number of threads."""
        known = self.history.tables["input"]
        self._reverse("history.input", known, "TABLE" if self.small else "VIEW", later_columns("input", known))
        for name, path in self.history.static.items():
            self._reverse(quote(name), path, "VIEW")
        self.sql(f"SET threads = {3 if self.small else 1}")

    def _reverse(self, name: str, file: Path, kind: str, more: str = "") -> None:
        self.sql(f"DROP {kind} {name}")
        self.sql(f"""CREATE TABLE {name} AS SELECT * EXCLUDE (file_row_number){more}
            FROM read_parquet({literal(str(file))}, file_row_number = true) ORDER BY file_row_number DESC""")  # noqa: S608


def _file(path: Path) -> str:
    return f"read_parquet({literal(str(path))})"
