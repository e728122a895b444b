"""What an oracle is asked of: the input of a run in one view of it, in a database in which the outputs do not exist.

`InputRecords` is that database. It can open the files of what it holds, and no others: neither a path nor a function
reaches ``history/output.parquet``. `Inputs` is one view of it, on a connection of its own:

``main``
    ``input`` (the input records as bytes), a view for each input topic under the topic's name, with its fields as columns
    (`onceproof.oracle.contract.columns`), the static tables. A topic's view takes precedence over ``input`` where a topic has that
    name; the bytes are then found in ``history.input``.
``history``
    ``input`` as it was observed, and ``batches``, by which late records are found (`onceproof.oracle.contract.windows`).
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

#: Input records (with those of static tables) up to which every oracle's query is run twice: it costs less than a second.
CHEAP_ROWS = 200_000

_TABLES = ("input", "batches")


class Range(NamedTuple):
    """Records of one partition, ``end`` not among them."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class View:
    """Which records of the input are shown: all that are committed, but for late ones, unless it says otherwise."""

    uncommitted: bool = False
    """Those too of transactions that were aborted or are open."""
    late: bool = False
    """Those too that may count although they came late (`onceproof.oracle.contract.windows`)."""
    only: tuple[Range, ...] | None = None
    """Only those in one of these ranges."""
    without: tuple[Range, ...] = ()
    """None of those in one of these ranges."""

    def condition(self) -> str:
        """SQL over ``history.input``. Late records are left out where a topic has columns."""
        found = ["true" if self.uncommitted else columns.COMMITTED]
        found += [] if self.only is None else [_within(self.only)]
        found += [f"NOT {_within(self.without)}"] if self.without else []
        return " AND ".join(found)


#: All committed records, but for late ones.
COMMITTED = View()


class Inputs(Connection):
    """The input in one view, as an oracle's queries see it. What they give leaves it as a file (`store`)."""

    def __init__(self, records: InputRecords, view: View) -> None:
        super().__init__(records.db.cursor(), records.history, records.scenario, records.folder)
        self.view = view
        self._answer = records.folder / "answer.parquet"
        try:
            self._show(records)
        except BaseException:
            self.close()
            raise

    def _show(self, records: InputRecords) -> None:
        shown = self.view.condition()
        self.sql(f"""CREATE TEMP VIEW input AS SELECT topic, "partition", "offset", "key", "value", timestamp_ms
            FROM history.input WHERE {shown}""")  # noqa: S608
        for topic in records.topics.values():
            name = windows.raw(topic.name) if topic.name in records.windows else topic.name
            try:
                self.sql(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {topic.rows(shown)}")
            except duckdb.Error as error:
                raise NotEvaluated(f"the values of topic {topic.name!r} cannot be made columns: {error}") from error
        for name, spec in records.windows.items():
            windows.show(self, name, spec, late=self.view.late)

    def types(self, query: str) -> dict[str, str]:
        """Column -> type of a query's rows. Nothing is run. Raises `duckdb.Error` for a query that cannot be run."""
        return {row[0]: row[1] for row in self.sql(f"DESCRIBE (\n{query}\n)").fetchall()}

    def stored(self, file: Path) -> str:
        """A query for rows that were stored with the run. Raises `NotEvaluated` for a file that cannot be read."""
        view = quote(f"{file.name} (stored)")
        try:
            self.sql(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT * FROM read_parquet({literal(str(file))})")  # noqa: S608
        except duckdb.Error as error:
            raise NotEvaluated(f"what the oracle expects cannot be read: {error}") from error
        return f"SELECT * FROM {view}"  # noqa: S608

    def store(self, query: str) -> Path:
        """Run ``query`` and put its rows into a file, which the next call replaces."""
        self._answer.unlink(missing_ok=True)
        self.sql(f"COPY ({query}) TO {literal(str(self._answer))} (FORMAT parquet, COMPRESSION lz4_raw)")
        return self._answer


class InputRecords(Database):
    """The input records of a run, of which `seen` gives views."""

    def __init__(self, history: History, scenario: Scenario, folder: Path) -> None:
        folder.mkdir()
        made = [path for name in ("expected", "decoded") for path in (history.run_dir / "history" / name).glob("*")]
        known = [history.tables[name] for name in _TABLES]
        super().__init__(history, scenario, folder, files=[*known, *history.static.values(), *made])
        self.topics: dict[str, columns.Topic] = {}
        self.windows = windows.of(scenario.oracle)
        self.late: dict[str, int] = {}
        """`onceproof.oracle.contract.windows.late_records`"""
        self._seen: dict[View, Inputs] = {}

    def observe(self) -> None:
        """Make the tables of schema ``history``, and the static ones. Raises `duckdb.Error` for files that cannot be read."""
        self.sql("CREATE SCHEMA history")
        for name in _TABLES:
            kind = "TABLE" if self.small else "VIEW"
            self.sql(f"CREATE {kind} history.{name} AS {observed_rows(name, self.history.tables[name])}")
        for name, path in self.history.static.items():
            self.sql(f"CREATE VIEW {quote(name)} AS SELECT * FROM read_parquet({literal(str(path))})")  # noqa: S608

    def decode(self) -> None:
        """Find out how the records become columns, and which are late. Raises `NotEvaluated` where that cannot be said."""
        for spec in self.scenario.input:
            self.topics[spec.topic] = columns.of_topic(self, spec, self.scenario.oracle)
        if self.windows:
            windows.plan(self)
            self.late = windows.late_records(self.seen(), self.windows)

    def seen(self, view: View = COMMITTED) -> Inputs:
        """The input in that view. Raises `NotEvaluated` for values that cannot be made columns."""
        if view not in self._seen:
            self._seen[view] = Inputs(self, view)
        return self._seen[view]

    def renamings(self) -> str:
        """Lines that name the columns with other names than their fields, for the error of a query that misses one."""
        return "".join(
            f"\nfields of topic {topic.name!r} whose names differ only by case are the columns "
            + ", ".join(f"{column} (field {name})" for name, column in topic.renamed.items())
            for topic in self.topics.values()
            if topic.renamed
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
