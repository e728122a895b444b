"""A case: one stored run, opened for judging, with the tables that oracles and checkers query.

Three schemas of one DuckDB database, which lives in memory or, but for small histories, in a private folder inside the run
directory, and goes with the case:

``main``
    What the scenario's own SQL sees: ``input`` (the committed input records as bytes), one decoded view for each
    input topic under the topic's name (see `onceproof.judge.views`), the static tables.
``history``
    The tables of `onceproof.history.schema`, as they were observed.
``judge``
    ``expected``
        One row an effect that should be there: ``output``, ``id`` (canonical JSON of the identity columns),
        ``content`` (canonical JSON of all compared columns), and its cause where the oracle knows it: ``topic``,
        ``partition``, ``offset``, ``key`` (text); ``to_partition`` where the oracle says it; ``nth``: for a changelog, which
        of its identity's states it is.
    ``effects``
        One row an effect that a reader sees after the run (`onceproof.judge.sources` says what that is): ``output``,
        ``id``, ``content``, and where it stands: ``partition``, ``offset``, ``key`` (Kafka), ``xid``, ``commit_order``
        (Postgres); ``lane`` and ``pos`` order it: positions in different lanes have no order, equal positions are
        simultaneous; ``place`` says it in words.
    ``batches``, ``output_batches``
        One row a batch and source partition, with ``planned_ms`` and ``committed_ms`` (wall clock) and ``replayed``: planned
        by one start of the driver and committed by another, or never. ``output_batches``: those of the query that
        writes an output, without empty ones.
    ``progress``
        ``output``, ``topic``, ``partition``, ``end_offset``: below it the query that the output names, or else every query,
        has recorded the input as done.
    ``windows``
        ``query``, ``batch``, ``fault``: which fault was active in which batch.
    ``struck``
        ``output``, ``topic``, ``partition``, ``offset``, ``fault``: which fault struck a consumer that had this message and
        writes to this output.

    and what is made when a checker asks for it: what differs (`Case.compare`, see `onceproof.judge.compare`), every
    write that ever stood in an output's log (`Case.changes`), which input caused which effect (`Case.caused`), and what
    only uncommitted input would explain (`Case.uncommitted`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow.parquet as pq

from onceproof.errors import HistoryError
from onceproof.history.reader import History, open_history
from onceproof.judge import (
    aside,
    caused,
    changes,
    compare,
    decoders,
    digest,
    effects,
    late,
    nested,
    record_key,
    sanity,
    views,
)
from onceproof.judge.canonical import as_text, canonical_rows, document, is_canonical, literal, quote
from onceproof.judge.checker import NotEvaluated
from onceproof.judge.query import select_problem
from onceproof.judge.statements import Rows, execute
from onceproof.oracle import oracles
from onceproof.scenario.model import OracleSpec, OutputSpec, Scenario

#: Columns of an oracle's rows that name the cause of an effect and are not compared.
RESERVED = ("_topic", "_partition", "_offset", "_key", "_to_partition", "_to_key", "_headers")

# Lean at first: what does not fit is spilled into the case's folder. Joining ten million causes with their effects is
# several times quicker in memory, so a large run gets more, up to a bound. Some steps cannot spill (a single huge value, the details of many findings):
# the statement that fails for that is run once more, with room. The last step is for values of many megabytes: DuckDB
# counts what it sets aside for their copies, a multiple of what it then touches.
_LEAN_MB, _MB_A_MILLION, _MOST_MB, _ROOMY = 128, 50, 1024, ("1GB", "4GB")
# A history of so many bytes, uncompressed, is judged in memory: files are what judging a small one would spend its time on.
_SMALL = 2**20
_SETTINGS: dict[str, Any] = {"threads": 2, "preserve_insertion_order": False}


@dataclass(frozen=True)
class Expectation:
    """What the oracle says of one output."""

    columns: dict[str, str]
    """Compared column -> DuckDB type."""
    whole: bool
    """Every column of the output is compared or ignored; else only these."""
    has_cause: bool
    has_key: bool
    has_place: bool = False
    """The oracle says which partition of the output an effect belongs in."""


class Case:
    """One stored run, open for judging. Holds no live service; everything comes from the run directory."""

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self._folder = folder
        self.run = history.document
        self.scenario, self.oracle = _scenario(history)
        self.expectations: dict[str, Expectation] = {}
        self.no_oracle: str | None = None
        """Why there is nothing to hold the effects against: the oracle failed."""
        self.unreadable: dict[str, str] = {}
        """Output -> why its effects cannot be judged."""
        self.no_stream: dict[str, str] = {}
        """Output -> why its decoded commits cannot be used (its snapshot is)."""
        self.doubts: list[str] = []
        """Why this case proves nothing good, whatever the checkers find."""
        self.basis = ""
        """What the expectation rests on, where a verdict must say so."""
        self.not_compared: dict[str, str] = {}
        """Output -> why the keys of its records are not compared, where somebody may expect it."""
        self.closing: set[str] = set()
        """Outputs whose rows are due when their window has closed."""
        self.notes: dict[str, int] = {}
        """What is counted and reported beside the effects, e.g. records that came too late."""
        settings = {**_SETTINGS, "memory_limit": f"{_memory_mb(history)}MB", "temp_directory": str(folder)}
        self.small = _bytes(history) <= _SMALL
        """Its tables are read once, into memory."""
        if self.small:  # nothing in it is worth a second thread, and each costs every statement its time
            settings["threads"] = 1
        self.db = duckdb.connect(":memory:" if self.small else str(folder / "case.duckdb"), config=settings)
        nested.register(self.db)
        self._cleanup: Callable[[], None] = lambda: None
        self._expecting = "judge.expected"
        self._made: dict[str, Exception | None] = {}
        """Tables that were made, and what went wrong with them."""
        self.borderline = False
        """Late records may count: ``judge.borderline`` says in which effects."""
        self._knows_uncommitted = False

    @classmethod
    def open(cls, run_dir: Path) -> Self:
        """Open the run, make the views, ask the oracle, load the effects.

        Raises `HistoryError` for a run that is no whole history. An oracle that fails leaves `no_oracle`.
        """
        history = open_history(run_dir)
        sanity.check(history)
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
        caused.create_batches(self)
        decoders.check_outputs(self)
        try:
            views.decoded(self)
            late.filter_input(self)
            self.expect_into("judge.expected")
        except NotEvaluated as gap:
            self.no_oracle = str(gap)
        else:
            self._expect_aside()
            self._check_identities()
            self.doubts += caused.unknown(self)
            late.admit(self)
            effects.load(self)
            aside.settle(self)
            late.settle(self)

    def expect_into(self, table: str) -> None:
        """Ask the oracle, and make ``table`` of its answer, with the columns of ``judge.expected``.

        What the oracle sees as input is what the views show at this moment. Raises `NotEvaluated`.
        """
        self.sql(f"""CREATE TABLE {table} (output VARCHAR, id {digest.TEXT}, content {digest.TEXT}, topic VARCHAR,
                     "partition" INTEGER, "offset" BIGINT, "key" {digest.TEXT}, nth BIGINT, to_partition INTEGER, {digest.COLUMNS})""")
        self._expecting = table
        try:
            oracles.get(self.oracle.kind)(self.oracle).expect(self)
        finally:
            self._expecting = "judge.expected"

    def _expect_aside(self) -> None:
        """Of outputs that the oracle knows nothing of, what is read of their rows."""
        for output, spec in self.scenario.outputs.items():
            if spec.is_aside and (columns := aside.columns(self, output, spec)) is not None:
                self.expectations[output] = Expectation(columns, whole=False, has_cause=False, has_key=False)

    def _check_identities(self) -> None:
        """An identity that is expected twice names no effect: an upsert cannot be judged, and for a bag it is a doubt."""
        for output in list(self.expectations):
            kind = self.scenario.outputs[output].kind
            if kind == "changelog":
                self._check_states(output)
                continue
            query = """SELECT count(*) AS n, min(id) AS first FROM (
                           SELECT min(id) AS id FROM judge.expected WHERE output = $output AND h IN (
                               SELECT h FROM judge.expected WHERE output = $output GROUP BY h HAVING count(*) > 1) GROUP BY h)"""
            row = self.rows(query, {"output": output})[0]
            if row["n"]:
                why = (
                    f"outputs: {output}: identity: [{', '.join(self.scenario.outputs[output].identity)}] names no single effect: "
                    f"{row['n']} identities are expected more than once, the first is {row['first']}; add a column that tells them apart"
                )
                if kind == "upsert":
                    self.unreadable[output] = why
                else:
                    self.doubts.append(why)

    def _check_states(self, output: str) -> None:
        """Offsets order the states of an identity only within one input partition."""
        query = """SELECT count(*) AS n, min(id) AS first FROM (
                       SELECT id FROM judge.expected WHERE output = $output GROUP BY id
                       HAVING count(DISTINCT (topic, "partition")) > 1)"""
        row = self.rows(query, {"output": output})[0]
        if row["n"]:
            self.unreadable[output] = (
                f"outputs: {output}: kind: changelog: the states of {row['n']} identities come from several input partitions "
                f"(the first is {row['first']}), and across partitions nobody knows which state was first; declare it as upsert"
            )

    def _confine(self) -> None:
        """A run may come from somebody else, and its scenario holds SQL: it can read this run and nothing more."""
        self.sql("SET TimeZone = 'UTC'")
        self.sql("SET enable_progress_bar = false")  # it would go to standard output, which belongs to the verdict
        self.sql("SET autoinstall_known_extensions = false")
        self.sql("SET enable_external_file_cache = false")  # the files are read once or twice: no memory for them
        readable = [self.history.run_dir / "history", self._folder]  # no link among them leads out of it
        self.sql(f"SET allowed_directories = [{', '.join(literal(str(folder)) for folder in readable)}]")
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
            columns = _compared(spec, types)
            self._check_columns(output, spec, types, columns)
            key = self._key_source(output, query, types)
            if key is not None:
                columns[record_key.COLUMN] = "VARCHAR"
            if spec.headers == "compare":
                columns[record_key.HEADERS] = "VARCHAR"
            self._insert_expected(output, spec, query, types, columns, key)
        except duckdb.Error as error:
            raise NotEvaluated(f"the oracle's query for output {output!r} fails: {error}") from error
        if self._expecting == "judge.expected":
            everything = whole and spec.compare is None
            reserved = ("_offset" in types, "_key" in types, "_to_partition" in types)
            self.expectations[output] = Expectation(columns, everything, *reserved)

    def _key_source(self, output: str, query: str, types: dict[str, str]) -> str | None:
        """The column that the keys of its records are compared with; asked again, the oracle is taken as it was the first time."""
        if output not in self.expectations:
            return record_key.source(self, output, query, types)
        compared = record_key.COLUMN in self.expectations[output].columns
        return ("_to_key" if "_to_key" in types else "_key") if compared else None

    def _check_columns(self, output: str, spec: OutputSpec, types: dict[str, str], columns: dict[str, str]) -> None:
        if missing := [name for name in spec.identity if name not in columns]:
            raise NotEvaluated(
                f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which is part of its identity; "
                f"it gives {', '.join(columns) or 'none'}"
            )
        if missing := [name for name in [*(spec.compare or []), *spec.tolerance] if name not in columns]:
            raise NotEvaluated(
                f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which the output wants compared; "
                f"it gives {', '.join(columns)}"
            )
        if spec.kind == "changelog" and "_offset" not in types:
            raise NotEvaluated(
                f"output {output!r} is a changelog: the oracle's query needs _partition and _offset, "
                "the input record after which each state holds"
            )
        if spec.headers == "compare" and (gap := record_key.no_headers(self, types)) is not None:
            raise NotEvaluated(f"output {output!r} compares headers, and {gap}")
        if ("_offset" in types) != ("_partition" in types):
            raise NotEvaluated(
                f"the oracle's query for output {output!r} gives one of _partition and _offset; it needs both"
            )
        if "_offset" in types and "_topic" not in types and len(self.scenario.input) > 1:
            raise NotEvaluated(f"the oracle's query for output {output!r} needs _topic: there are several input topics")

    def _insert_expected(
        self, output: str, spec: OutputSpec, query: str, types: dict[str, str], columns: dict[str, str], key: str | None
    ) -> None:
        has = {name: quote(name) if name in types else "NULL" for name in RESERVED}
        given = {name: quote(name) for name in columns}
        if key is not None:
            given[record_key.COLUMN] = f"{quote(key)}::VARCHAR"
        given[record_key.HEADERS] = "_headers::VARCHAR"
        if "_offset" in types and "_topic" not in types:
            has["_topic"] = literal(self.scenario.input[0].topic)
        fields = {name: f"={name}" for name in columns}
        cause = ", ".join(f"{expression} AS {quote(name)}" for name, expression in has.items())
        opened = ", ".join(
            f"{as_text(sql_type, given[name])} AS {quote(fields[name])}" for name, sql_type in columns.items()
        )
        texts = canonical_rows(
            f"SELECT {cause}, {opened} FROM (\n{query}\n)",  # noqa: S608
            {fields[name]: sql_type for name, sql_type in columns.items() if not is_canonical(sql_type)},
        )
        identity = document({name: quote(fields[name]) for name in spec.identity})
        content = document({name: quote(field) for name, field in fields.items()})
        changelog = spec.kind == "changelog"
        nth = f"row_number() OVER (PARTITION BY {identity} ORDER BY _offset, _partition)" if changelog else "NULL"
        rows = f"""SELECT {literal(output)}, {identity} AS id, {content} AS content, _topic, _partition, _offset, _key, {nth},
                          _to_partition FROM ({texts})"""  # noqa: S608
        self.sql(f"INSERT INTO {self._expecting} {digest.of_rows(rows)}")

    def compare(self) -> None:
        """Make the tables of `onceproof.judge.compare`, once."""
        self.once("compare", lambda: compare.create(self))

    def changes(self) -> None:
        """Make the view of `onceproof.judge.changes`, once."""
        self.once("changes", lambda: changes.create(self))

    def caused(self) -> None:
        """Make the table of `onceproof.judge.caused`, once."""
        self.once("caused", lambda: caused.create(self))

    def uncommitted(self) -> bool:
        """Make ``judge.uncommitted``, once: what the oracle expects beside all else if uncommitted input counted too.

        Columns as in ``judge.expected``. False where that cannot be known: the oracle's answer is a stored one, or it
        fails on that input; the table is empty then, as it is where all input is committed.
        """

        def ask() -> None:
            self._knows_uncommitted = views.with_uncommitted(self)

        self.once("uncommitted", ask)
        return self._knows_uncommitted

    def once(self, tables: str, make: Callable[[], None]) -> None:
        """Call ``make``, unless it was called before. What it raised then is raised again: each checker tells the true cause."""
        if tables not in self._made:
            self._made[tables] = None
            try:
                make()
            except Exception as failure:
                self._made[tables] = failure
        if (failed := self._made[tables]) is not None:
            raise failed

    def close(self) -> None:
        with suppress(duckdb.Error):  # busy: a statement that heeded no interrupt, and the reason why is on its way up
            self.db.close()
        self._cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compared(spec: OutputSpec, types: dict[str, str]) -> dict[str, str]:
    """The columns of an oracle's query that are compared: all but the ignored ones, or those that the output names."""
    chosen = None if spec.compare is None else {*spec.identity, *spec.compare}
    return {
        name: sql_type
        for name, sql_type in types.items()
        if name not in RESERVED and name not in spec.ignore and (chosen is None or name in chosen)
    }


def _memory_mb(history: History) -> int:
    records: int = sum(pq.read_metadata(history.tables[table]).num_rows for table in ("input", "output"))
    return min(_LEAN_MB + records * _MB_A_MILLION // 1_000_000, _MOST_MB)


def _bytes(history: History) -> int:
    files = [pq.read_metadata(path) for path in history.tables.values()]
    return sum(file.row_group(number).total_byte_size for file in files for number in range(file.num_row_groups))


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
