"""A case: one stored run, opened for judging, with the tables that checkers query.

It is a DuckDB database, which lives in memory or, for larger histories, in a private folder inside the run directory, and goes
with the case. `onceproof.judge.open` says what is made in it. The oracle is asked of another one, ``Case.inputs``, which has no
outputs (`onceproof.oracle.contract.inputs`); what its queries give comes from there as a file. This one holds:

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

from collections.abc import Callable, Mapping
from pathlib import Path

from onceproof.history.database import Database
from onceproof.history.reader import History
from onceproof.judge.case.outputs import OutputExpectation, Reading
from onceproof.oracle.contract.expectation import Expectation
from onceproof.oracle.contract.inputs import InputRecords
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec


class Case(Database):
    """One stored run, open for judging. Holds no live service; everything comes from the run directory."""

    def __init__(
        self,
        history: History,
        scenario: Scenario,
        folder: Path,
        on_demand: Mapping[str, Callable[[Case], None]],
    ) -> None:
        """``on_demand``: name -> what makes the tables that are made when a checker asks for them."""
        super().__init__(history, scenario, folder, whole_run=True)
        self.oracle = scenario.oracle
        self.inputs = InputRecords(history, scenario, folder / "inputs")
        """What the oracle is asked of: it has no outputs."""
        self.answer = Expectation({})
        """What the oracle said."""
        self.expectations: dict[str, OutputExpectation] = {}
        self.no_oracle: str | None = None
        """Why there is nothing to hold the effects against: the oracle failed."""
        self.unreadable: dict[str, str] = {}
        """Output -> why its effects cannot be judged."""
        self.no_stream: dict[str, str] = {}
        """Output -> why its decoded commits cannot be used (its snapshot is)."""
        self.doubts: list[str] = []
        """Why this case proves nothing good, whatever the checkers find."""
        self.readings: dict[str, Reading] = {}
        """Output -> how its values are read, where that is not by DuckDB alone."""
        self.not_compared: dict[str, str] = {}
        """Output -> why the keys of its records are not compared, where somebody may expect it."""
        self.closing: set[str] = set()
        """Outputs whose rows are due when their window has closed."""
        self.notes: dict[str, int] = {}
        """What is counted and reported beside the effects, e.g. records that came too late."""
        self.borderline = False
        """Late records may count: ``judge.borderline`` says in which effects."""
        self.knows_uncommitted = False
        """``judge.uncommitted`` is what it says, not only empty."""
        self._on_demand = on_demand
        self._made: dict[str, Exception | None] = {}
        """Tables that were made, and what went wrong with them."""

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """The outputs that can be judged."""
        return {name: spec for name, spec in self.scenario.outputs.items() if name not in self.unreadable}

    @property
    def drained(self) -> bool:
        """Whether recorded progress reached the known end of the input, and no batch without input was to come."""
        return self.run.drained

    def open_watermarks(self, *reasons: str) -> list[tuple[str, str]]:
        """Queries whose last watermark no batch has acted on, for one of these reasons, each with a sentence on it."""
        entries = (self.run.open_watermarks or {}).items()
        return sorted((query, entry.note) for query, entry in entries if entry is not None and entry.reason in reasons)

    def effects_of(self, output: str) -> int:
        return self.number("SELECT count(*) FROM judge.effect_rows WHERE output = $output", {"output": output})

    def compare(self) -> None:
        """Make the tables of `onceproof.judge.relations.compare`, once."""
        self._demand("compare")

    def changes(self) -> None:
        """Make the view of `onceproof.judge.relations.changes`, once."""
        self._demand("changes")

    def caused(self) -> None:
        """Make the table of `onceproof.judge.relations.caused`, once."""
        self._demand("caused")

    def uncommitted(self) -> bool:
        """Make ``judge.uncommitted``, once: what the oracle expects beside all else if uncommitted input counted too.

        Columns as in ``judge.expected``. False where that cannot be known: the oracle's answer is a stored one, or it
        fails on that input; the table is empty then, as it is where all input is committed.
        """
        self._demand("uncommitted")
        return self.knows_uncommitted

    def _demand(self, tables: str) -> None:
        self.once(tables, lambda: self._on_demand[tables](self))

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
