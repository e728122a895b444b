"""A case: one stored run, opened for judging, with the tables that oracles and checkers query.

Two DuckDB databases, which live in memory or, for larger histories, in a private folder inside the run directory, and go with
the case. ``Case.inputs`` is where the scenario's own SQL is run; it has no outputs (`onceproof.judge.case.inputs`). What an
oracle gives comes from there as a file. The other one is that of the checkers:

``history``
    The tables of `onceproof.history.schema`, as they were observed.
``judge``
    ``expected``
        One row an effect that should be there: ``output``, ``id`` (canonical JSON of the identity columns),
        ``content`` (canonical JSON of all compared columns), and its cause where the oracle knows it: ``topic``,
        ``partition``, ``offset``, ``key`` (text); ``to_partition`` where the oracle says it; ``nth``: for a changelog, which
        of its identity's states it is; ``closes_us``: when its window closes, where the oracle says that.
    ``effects``
        One row an effect that a reader sees after the run (`onceproof.judge.case.sources` says what that is): ``output``,
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
        ``query``, ``batch``, ``fault``: which fault was active in which batch; ``struck``: it was put into that one, and did
        not only last until then.
    ``struck``
        ``output``, ``topic``, ``partition``, ``offset``, ``fault``: which fault struck a consumer that had this message and
        writes to this output.

    and what is made when a checker asks for it: what differs (`Case.compare`, see `onceproof.judge.relations.compare`), every
    write that ever stood in an output's log (`Case.changes`), which input caused which effect (`Case.caused`), and what
    only uncommitted input would explain (`Case.uncommitted`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import duckdb

from onceproof.base.errors import HistoryError, NotEvaluated, UsageError
from onceproof.history import sanity
from onceproof.history.reader import History, open_history
from onceproof.judge import aside
from onceproof.judge.case import decoders, record_key, steady, views
from onceproof.judge.case.database import Database
from onceproof.judge.case.inputs import Inputs
from onceproof.judge.case.query import Unordered, statement_problem
from onceproof.judge.relations import caused, changes, compare, effects, late
from onceproof.oracle import oracles
from onceproof.scenario.model import OracleSpec, OutputSpec, Scenario
from onceproof.stores.contract import specs
from onceproof.values import digest
from onceproof.values.canonical import as_text, canonical_rows, document, is_canonical, literal, quote

#: Columns of an oracle's rows that name the cause of an effect and are not compared.
RESERVED = ("_topic", "_partition", "_offset", "_key", "_to_partition", "_to_key", "_headers", late.CLOSES)


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


class Case(Database):
    """One stored run, open for judging. Holds no live service; everything comes from the run directory."""

    def __init__(self, history: History, folder: Path) -> None:
        scenario, self.oracle = _scenario(history)
        super().__init__(history, scenario, folder, whole_run=True)
        self.inputs = Inputs(history, scenario, self.oracle, folder / "inputs")
        """What the oracle is asked in: it has no outputs."""
        self.expectations: dict[str, Expectation] = {}
        self.no_oracle: str | None = None
        """Why there is nothing to hold the effects against: the oracle failed."""
        self.unreadable: dict[str, str] = {}
        """Output -> why its effects cannot be judged."""
        self.no_stream: dict[str, str] = {}
        """Output -> why its decoded commits cannot be used (its snapshot is)."""
        self.unordered: dict[str, list[Unordered]] = {}
        """Output -> what in its oracle's query depends on the order of rows."""
        self.doubts: list[str] = []
        """Why this case proves nothing good, whatever the checkers find."""
        self.texts = self.oracle.kind == "reference" or bool(getattr(self.oracle, "texts", False))
        """The oracle gives values as the texts that another run showed, whatever their types."""
        self.readings: dict[str, effects.Reading] = {}
        """Output -> how its values are read, where that is not by DuckDB alone."""
        self.basis = ""
        """What the expectation rests on, where a verdict must say so."""
        self.not_compared: dict[str, str] = {}
        """Output -> why the keys of its records are not compared, where somebody may expect it."""
        self.closing: set[str] = set()
        """Outputs whose rows are due when their window has closed."""
        self.notes: dict[str, int] = {}
        """What is counted and reported beside the effects, e.g. records that came too late."""
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
        views.observed(self)
        self.inputs.observe()
        caused.create_batches(self)
        decoders.check_outputs(self)
        try:
            views.decoded(self.inputs)
            late.filter_input(self)
            self.expect_into("judge.expected")
            self._check_outputs()
            steady.check(self)
        except NotEvaluated as gap:
            self.no_oracle = str(gap)
        else:
            self._expect_aside()
            self._check_identities()
            self.doubts += caused.unknown(self)
            late.admit(self)
            effects.load(self)
            late.settle(self)
            aside.settle(self)

    def expect_into(self, table: str) -> None:
        """Ask the oracle, and make ``table`` of its answer, with the columns of ``judge.expected``.

        What the oracle sees as input is what the views show at this moment. Raises `NotEvaluated`.
        """
        self.sql(f"""CREATE TABLE {table} (output VARCHAR, id {digest.TEXT}, content {digest.TEXT}, topic VARCHAR,
                     "partition" INTEGER, "offset" BIGINT, "key" {digest.TEXT}, nth BIGINT, to_partition INTEGER, closes_us BIGINT, {digest.COLUMNS})""")
        self._expecting = table
        try:
            oracles.get(self.oracle.kind)(self.oracle).expect(self)
        finally:
            self._expecting = "judge.expected"

    def _check_outputs(self) -> None:
        """A scenario is checked before it runs, but a run directory may have been edited, or written by another program."""
        for output, spec in self.scenario.outputs.items():
            if output not in self.expectations and not spec.is_aside:
                raise UsageError(
                    f"the oracle in {self.history.run_dir / 'run.json'} says nothing of output {output!r}; "
                    f"it speaks of {', '.join(self.expectations) or 'none'}",
                    hint=f"add what it expects of {output!r} under scenario: oracle, or remove the output",
                )

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
                    f"{row['n']} identities are expected more than once, the first is {row['first']}; add a column that distinguishes them"
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

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """The outputs that can be judged."""
        return {name: spec for name, spec in self.scenario.outputs.items() if name not in self.unreadable}

    @property
    def drained(self) -> bool:
        """Whether recorded progress reached the known end of the input, and no batch without input was to come."""
        return bool(self.run.get("drained", False))

    def open_watermarks(self, *reasons: str) -> list[tuple[str, str]]:
        """Queries whose last watermark no batch has acted on, for one of these reasons, each with a sentence on it."""
        said = self.run.get("open_watermarks")
        entries = said.items() if isinstance(said, dict) else ()
        return sorted(
            (query, str(entry.get("note")))
            for query, entry in entries
            if isinstance(entry, dict) and entry.get("reason") in reasons
        )

    def effects_of(self, output: str) -> int:
        return self.number("SELECT count(*) FROM judge.effect_rows WHERE output = $output", {"output": output})

    def expect_rows(self, output: str, query: str, *, whole: bool) -> None:
        """Take the rows of ``query`` as what ``output`` must hold. For oracles.

        The query's columns are compared, except the reserved ones that name the cause (`RESERVED`) and those that the
        scenario ignores. With ``whole`` an output column that the query does not give makes the output unreadable.
        Raises `NotEvaluated` for a query that fails or lacks an identity column.
        """
        spec = self.scenario.outputs[output]
        if problem := statement_problem(query):
            raise NotEvaluated(f"the oracle's query for output {output!r} cannot be run: {problem[0]}")
        try:
            types = self.inputs.types(query)
            columns = compared(spec, types)
            check_columns(self.scenario, output, types, columns)
            key = self._key_source(output, query, types)
            if key is not None:
                columns[record_key.COLUMN] = "VARCHAR"
            if spec.headers == "compare":
                if (gap := record_key.no_headers(self, types)) is not None:
                    raise NotEvaluated(f"output {output!r} compares headers, and {gap}")
                columns[record_key.HEADERS] = "VARCHAR"
            self._insert_expected(output, spec, query, types, columns, key)
        except duckdb.Error as error:
            raise NotEvaluated(
                f"the oracle's query for output {output!r} fails: {error}{self.inputs.renamings()}"
            ) from error
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

    def _insert_expected(
        self, output: str, spec: OutputSpec, query: str, types: dict[str, str], columns: dict[str, str], key: str | None
    ) -> None:
        has = {name: quote(name) if name in types else "NULL" for name in RESERVED}
        given = {name: quote(name) for name in columns}
        if key is not None:
            given[record_key.COLUMN] = f"{quote(key)}::VARCHAR"
        given[record_key.HEADERS] = record_key.headers(types.get("_headers", "VARCHAR"))
        if "_offset" in types and "_topic" not in types:
            has["_topic"] = literal(self.scenario.input[0].topic)
        if late.CLOSES in types:
            has[late.CLOSES] = f"epoch_us({quote(late.CLOSES)}::TIMESTAMPTZ)"
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
        rows = f"""SELECT {literal(output)} AS output, {identity} AS id, {content} AS content, _topic::VARCHAR AS topic,
                          _partition::INTEGER AS "partition", _offset::BIGINT AS "offset", _key::VARCHAR AS "key",
                          {nth}::BIGINT AS nth, _to_partition::INTEGER AS to_partition, {late.CLOSES}::BIGINT AS closes_us
                   FROM ({texts})"""  # noqa: S608
        stored = f"SELECT * FROM read_parquet({literal(str(self.inputs.store(rows)))})"  # noqa: S608
        self.sql(f"INSERT INTO {self._expecting} {digest.of_rows(stored)}")

    def compare(self) -> None:
        """Make the tables of `onceproof.judge.relations.compare`, once."""
        self.once("compare", lambda: compare.create(self))

    def changes(self) -> None:
        """Make the view of `onceproof.judge.relations.changes`, once."""
        self.once("changes", lambda: changes.create(self))

    def caused(self) -> None:
        """Make the table of `onceproof.judge.relations.caused`, once."""
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
        self.inputs.close()
        super().close()
        self._cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_columns(scenario: Scenario, output: str, types: dict[str, str], columns: dict[str, str]) -> None:
    """What an oracle's rows for an output lack, by their columns. Raises `NotEvaluated`."""
    spec = scenario.outputs[output]
    given = ", ".join(name for name in types if name not in RESERVED) or "none"
    if missing := [name for name in spec.identity if name not in columns]:
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which is part of its identity; "
            f"it gives {given}"
        )
    if missing := [name for name in [*(spec.compare or []), *spec.tolerance] if name not in columns]:
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which the output wants compared; "
            f"it gives {given}"
        )
    if spec.kind == "changelog" and "_offset" not in types:
        raise NotEvaluated(
            f"output {output!r} is a changelog: the oracle's query needs _partition and _offset, "
            "the input record after which each state holds"
        )
    if spec.headers == "compare" and "_headers" not in types:
        raise NotEvaluated(f"output {output!r} compares headers, and the oracle's query for it gives no _headers")
    if ("_offset" in types) != ("_partition" in types):
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives one of _partition and _offset; it needs both"
        )
    if "_offset" in types and "_topic" not in types and len(scenario.input) > 1:
        raise NotEvaluated(f"the oracle's query for output {output!r} needs _topic: there are several input topics")


def compared(spec: OutputSpec, types: dict[str, str]) -> dict[str, str]:
    """The columns of an oracle's query that are compared: all but the ignored ones, or those that the output names."""
    chosen = None if spec.compare is None else {*spec.identity, *spec.compare}
    return {
        name: sql_type
        for name, sql_type in types.items()
        if name not in RESERVED and name not in spec.ignore and (chosen is None or name in chosen)
    }


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
        outputs = specs(stored["outputs"])
        return Scenario.model_validate({**stored, "outputs": outputs, "chaos": [], "oracle": {"kind": kind}}), oracle
    except (KeyError, ValueError) as error:
        raise HistoryError(f"the scenario in {history.run_dir / 'run.json'} cannot be used: {error}") from error
