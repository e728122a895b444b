"""What an oracle gets: the input of a run in one view, in a database that does not hold the outputs.

`InputRecords` is that database. It can open only the files of the tables that it holds: neither a path nor a function
reaches ``history/output.parquet``. `Inputs` is one view of the input, on a connection of its own:

``main``
    ``input`` (the input records as bytes), a view for each input topic under the topic's name, with its fields as columns
    (`onceproof.oracle.contract.columns`), the static tables. If a topic is named ``input``, its view takes precedence; the bytes are
    then in ``history.input``.
``history``
    ``input``: the committed input records with all columns of the history, in every view. A query that reads it never sees a record of
    an aborted transaction.
``observed``
    Not for queries: ``input`` as it was observed, and for an oracle with ``windows`` also ``batches``, from which late records follow
    (`onceproof.oracle.contract.windows`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import duckdb

from onceproof.base.errors import NotEvaluated
from onceproof.history.database import Connection, Database, later_columns, observed_rows
from onceproof.history.reader import History
from onceproof.oracle.contract import columns, windows
from onceproof.scenario.model import Scenario
from onceproof.values.canonical import literal, quote

#: With at most this many input records (and rows of static tables) every query is run twice: it costs less than a second.
CHEAP_ROWS = 200_000

_TABLES = ("input", "batches")


class Range(NamedTuple):
    """Records of one partition, from ``start`` up to and without ``end``."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class View:
    """Which records of the input are shown. By default all committed records except late ones."""

    uncommitted: bool = False
    """Also records of transactions that were aborted or are open."""
    late: bool = False
    """Also records that may count although they came late (`onceproof.oracle.contract.windows`)."""
    only: tuple[Range, ...] | None = None
    """Only records in one of these ranges."""
    without: tuple[Range, ...] = ()
    """No records in one of these ranges."""

    def condition(self) -> str:
        """Return SQL over ``observed.input``. It does not cover late records: the topics' views leave them out."""
        found = ["true" if self.uncommitted else columns.COMMITTED]
        found += [] if self.only is None else [_within(self.only)]
        found += [f"NOT {_within(self.without)}"] if self.without else []
        return " AND ".join(found)


#: All committed records except late ones.
COMMITTED = View()


class Inputs(Connection):
    """The input in one view, as an oracle's queries see it. `store` writes the rows of a query to a file."""

    def __init__(self, records: InputRecords, view: View) -> None:
        super().__init__(records.db.cursor(), records.history, records.scenario, records.folder, of=records)
        self.view = view
        self._answer = records.folder / "answer.parquet"
        self._columns = records.known_columns
        try:
            self._show(records)
        except BaseException:
            self.close()
            raise

    def _show(self, records: InputRecords) -> None:
        shown = self.view.condition()
        self.sql(f"""CREATE TEMP VIEW input AS SELECT topic, "partition", "offset", "key", "value", timestamp_ms
            FROM observed.input WHERE {shown}""")  # noqa: S608
        for topic in records.topics.values():
            name = windows.raw(topic.name) if topic.name in records.windows else topic.name
            try:
                self.sql(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {topic.rows(shown)}")
            except duckdb.Error as error:
                raise NotEvaluated(f"the values of topic {topic.name!r} cannot be read as columns: {error}") from error
        for name, spec in records.windows.items():
            windows.show(self, name, spec, late=self.view.late)

    def types(self, query: str) -> dict[str, str]:
        """Return column -> type of a query, without running it. Raises `duckdb.Error` if it cannot be run."""
        return dict(self.columns(query))

    def columns(self, query: str) -> list[tuple[str, str]]:
        """Return name and type of each column of a query, like `types`. A query may give a name several times."""
        if query not in self._columns:
            self._columns[query] = [(row[0], row[1]) for row in self.sql(f"DESCRIBE (\n{query}\n)").fetchall()]
        return self._columns[query]

    def stored(self, file: Path) -> str:
        """Return a query for rows that were stored with the run. Raises `NotEvaluated` if the file cannot be read."""
        view = quote(f"{file.name} (stored)")
        try:
            self.sql(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT * FROM read_parquet({literal(str(file))})")  # noqa: S608
        except duckdb.Error as error:
            raise NotEvaluated(f"what the oracle expects cannot be read: {error}") from error
        return f"SELECT * FROM {view}"  # noqa: S608

    def store(self, query: str) -> Path:
        """Run ``query`` and write its rows to a file, which the next call replaces."""
        self._answer.unlink(missing_ok=True)
        self.sql(f"COPY ({query}) TO {literal(str(self._answer))} (FORMAT parquet, COMPRESSION lz4_raw)")
        return self._answer


class InputRecords(Database):
    """The input records of a run. `seen` gives views of them."""

    def __init__(self, history: History, scenario: Scenario, folder: Path) -> None:
        folder.mkdir()
        made = [path for name in ("expected", "decoded") for path in (history.run_dir / "history" / name).glob("*")]
        known = [history.tables[name] for name in _TABLES]
        super().__init__(history, scenario, folder, files=[*known, *history.static.values(), *made])
        self.topics: dict[str, columns.Topic] = {}
        self.windows = windows.of(scenario.oracle)
        self.late: dict[str, int] = {}
        """`onceproof.oracle.contract.windows.late_records`"""
        self.known_columns: dict[str, list[tuple[str, str]]] = {}
        """Query -> name and type of each column. All views of the input have the same columns."""
        self._seen: dict[View, Inputs] = {}

    def observe(self) -> None:
        """Create what was observed, and the static tables. Raises `duckdb.Error` if a file cannot be read."""
        self.sql("CREATE SCHEMA history; CREATE SCHEMA observed")
        for name in _TABLES if self.windows else ("input",):
            kind = "TABLE" if self.small else "VIEW"
            self.sql(f"CREATE {kind} observed.{name} AS {observed_rows(self.history, name)}")
        self.sql(f"CREATE VIEW history.input AS FROM observed.input WHERE {columns.COMMITTED}")
        for name, path in self.history.static.items():
            self.sql(f"CREATE VIEW {quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608

    def decode(self) -> None:
        """Derive how the records become columns, and which are late. Raises `NotEvaluated` if that cannot be known."""
        for spec in self.scenario.input:
            name = self.scenario.known_as(spec.topic)
            self.topics[name] = columns.of_topic(self, spec, name, self.scenario.oracle)
        if self.windows:
            windows.plan(self, self.scenario.stack.prefix)
            self.late = windows.late_records(self.seen(), self.windows)

    def seen(self, view: View = COMMITTED) -> Inputs:
        """Return the input in that view. Raises `NotEvaluated` if values cannot be read as columns."""
        if view not in self._seen:
            self._seen[view] = Inputs(self, view)
        return self._seen[view]

    def renamings(self) -> str:
        """Return lines that list columns named differently from their fields, for the error of a query with an unknown column."""
        return "".join(
            f"\nfields of topic {topic.name!r} whose names differ only by case are the columns "
            + ", ".join(f"{column} (field {name})" for name, column in topic.renamed.items())
            for topic in self.topics.values()
            if topic.renamed
        )

    def is_cheap(self) -> bool:
        """Whether the input is so small that asking twice costs almost nothing."""
        sources = ["observed.input", *map(quote, self.history.static)]
        return sum(self.number(f"SELECT count(*) FROM {source}") for source in sources) <= CHEAP_ROWS  # noqa: S608

    def in_another_order(self) -> None:
        """Reverse the rows of all tables, and use another number of threads."""
        known, more = self.history.tables["input"], later_columns(self.history, "input")
        self._reverse("observed.input", known, "TABLE" if self.small else "VIEW", more)
        for name, path in self.history.static.items():
            self._reverse(quote(name), path, "VIEW")
        self.sql(f"SET threads = {3 if self.small else 1}")

    def _reverse(self, name: str, file: Path, kind: str, more: str = "") -> None:
        self.sql(f"DROP {kind} {name}")
        self.sql(f"""CREATE TABLE {name} AS SELECT * EXCLUDE (file_row_number){more}
            FROM read_parquet({literal(str(file))}, file_row_number = true) ORDER BY file_row_number DESC""")  # noqa: S608

    def close(self) -> None:
        for inputs in self._seen.values():
            inputs.close()
        super().close()


def _within(ranges: tuple[Range, ...]) -> str:
    places = [
        f"""(topic = {literal(topic)} AND "partition" = {partition} AND "offset" >= {start} AND "offset" < {end})"""
        for topic, partition, start, end in ranges
    ]
    return f"({' OR '.join(places) or 'false'})"
