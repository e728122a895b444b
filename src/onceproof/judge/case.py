"""A case: one stored run, opened for judging, with the tables that oracles and checkers query.

Three schemas of one DuckDB database, which lives in a private folder inside the run directory and goes with the case:

``main``
    What the scenario's own SQL sees: ``input`` (the committed input records as bytes), one decoded view for each
    input topic under the topic's name (see `onceproof.judge.views`), the static tables.
``history``
    The tables of `onceproof.history.schema`, as they were observed.
``judge``
    ``expected``
        One row an effect that should be there: ``output``, ``id`` (canonical JSON of the identity columns),
        ``content`` (canonical JSON of all compared columns), and its cause where the oracle knows it: ``topic``,
        ``partition``, ``offset``, ``key`` (text).
    ``effects``
        One row an effect that a reader sees after the run: ``output``, ``id``, ``content``, and where it stands:
        ``partition``, ``offset`` (Kafka), ``xid``, ``commit_order`` (Postgres); ``lane`` and ``pos`` order it: positions
        in different lanes have no order, equal positions are simultaneous; ``place`` says it in words.
    ``batches``
        One row a batch and source partition with ``replayed``: planned by one start of the driver and committed by
        another, or never.
    ``progress``
        ``topic``, ``partition``, ``end_offset``: below it every query has recorded the input as done.
    ``windows``
        ``query``, ``batch``, ``fault``: which fault was active in which batch.

    and, made by `onceproof.judge.compare`, what differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb

from onceproof.errors import HistoryError
from onceproof.history.reader import History, open_history
from onceproof.judge import compare, effects, views
from onceproof.judge.canonical import as_text, canonical, document, literal, quote
from onceproof.judge.checker import NotEvaluated
from onceproof.judge.query import select_problem
from onceproof.judge.statements import Rows, execute
from onceproof.oracle import oracles
from onceproof.scenario.model import OracleSpec, OutputSpec, Scenario

#: Columns of an oracle's rows that name the cause of an effect and are not compared.
RESERVED = ("_topic", "_partition", "_offset", "_key")

# Lean at first: what does not fit is spilled into the case's folder, so a clean run of a million records needs no more
# memory than one of a hundred thousand. Some steps cannot spill (a single huge value, the details of many findings):
# the statement that fails for that is run once more, with room.
_LEAN, _ROOMY = "128MB", "1GB"
_SETTINGS: dict[str, Any] = {"memory_limit": _LEAN, "threads": 2, "preserve_insertion_order": False}


@dataclass(frozen=True)
class Expectation:
    """What the oracle says of one output."""

    columns: dict[str, str]
    """Compared column -> DuckDB type."""
    whole: bool
    """Every column of the output is compared or ignored; else only these."""
    has_cause: bool
    has_key: bool


class Case:
    """One stored run, open for judging. Holds no live service; everything comes from the run directory."""

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self.run = history.document
        self.scenario, self.oracle = _scenario(history)
        self.expectations: dict[str, Expectation] = {}
        self.no_oracle: str | None = None
        """Why there is nothing to hold the effects against: the oracle failed."""
        self.unreadable: dict[str, str] = {}
        """Output -> why its effects cannot be judged."""
        self.no_stream: dict[str, str] = {}
        """Output -> why its decoded commits cannot be used (its snapshot is)."""
        self.db = duckdb.connect(str(folder / "case.duckdb"), config={**_SETTINGS, "temp_directory": str(folder)})
        self._cleanup: Callable[[], None] = lambda: None
        self._compared = False

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Open the run, make the views, ask the oracle, load the effects.

        Raises `HistoryError` for a run that is no whole history. An oracle that fails leaves `no_oracle`.
        """
        history = open_history(run_dir)
        folder = _private_folder(run_dir)
        case = cls(history, Path(folder.name))
        case._cleanup = folder.cleanup
        try:
            case._prepare()
        except duckdb.Error as error:
            case.close()
            raise HistoryError(f"the history in {run_dir} cannot be read: {error}") from error
        except BaseException:
            case.close()
            raise
        return case

    def _prepare(self) -> None:
        self._confine()
        views.observed(self)
        self.sql("""CREATE TABLE judge.expected (output VARCHAR, id VARCHAR, content VARCHAR,
                    topic VARCHAR, "partition" INTEGER, "offset" BIGINT, "key" VARCHAR)""")
        try:
            views.decoded(self)
            oracles.get(self.oracle.kind)(self.oracle).expect(self)
        except NotEvaluated as gap:
            self.no_oracle = str(gap)
        else:
            effects.load(self)

    def _confine(self) -> None:
        """A run may come from somebody else, and its scenario holds SQL: it can read this run and nothing more."""
        self.sql("SET TimeZone = 'UTC'")
        self.sql("SET autoinstall_known_extensions = false")
        self.sql("SET enable_external_file_cache = false")  # the files are read once or twice: no memory for them
        self.sql(f"SET allowed_directories = [{literal(str(self.history.run_dir))}]")
        self.sql("SET enable_external_access = false")

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """The outputs that can be judged."""
        return {name: spec for name, spec in self.scenario.outputs.items() if name not in self.unreadable}

    @property
    def drained(self) -> bool:
        """Whether recorded progress reached the known end of the input."""
        return bool(self.run.get("drained", False))

    def sql(self, query: str, values: dict[str, Any] | None = None) -> Rows:
        try:
            return execute(self.db, query, values)
        except duckdb.OutOfMemoryException:
            execute(self.db, f"SET memory_limit = '{_ROOMY}'", None)
            return execute(self.db, query, values)

    def rows(self, query: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """The result as column -> value, for the small results that findings are made of."""
        result = self.sql(query, values)
        names = result.columns
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def number(self, query: str, values: dict[str, Any] | None = None) -> int:
        row = self.sql(query, values).fetchone()
        return int(row[0] or 0) if row else 0

    def effects_of(self, output: str) -> int:
        return self.number("SELECT count(*) FROM judge.effect_rows WHERE output = $output", {"output": output})

    def expect_rows(self, output: str, query: str, *, whole: bool) -> None:
        """Take the rows of ``query`` as what ``output`` must hold. For oracles.

        The query's columns are compared, except the reserved ones that name the cause (`RESERVED`) and those that the
        scenario ignores. With ``whole`` an output column that the query does not give makes the output unreadable.
        Raises `NotEvaluated` for a query that fails or lacks an identity column.
        """
        spec = self.scenario.outputs[output]
        if problem := select_problem(query):
            raise NotEvaluated(f"the oracle's query for output {output!r} cannot be run: {problem[0]}")
        try:
            types = {row[0]: row[1] for row in self.sql(f"DESCRIBE (\n{query}\n)").fetchall()}
            columns = {n: t for n, t in types.items() if n not in RESERVED and n not in spec.ignore}
            self._check_columns(output, spec, types, columns)
            self._insert_expected(output, spec, query, types, columns)
        except duckdb.Error as error:
            raise NotEvaluated(f"the oracle's query for output {output!r} fails: {error}") from error
        self.expectations[output] = Expectation(columns, whole, "_offset" in types, "_key" in types)

    def _check_columns(self, output: str, spec: OutputSpec, types: dict[str, str], columns: dict[str, str]) -> None:
        if missing := [name for name in spec.identity if name not in columns]:
            raise NotEvaluated(
                f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which is part of its identity; "
                f"it gives {', '.join(columns) or 'none'}"
            )
        if ("_offset" in types) != ("_partition" in types):
            raise NotEvaluated(
                f"the oracle's query for output {output!r} gives one of _partition and _offset; it needs both"
            )
        if "_offset" in types and "_topic" not in types and len(self.scenario.input) > 1:
            raise NotEvaluated(f"the oracle's query for output {output!r} needs _topic: there are several input topics")

    def _insert_expected(
        self, output: str, spec: OutputSpec, query: str, types: dict[str, str], columns: dict[str, str]
    ) -> None:
        texts = {name: canonical(sql_type, as_text(sql_type, quote(name))) for name, sql_type in columns.items()}
        topic = (
            "_topic" if "_topic" in types else literal(self.scenario.input[0].topic) if "_offset" in types else "NULL"
        )
        cause = [name if name in types else "NULL" for name in RESERVED[1:]]
        self.sql(
            f"""INSERT INTO judge.expected
                SELECT {literal(output)}, {document({n: texts[n] for n in spec.identity})}, {document(texts)},
                       {topic}, {", ".join(cause)} FROM (\n{query}\n)"""  # noqa: S608
        )

    def compare(self) -> None:
        """Make the tables of `onceproof.judge.compare`, once."""
        if not self._compared:
            compare.create(self)
            self._compared = True

    def close(self) -> None:
        with suppress(duckdb.Error):  # busy: a statement that heeded no interrupt, and the reason why is on its way up
            self.db.close()
        self._cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _private_folder(run_dir: Path) -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix=".judge-", dir=run_dir)
    except OSError as error:
        hint = "judging needs room in the run directory; copy the run to where you can write"
        raise HistoryError(f"{run_dir} cannot be written to: {error}", hint=hint) from error


def _scenario(history: History) -> tuple[Scenario, OracleSpec]:
    """The scenario as it was run. Its faults are not rebuilt: what they did stands in the history."""
    stored = dict(history.document["scenario"])
    kind = (stored.get("oracle") or {}).get("kind")
    try:
        oracle = oracles.get(str(kind)).Spec.model_validate(stored["oracle"])
        return Scenario.model_validate({**stored, "chaos": [], "oracle": {"kind": kind}}), oracle
    except (KeyError, ValueError) as error:
        raise HistoryError(f"the scenario in {history.run_dir / 'run.json'} cannot be used: {error}") from error
