"""What differs between fault-free runs of one scenario: columns that say nothing of faults, proposed for ``ignore``.

A load time or a generated id differs on every run, so also on a replay that did nothing wrong. Two fault-free runs or more show
which columns these are. Nothing is ignored by itself: whoever owns the scenario decides.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import NotEvaluated, UsageError
from onceproof.base.words import times
from onceproof.history.writer import PARQUET
from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.case.statements import interruptible
from onceproof.scenario.model import OutputSpec
from onceproof.values import documents
from onceproof.values.canonical import literal, quote

_BATCH_ROWS = 16_384

#: Parts of a scenario in which fault-free runs may differ and still be runs of one scenario.
_FREE = {"about", "chaos", "claim", "expect", "limits", "oracle"}


@dataclass(frozen=True)
class ColumnDifference:
    column: str
    effects: int
    """In how many identities it differs between two runs; of several pairs, the most."""
    example: str
    """One identity and its two values."""


@dataclass(frozen=True)
class Differences:
    """How the observed rows of one output differ between runs."""

    output: str
    compared: int
    """Identities that two runs have in common."""
    columns: tuple[ColumnDifference, ...] = ()
    unmatched: int = 0
    """Identities that are not in every run equally often: no column to ignore would help."""
    unmatched_example: str = ""

    def __bool__(self) -> bool:
        return bool(self.columns or self.unmatched)

    def sentences(self) -> list[str]:
        told = [f"column {c.column} of {times(c.effects, 'effect')}, e.g. {c.example}" for c in self.columns]
        if self.unmatched:
            told.append(f"{times(self.unmatched, 'effect')} not in every run, e.g. {self.unmatched_example}")
        return told


@dataclass(frozen=True)
class Proposal:
    """What several fault-free runs propose for one output."""

    output: str
    ignore: tuple[str, ...]
    """The whole list: what the scenario ignores already, and what differed."""
    differences: Differences


def propose(runs: Sequence[Path]) -> tuple[Proposal, ...]:
    """Compare stored fault-free runs of one scenario; one proposal for each output that differs.

    Raises `UsageError` for fewer than two runs, a run with faults, one that did not drain, runs of different scenarios or
    of different input; `HistoryError` for one that cannot be read.
    """
    if len(runs) < 2:
        raise UsageError("one run shows no difference", hint="name two fault-free runs of the scenario, or more")
    with TemporaryDirectory() as folder:
        observed = [_observe(run, Path(folder) / str(number)) for number, run in enumerate(runs)]
        for run, (scenario, digest, _) in zip(runs[1:], observed[1:], strict=True):
            _same(runs[0], run, observed[0][0], scenario)
            if digest != observed[0][1]:
                hint = (
                    "a data set and a seed give the same records at the same offsets, unless a producer was disturbed"
                )
                raise UsageError(f"{runs[0]} and {run} were not fed the same committed input", hint=hint)
        outputs = observed[0][2]
        found = []
        for index, (output, spec) in enumerate(outputs.items()):
            files = [Path(folder) / str(number) / f"{index}.parquet" for number in range(len(runs))]
            if differences := compare(output, spec, files):
                ignore = [*spec.ignore, *(c.column for c in differences.columns)]
                found.append(Proposal(output, tuple(dict.fromkeys(ignore)), differences))
    return tuple(found)


def as_text(proposals: Sequence[Proposal], runs: int) -> str:
    """What a person puts into the scenario, as YAML with the reasons as comments."""
    if not proposals:
        return f"# nothing differs between these {runs} fault-free runs\n"
    lines = [f"# what differs between these {runs} fault-free runs differs on a replay too", "outputs:"]
    for proposal in proposals:
        lines.append(f"  {proposal.output}:")
        lines += [f"    # {sentence}" for sentence in proposal.differences.sentences()]
        if proposal.differences.columns:
            lines.append(f"    ignore: [{', '.join(proposal.ignore)}]")
        if proposal.differences.unmatched:
            lines.append(
                "    # identity: does it name a column that is generated? Then nothing is compared under its right name"
            )
    return "\n".join(lines) + "\n"


def as_json(proposals: Sequence[Proposal]) -> str:
    return json.dumps({"proposals": [asdict(proposal) for proposal in proposals]}, indent=2)


def store_observed(case: Case, output: str, file: Path) -> None:
    """Write the rows of ``output`` that a reader sees, each column as the text that was observed.

    Raises `NotEvaluated` for an output with values that have no columns.
    """
    try:
        _store_observed(case, output, file)
    except duckdb.Error as error:
        raise NotEvaluated(f"output {output} has values that have no columns: {error}") from error


def _store_observed(case: Case, output: str, file: Path) -> None:
    source = sources.effects(case, output)
    keys = f"SELECT DISTINCT unnest(json_keys(content)) AS name FROM ({source}) ORDER BY name"  # noqa: S608
    names = [row[0] for row in case.sql(keys).fetchall()]
    identity = case.scenario.outputs[output].identity
    named = documents.columns(names) or {name: name for name in identity}
    columns = list(named.values())
    exact = documents.fields_of({column: (name, documents.OTHER) for name, column in named.items()})
    content = f"{documents.FUNCTION}(content, {literal(exact)})"
    if not documents.renamed(names):
        content = (
            f"CASE WHEN regexp_matches(content, {literal(documents.LONG_FRACTION)}) THEN {content} ELSE content END"
        )
    structure = "{" + ", ".join(f'{json.dumps(name)}: "VARCHAR"' for name in columns) + "}"
    query = f"SELECT unnest(json_transform({content}, {literal(structure)})) FROM ({source})"  # noqa: S608
    schema = pa.schema([(name, pa.string()) for name in columns])
    reader = interruptible(case.db, lambda: case.db.sql(query).to_arrow_reader(_BATCH_ROWS))
    with pq.ParquetWriter(file, schema, **PARQUET) as writer:
        while (batch := interruptible(case.db, lambda: next(reader, None))) is not None:
            writer.write_batch(batch.cast(schema))


def input_digest(case: Case) -> tuple[Any, ...]:
    """Equal for runs whose committed input is equal, record by record, and stands at the same offsets."""
    # Not of the bytes themselves: DuckDB gives texts of one pattern few hashes (`onceproof.values.digest`).
    query = """SELECT topic, "partition", count(*), sum(hash("offset", md5_number("key"), md5_number("value"))) FROM history.input
               WHERE visibility = 'committed' GROUP BY ALL ORDER BY ALL"""
    return tuple(case.sql(query).fetchall())


def compare(output: str, spec: OutputSpec, files: Sequence[Path]) -> Differences:
    """How the rows in these files (`store_observed`) differ, in the columns that the output compares."""
    worst: dict[str, ColumnDifference] = {}
    compared, unmatched, example = 0, 0, ""
    with duckdb.connect(config={"threads": 2, "memory_limit": "512MB"}) as db:
        for left, right in combinations(files, 2):
            pair = _Pair(db, spec, left, right)
            common, alone, first = pair.identities()
            compared = max(compared, common)
            if alone > unmatched:
                unmatched, example = alone, first
            for difference in pair.columns():
                known = worst.get(difference.column)
                if known is None or known.effects < difference.effects:
                    worst[difference.column] = difference
    return Differences(output, compared, tuple(worst[name] for name in sorted(worst)), unmatched, example)


class _Pair:
    """Two files of observed rows of one output. Of an identity that occurs several times only the number is compared."""

    def __init__(self, db: duckdb.DuckDBPyConnection, spec: OutputSpec, left: Path, right: Path) -> None:
        self._db = db
        names: dict[str, None] = {}
        for file in (left, right):
            names |= dict.fromkeys(pq.read_schema(file).names)
        wanted = None if spec.compare is None else set(spec.compare)
        self._names = [
            name for name in names if name not in {*spec.identity, *spec.ignore} and (wanted is None or name in wanted)
        ]
        for side, file in (("one", left), ("other", right)):
            has = set(pq.read_schema(file).names)
            fields = {name: quote(name) if name in has else "NULL::VARCHAR" for name in [*spec.identity, *self._names]}
            identity = "{" + ", ".join(f"{literal(name)}: {fields[name]}" for name in spec.identity) + "}"
            listed = "".join(f", any_value({fields[name]}) AS {quote(name)}" for name in self._names)
            db.execute(f"""CREATE OR REPLACE TABLE {side} AS
                SELECT to_json({identity})::VARCHAR AS "=id", count(*) AS "=n"{listed}
                FROM read_parquet({literal(str(file))}) GROUP BY 1""")  # noqa: S608
        db.execute("""CREATE OR REPLACE VIEW pairs AS
            SELECT coalesce(a."=id", b."=id") AS id, a AS l, b AS r, a."=n" IS DISTINCT FROM b."=n" AS alone, a."=n" AS n
            FROM one a FULL JOIN other b ON a."=id" = b."=id" """)

    def identities(self) -> tuple[int, int, str]:
        """How many both have, how many they have not equally often, and the first of those."""
        query = "SELECT count(*) FILTER (NOT alone), count(*) FILTER (alone), min(id) FILTER (alone) FROM pairs"
        common, alone, first = self._db.execute(query).fetchone() or (0, 0, None)
        return common, alone, first or ""

    def columns(self) -> list[ColumnDifference]:
        found = []
        for name in self._names:
            left, right = (f"struct_extract({side}, {literal(name)})" for side in "lr")
            query = f"""SELECT count(*), min(id), arg_min({left}, id), arg_min({right}, id) FROM pairs
                        WHERE NOT alone AND n = 1 AND {left} IS DISTINCT FROM {right}"""  # noqa: S608
            count, identity, one, other = self._db.execute(query).fetchone() or (0, "", None, None)
            if count:
                found.append(ColumnDifference(name, count, f"{identity}: {_shown(one)} and {_shown(other)}"))
        return found


def _shown(value: str | None) -> str:
    return "NULL" if value is None else repr(value if len(value) <= 60 else f"{value[:57]}...")


def _observe(run: Path, folder: Path) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, OutputSpec]]:
    """Store what one run shows of each output; its scenario as stored, the digest of its input, and its outputs."""
    folder.mkdir()
    with Case.open(run) as case:
        fired = case.number("SELECT count(*) FROM history.faults WHERE fired_at IS NOT NULL")
        if fired or case.run.scenario.chaos:
            raise UsageError(f"{run} is a run with faults: what differs there may be a fault's work", hint=_FAULT_FREE)
        if not case.run.observed or not case.drained:
            raise UsageError(f"{run} did not drain: its outputs are not complete", hint="run the scenario again")
        for index, output in enumerate(case.scenario.outputs):
            try:
                store_observed(case, output, folder / f"{index}.parquet")
            except NotEvaluated as gap:
                raise UsageError(f"{run}: {gap}") from gap
        return case.run.scenario.to_json(), input_digest(case), dict(case.scenario.outputs)


def _same(first: Path, run: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in sorted((one.keys() | other.keys()) - _FREE):
        if _without_chunks(part, one.get(part)) != _without_chunks(part, other.get(part)):
            raise UsageError(f"{first} and {run} are runs of different scenarios: {part} differs")


def _without_chunks(part: str, value: Any) -> Any:
    """The input without the size of its chunks: other batches, the same records."""
    if part != "input" or not isinstance(value, list):
        return value
    return [{name: inner for name, inner in item.items() if name != "chunks"} for item in value]


_FAULT_FREE = "run the scenario with chaos: [] twice"
