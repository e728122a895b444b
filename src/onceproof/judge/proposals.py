"""What differs between fault-free runs of one scenario: columns that say nothing of faults, proposed for ``ignore``.

A load time or a generated id differs on every run, so also on a replay that did nothing wrong. Two fault-free runs or more show
which columns these are. Nothing is ignored by itself: whoever owns the scenario decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import NotEvaluated, UsageError
from onceproof.history.statements import interruptible
from onceproof.history.writer import PARQUET
from onceproof.judge.case import sources
from onceproof.judge.case.case import Case
from onceproof.judge.open import open_case
from onceproof.oracle.contract.differences import Differences, compare, input_digest
from onceproof.scenario.outputs import OutputSpec
from onceproof.values import documents
from onceproof.values.canonical import literal

_BATCH_ROWS = 16_384

#: Parts of a scenario in which fault-free runs may differ and still be runs of one scenario.
_FREE = {"about", "chaos", "claim", "expect", "limits", "oracle"}


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


def store_rows(run: Path, files: Mapping[str, Path]) -> None:
    """Write the rows that a reader of these outputs sees after that run, each column as the text that was observed.

    Raises `NotEvaluated` for an output that cannot be read, or with values that have no columns.
    """
    with open_case(run) as case:
        for output, file in files.items():
            if output in case.unreadable:
                raise NotEvaluated(f"output {output} cannot be read: {case.unreadable[output]}")
            store_observed(case, output, file)


def store_observed(case: Case, output: str, file: Path) -> None:
    """As `store_rows`, of one output of an open case."""
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


def _observe(run: Path, folder: Path) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, OutputSpec]]:
    """Store what one run shows of each output; its scenario as stored, the digest of its input, and its outputs."""
    folder.mkdir()
    with open_case(run) as case:
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
        return case.run.scenario.to_json(), input_digest(run), dict(case.scenario.outputs)


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
