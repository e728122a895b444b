"""A case: one stored run opened for judging, with the tables that checkers query.

A case is a DuckDB database, in memory or, for larger histories, in a private folder inside the run directory, which is removed
with the case. `onceproof.judge.open` makes its tables. The oracle queries another database, ``Case.inputs``, which has no
outputs (`onceproof.oracle.contract.inputs`), and passes its results to this one as files. This one holds:

``history``
    The tables of `onceproof.history.schema`, as they were observed.
``judge``
    ``expected``
        One row per expected effect: ``output``, ``id`` (canonical JSON of the identity columns), ``content`` (canonical JSON of
        all compared columns); its cause, if the oracle knows it: ``topic``, ``partition``, ``offset``, ``key`` (text);
        ``to_partition``, if the oracle gives it; ``nth``: for a changelog, the number of this state among its identity's
        states; ``closes_us``: when its window closes, if the oracle gives it.
    ``effects``
        One row per effect that a reader sees after the run (`onceproof.judge.case.sources` defines this): ``output``, ``id``,
        ``content``, and its position: ``partition``, ``offset``, ``key`` (Kafka), ``xid``, ``commit_order`` (Postgres);
        ``lane`` and ``pos`` order the effects: positions in different lanes have no order, equal positions are simultaneous;
        ``place`` is the position in words.
    ``expected_digests``, ``effect_digests``
        The same rows as digests, with their causes and positions (`onceproof.judge.relations.digests`). They are always complete.
        Of a large history, ``expected`` and ``effects`` hold only the rows that were asked for (`onceproof.judge.relations.on_demand`).
    ``batches``, ``output_batches``
        One row per batch and source partition, with ``planned_ms`` and ``committed_ms`` (wall clock), ``attempts``: how
        many driver starts may have executed it, and ``replayed``: more than one. ``output_batches``: the non-empty batches of the query
        that writes an output.
    ``progress``
        ``output``, ``topic``, ``partition``, ``end_offset``: the query that the output names, or else every query, has recorded
        the input below this offset as done. ``furthest``: how far any of these queries may be.
    ``windows``
        ``query``, ``batch``, ``fault``: which fault was active during which batch; ``struck``: the fault was placed in this
        batch, and not only still active during it.
    ``struck``
        ``output``, ``topic``, ``partition``, ``offset``, ``fault``: which fault struck a consumer that had this message and
        writes to this output.

    Other tables are made when a checker asks for them: differences (`Case.compare`, see `onceproof.judge.relations.compare`),
    every write in an output's log (`Case.changes`), which input caused which effect (`Case.caused`), and what only uncommitted
    input would explain (`Case.uncommitted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from onceproof.history.database import Database
from onceproof.history.reader import History
from onceproof.judge.case.outputs import OutputExpectation, Reading
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import InputRecords
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.values.written import Form

T = TypeVar("T")


class Case(Database):
    """One stored run, open for judging. Everything comes from the run directory."""

    def __init__(
        self,
        history: History,
        scenario: Scenario,
        folder: Path,
        on_demand: Mapping[str, Callable[[Case], None]],
    ) -> None:
        """``on_demand``: name -> the function that makes these tables when a checker asks for them."""
        super().__init__(history, scenario, folder, whole_run=True)
        self.oracle = scenario.oracle
        self.inputs = InputRecords(history, scenario, folder / "inputs")
        """The database that the oracle queries: it has no outputs."""
        self.answer = Expectation({})
        """The oracle's answer."""
        self.expectations: dict[str, OutputExpectation] = {}
        self.no_oracle: str | None = None
        """Why the oracle failed, so that no effect can be judged; None if it did not."""
        self.unreadable: dict[str, str] = {}
        """Output -> why its effects cannot be judged."""
        self.no_stream: dict[str, str] = {}
        """Output -> why its decoded commits cannot be used. Its snapshot is used instead."""
        self.doubts: list[str] = []
        """Why this case cannot be held, whatever the checkers find."""
        self.readings: dict[str, Reading] = {}
        """Output -> how its values are read, if not by DuckDB alone."""
        self.not_compared: dict[str, str] = {}
        """Output -> why the keys of its records are not compared, where users may expect it."""
        self.closing: set[str] = set()
        """Outputs whose rows are due only when their window has closed."""
        self.notes: dict[str, int] = {}
        """Further counts to report, e.g. of records that came too late."""
        self.left_out: Counter[str] = Counter()
        """Output -> how many of the oracle's rows are not due because of what the job wrote: states that a changelog left out,
        and rows that have a dead letter."""
        self.borderline = False
        """Whether late records may count. ``judge.borderline`` lists the effects that this concerns."""
        self.knows_uncommitted = False
        """Whether the content of ``judge.uncommitted`` is known. If not, the table is empty."""
        self.digest_first = False
        """Whether both sides are stored as digests, and their rows are loaded when they are asked for."""
        self.forms: dict[str, Form] = {}
        """Output -> the form in which its values are written, if they are first compared as they are."""
        self.repeated: dict[str, int] = {}
        """Output -> how many identities are expected more than once. Not known for changelogs."""
        self.differs = True
        """Whether both sides differ in any output. If not, the tables of `compare` and ``judge.dirty`` are empty. Known after `compare`."""
        self.effect_sources: dict[str, str] = {}
        """Output -> SQL for its effects, still as observed (`onceproof.judge.case.sources`)."""
        self._on_demand = on_demand
        self._made: dict[str, Exception | None] = {}
        """The tables that were made -> the error that this raised, if any."""
        self._facts: dict[tuple[str, ...], Any] = {}

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """The outputs that can be judged."""
        return {name: spec for name, spec in self.scenario.outputs.items() if name not in self.unreadable}

    @property
    def drained(self) -> bool:
        """Whether recorded progress reached the known end of the input, and no further batch without input was due."""
        return self.run.drained

    def open_watermarks(self, *reasons: str) -> list[tuple[str, str]]:
        """Queries whose last watermark no batch has acted on, for one of these reasons, each with a sentence about it."""
        entries = (self.run.open_watermarks or {}).items()
        return sorted((query, entry.note) for query, entry in entries if entry is not None and entry.reason in reasons)

    @property
    def queries(self) -> list[str]:
        """The queries that planned a batch, in alphabetical order."""
        found = "SELECT DISTINCT query FROM history.batches ORDER BY query"
        return self.memo(("queries",), lambda: [query for (query,) in self.sql(found).fetchall()])

    def effects_of(self, output: str) -> int:
        return self.number("SELECT count(*) FROM judge.effect_digests WHERE output = $output", {"output": output})

    def expected_in(self, output: str) -> int:
        return self.number("SELECT count(*) FROM judge.expected_digests WHERE output = $output", {"output": output})

    def compare(self) -> None:
        """Make the tables of `onceproof.judge.relations.compare`, once."""
        self._demand("compare")

    def changes(self) -> None:
        """Make the view of `onceproof.judge.relations.changes`, once."""
        self._demand("changes")

    def all_rows(self) -> None:
        """Load all rows into ``judge.expected`` and ``judge.effect_rows``, once (`onceproof.judge.relations.on_demand`)."""
        self._demand("all_rows")

    def all_expected(self) -> None:
        """Load all rows into ``judge.expected``, once."""
        self._demand("all_expected")

    def caused(self) -> None:
        """Make the table of `onceproof.judge.relations.caused`, once."""
        self._demand("caused")

    def uncommitted(self) -> bool:
        """Make ``judge.uncommitted``, once: what the oracle additionally expects if uncommitted input counted too.

        Columns as in ``judge.expected``. Returns False if that cannot be known, because the oracle's answer is stored or the
        oracle fails on that input. The table is then empty, as it is when all input is committed.
        """
        self._demand("uncommitted")
        return self.knows_uncommitted

    def _demand(self, tables: str) -> None:
        self.once(tables, lambda: self._on_demand[tables](self))

    def memo(self, name: tuple[str, ...], find: Callable[[], T]) -> T:
        """What ``find`` gave the first time it was called under this name: for facts of the history, which does not change."""
        if name not in self._facts:
            self._facts[name] = find()
        found: T = self._facts[name]
        return found

    def once(self, tables: str, make: Callable[[], None]) -> None:
        """Call ``make`` the first time. Later calls raise the same error again, so that each checker reports the true cause."""
        if tables not in self._made:
            self._made[tables] = None
            try:
                make()
            except Exception as failure:
                self._made[tables] = failure
        if (failed := self._made[tables]) is not None:
            raise failed

    def is_made(self, tables: str) -> bool:
        """Whether `once` was called for these tables."""
        return tables in self._made

    def close(self) -> None:
        self.inputs.close()
        super().close()
