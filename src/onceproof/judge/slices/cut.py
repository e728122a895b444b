"""Cuts the smallest slice of a history that still shows a finding: a run directory that ``onceproof check`` judges the same.

The search starts from the positions that the witness names: it tries an excerpt around these, then wider ones. It reduces the
first excerpt that shows the finding, as long as the excerpt still shows it (delta debugging: A. Zeller, R. Hildebrandt,
Simplifying and Isolating Failure-Inducing Input, 2002).

A slice counts only if judging it gives the same finding with the same witness, word for word, and no anomaly that the run does
not have, and if the same rows are expected for the identities in it as in the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb

from onceproof.base.errors import HistoryError
from onceproof.history import run_files
from onceproof.history.run_record import SliceRecord, StruckRecord
from onceproof.judge.case.case import Case
from onceproof.judge.findings import Finding, Verdict, Witness, names_of
from onceproof.judge.open import open_case
from onceproof.judge.slices.excerpt import Excerpt, Mentions, Part
from onceproof.judge.slices.gather import WRITES, Gatherer
from onceproof.judge.slices.stored_rows import StoredRows
from onceproof.oracle import oracle_of
from onceproof.oracle.contract.precomputed import PrecomputedOracle
from onceproof.values.canonical import document, literal

Judge = Callable[[Case, str, Callable[[Finding], bool]], Verdict | None]
"""(open case, anomaly, whether a finding is the sought one) -> the verdict, or None if it has no such finding."""

FOLDER = "slices"
MAX_SLICES = 16
"""The number of slices of one run; further findings get none."""
MAX_JUDGINGS = 40
"""The number of excerpts judged per slice. This bounds the time: each takes a fraction of a second."""


def name_of(finding: Finding) -> str:
    """``anomaly/output`` (``/source``): the key in `Verdict.slices`."""
    return "/".join(names_of(finding))


def export_all(case: Case, verdict: Verdict, judge: Judge) -> dict[str, str]:
    """Make a slice for each finding that violates: `name_of` -> its folder, relative to the run's. Replaces older slices.

    A slice is not sliced again. A finding that no small excerpt shows gets no slice.
    """
    if case.run.slice is not None:
        return {}
    run_files.remove(case.history.run_dir / FOLDER)
    made: dict[str, str] = {}
    violations = [f for f in verdict.findings if f.violates][:MAX_SLICES]
    if violations:
        case.all_rows()  # a slice may need rows that are right
    for finding in violations:
        folder = export(case, verdict, finding, judge)
        if folder is not None:
            made[name_of(finding)] = f"{FOLDER}/{folder.name}"
    return made


def export(case: Case, verdict: Verdict, finding: Finding, judge: Judge) -> Path | None:
    """Make the slice that shows ``finding``, one of ``verdict``'s on ``case``; None if none was found."""
    for witness in finding.witnesses[:2]:
        search = _Search(case, verdict, finding, witness, judge)
        found = search.first()
        if found is not None:
            excerpt, keep = found
            keep = search.reduced(excerpt, keep)
            folder = case.history.run_dir / FOLDER / re.sub(r"[^\w.-]+", "-", name_of(finding))
            excerpt.write(case, keep, folder, search.about, search.expect())
            return folder
    return None


class _Search:
    def __init__(self, case: Case, verdict: Verdict, finding: Finding, witness: Witness, judge: Judge) -> None:
        self._case = case
        self._finding = finding
        self._witness = witness
        self._judge = judge
        self._anomalies = set(verdict.anomalies())
        self._judgings = 0
        self._failed: list[set[Part]] = []
        """The sets of parts of the present excerpt that did not show the finding."""
        self._shown: Verdict | None = None
        """The verdict on the smallest excerpt so far that shows the finding."""

    @cached_property
    def about(self) -> SliceRecord:
        """The run and finding that the slice is from."""
        finding = self._finding
        found = self._case.rows(_STRUCK, self._identity) if self._was_compared() else []
        struck = {"struck": StruckRecord(**found[0])} if found else {}
        return SliceRecord(
            of=self._case.history.run_dir.name,
            anomaly=finding.anomaly,
            output=finding.output,
            source=finding.source,
            identity=self._witness.identity,
            **struck,
        )

    def _was_compared(self) -> bool:
        """Whether ``judge.missing`` was made."""
        made = "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'judge' AND table_name = 'missing'"
        return self._case.number(made) > 0

    def expect(self) -> dict[str, Any]:
        """The verdict that `check` will reach on the slice, for its scenario's ``expect``."""
        if self._shown is None:
            return {}
        return {"verdict": self._shown.outcome.value, "anomalies": sorted(self._shown.anomalies())}

    def first(self) -> tuple[Excerpt, set[Part]] | None:
        """The first excerpt that shows the finding, and the parts of it that were kept."""
        for excerpt in self._excerpts():
            self._failed.clear()
            near = {part for part, is_near in excerpt.parts.items() if is_near}
            for keep in [near, set(excerpt.parts)] if len(near) < len(excerpt.parts) else [near]:
                if self._shows(excerpt, keep):
                    return excerpt, keep
        return None

    def reduced(self, excerpt: Excerpt, keep: set[Part]) -> set[Part]:
        """``keep`` without the parts that are not needed: tries to remove halves, then quarters, down to single parts.

        It assumes that no subset of a set shows the finding if the set does not. If that is wrong, a slice keeps a part too many.
        """
        parts = sorted(keep, key=lambda part: (self._rank(excerpt, part), part))
        pieces = 2
        while parts and self._judgings < MAX_JUDGINGS:
            candidates = (less for less in _without_a_piece(parts, pieces) if self._may_show(excerpt, set(less)))
            smaller = next((less for less in candidates if self._shows(excerpt, set(less))), None)
            if smaller is not None:
                parts, pieces = smaller, max(pieces - 1, 2)
            elif pieces >= len(parts):
                break
            else:
                pieces = min(2 * pieces, len(parts))
        return set(parts)

    def _rank(self, excerpt: Excerpt, part: Part) -> int:
        """Lower for parts that are more likely to be needed."""
        if part == self._own(excerpt):
            return 0
        if part[0] == "table":
            return 1
        if part[0] == "batch" and part[-1] == str(self._witness.batch):
            return 2
        return 3 if excerpt.parts[part] else 4

    def _own(self, excerpt: Excerpt) -> Part | None:
        """The part that holds the rows of the witness's identity."""
        return excerpt.groups.get((self._identity["output"], self._identity["id"]))

    def _may_show(self, excerpt: Excerpt, keep: set[Part]) -> bool:
        """Whether it is worth judging: not without the witness's own rows, and not within a set that did not show the finding."""
        own = self._own(excerpt)
        return (own is None or own in keep) and not any(keep <= failed for failed in self._failed)

    def _excerpts(self) -> Iterator[Excerpt]:
        """Excerpts from narrow to wide; each first with the oracle asked again, then with stored expectations."""
        mentions = Mentions.of(self._witness)
        case, every = self._case, list(self._case.expectations)
        specs = case.scenario.outputs
        involved = [
            o for o in every if o == self._finding.output or {o, specs[o].topic, specs[o].table} & mentions.words
        ]
        seen: set[Collection[Any]] = set()
        for outputs, wider in (
            (involved, None),
            (involved, _SAME_COMMITS),
            (involved, _SAME_BATCH),
            (every, None),
            (every, _ALL),
        ):
            gatherer = Gatherer(case, outputs, mentions)
            gatherer.take("SELECT $output AS output, $id AS id", self._identity)
            gatherer.take_mentioned()
            if wider is not None:
                values = {"xids": sorted(mentions.xids), "batch": self._witness.batch}
                gatherer.take(wider, {name: value for name, value in values.items() if f"${name}" in wider})
            excerpt = gatherer.gather()
            if excerpt is None or (size := frozenset({*excerpt.groups, *outputs})) in seen:
                continue
            seen.add(size)
            by_code = isinstance(oracle_of(case.oracle), PrecomputedOracle)
            if not by_code and all(case.expectations[output].has_cause for output in outputs):
                yield excerpt
            try:
                excerpt.stored = StoredRows.of_kept(case, outputs)
            except duckdb.Error:  # a value cannot be cast back to its type
                continue
            for name in case.history.static:
                excerpt.parts.pop(("table", name), None)
            yield excerpt

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The witness's output and its identity as the case writes ids; the id is None if the witness names no effect."""
        values = self._witness.identity
        spec = self._case.scenario.outputs.get(self._finding.output)  # a finding may be about an input topic
        columns = [] if spec is None else spec.identity
        if spec is None or set(values) != set(columns):
            return {"output": self._finding.output, "id": None}
        texts = {name: "NULL::VARCHAR" if values[name] is None else literal(str(values[name])) for name in columns}
        row = self._case.sql(f"SELECT {document(texts)}").fetchone()
        return {"output": self._finding.output, "id": row and row[0]}

    def _shows(self, excerpt: Excerpt, keep: set[Part]) -> bool:
        """Whether these parts of the excerpt, judged alone, show the same finding with the same witness, and nothing new."""
        if self._judgings >= MAX_JUDGINGS:
            return False
        self._judgings += 1
        shows = self._judged(excerpt, keep)
        if not shows:
            self._failed.append(keep)
        return shows

    def _judged(self, excerpt: Excerpt, keep: set[Part]) -> bool:
        folder = self._case.history.run_dir / FOLDER / ".trial"
        try:
            excerpt.write(self._case, keep, folder, self.about, {})
            with open_case(folder) as trial:
                verdict = self._judge(trial, self._finding.anomaly, self._is_sought)
                if verdict is None or not set(verdict.anomalies()) <= self._anomalies:
                    return False
                identities = excerpt.identities(keep)
                expected = _expected(self._case, "SEMI JOIN kept USING (output, id)")
                shows = _expected(trial) == [row for row in expected if (row[0], row[1]) in identities]
                self._shown = verdict if shows else self._shown
                return shows
        except HistoryError:  # what remains is no longer a valid history
            return False
        finally:
            run_files.remove(folder)

    def _is_sought(self, found: Finding) -> bool:
        wanted = self._finding
        same = (name_of(found), found.allowed, found.transient) == (name_of(wanted), wanted.allowed, wanted.transient)
        return same and self._witness in found.witnesses


_EXPECTED = """
    SELECT output, id, content, topic, "partition", "offset", "key", nth, to_partition FROM judge.expected {only} ORDER BY ALL"""

# The batch that `onceproof.judge.relations.struck` found for a lost effect of several records: a stored answer cannot show it.
_STRUCK = """
    SELECT output, id, query, batch, found_by, fault FROM judge.missing
    WHERE output = $output AND id = $id AND found_by IN ('window', 'follows') LIMIT 1"""

_SAME_COMMITS = f"""
    SELECT output, id FROM {WRITES} WHERE list_contains($xids, xid) LIMIT 500"""  # noqa: S608

_SAME_BATCH = """
    SELECT e.output, e.id FROM judge.expected e JOIN judge.output_batches b
        ON b.output = e.output AND b.topic = e.topic AND b."partition" = e."partition"
    WHERE b.batch = $batch AND e."offset" >= b.start_offset AND e."offset" < b.end_offset LIMIT 5000"""

_ALL = f"SELECT output, id FROM judge.expected UNION SELECT output, id FROM {WRITES}"  # noqa: S608


def _expected(case: Case, only: str = "") -> list[Any]:
    return case.sql(_EXPECTED.format(only=only)).fetchall()


def _without_a_piece(parts: list[Part], pieces: int) -> Iterator[list[Part]]:
    """``parts`` without each of ``pieces`` equal pieces in turn, the last one first."""
    size = -(-len(parts) // pieces)
    for start in reversed(range(0, len(parts), size)):
        yield parts[:start] + parts[start + size :]
