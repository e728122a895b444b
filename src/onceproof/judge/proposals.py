"""Proposes columns for ``ignore``: those that differ between fault-free runs of one scenario.

A load time or a generated id differs in every run, and therefore also in a correct replay. Two or more fault-free runs show
which columns these are. Nothing is ignored automatically: the owner of the scenario decides.
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

#: Sections in which the scenarios of the compared runs may differ.
_MAY_DIFFER = {"about", "chaos", "claim", "expect", "limits", "oracle"}


@dataclass(frozen=True)
class Proposal:
    """The columns to ignore in one output, and the differences that suggest them."""

    output: str
    ignore: tuple[str, ...]
    """The complete list: the columns that the scenario ignores already, and those that differed."""
    differences: Differences


def propose(runs: Sequence[Path]) -> tuple[Proposal, ...]:
    """Compare stored fault-free runs of one scenario; return one proposal for each output that differs.

    Raises `UsageError` for fewer than two runs, a run with faults, a run that did not drain, and runs of different scenarios or
    with different input; `HistoryError` for a run that cannot be read.
    """
    if len(runs) < 2:
        raise UsageError("one run shows no difference", hint="name two or more fault-free runs of the scenario")
    with TemporaryDirectory() as folder:
        observed = [_observe(run, Path(folder) / str(number)) for number, run in enumerate(runs)]
        for run, (scenario, digest, _) in zip(runs[1:], observed[1:], strict=True):
            _check_same_scenario(runs[0], run, observed[0][0], scenario)
            if digest != observed[0][1]:
                hint = "the same data set and seed give the same records at the same offsets, unless a producer was disturbed"
                raise UsageError(f"{runs[0]} and {run} were not fed the same committed input", hint=hint)
        outputs = observed[0][2]
        found = []
        for index, (output, spec) in enumerate(outputs.items()):
            files = [Path(folder) / str(number) / f"{index}.parquet" for number in range(len(runs))]
            if differences := compare(output, spec, files):
                found.append(Proposal(output, differences.to_ignore(spec), differences))
    return tuple(found)


def as_text(proposals: Sequence[Proposal], runs: int) -> str:
    """The proposals as YAML for the scenario file, with the reasons as comments."""
    if not proposals:
        return f"# nothing differs between these {runs} fault-free runs\n"
    lines = [f"# {runs} fault-free runs differ as follows, so a replay may differ in the same way", "outputs:"]
    for proposal in proposals:
        lines.append(f"  {proposal.output}:")
        lines += [f"    # {sentence}" for sentence in proposal.differences.sentences()]
        if proposal.differences.columns:
            lines.append(f"    ignore: [{', '.join(proposal.ignore)}]")
        if proposal.differences.unmatched:
            lines.append(
                "    # identity: does it name a generated column? Then no row can be matched with the same row of another run"
            )
    return "\n".join(lines) + "\n"


def as_json(proposals: Sequence[Proposal]) -> str:
    return json.dumps({"proposals": [asdict(proposal) for proposal in proposals]}, indent=2)


def store_rows(run: Path, files: Mapping[str, Path]) -> None:
    """Write to ``files`` what a reader of these outputs sees after the run, each column as the observed text.

    Raises `NotEvaluated` for an output that cannot be read, or whose values have no columns.
    """
    with open_case(run) as case:
        for output, file in files.items():
            if output in case.unreadable:
                raise NotEvaluated(f"output {output} cannot be read: {case.unreadable[output]}")
            store_observed(case, output, file)


def store_observed(case: Case, output: str, file: Path) -> None:
    """Do what `store_rows` does, for one output of an open case."""
    try:
        _store_observed(case, output, file)
    except duckdb.Error as error:
        raise NotEvaluated(f"output {output} has values without columns: {error}") from error


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
    relation = case.relation(query)
    reader = interruptible(case.db, lambda: relation.to_arrow_reader(_BATCH_ROWS))
    with pq.ParquetWriter(file, schema, **PARQUET) as writer:
        while (batch := interruptible(case.db, lambda: next(reader, None))) is not None:
            writer.write_batch(batch.cast(schema))


def _observe(run: Path, folder: Path) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, OutputSpec]]:
    """Store the rows of each output of one run; return its stored scenario, the digest of its input, and its outputs."""
    folder.mkdir()
    with open_case(run) as case:
        fired = case.number("SELECT count(*) FROM history.faults WHERE fired_at IS NOT NULL")
        if fired or case.run.scenario.chaos:
            raise UsageError(f"{run} is a run with faults: a fault may have caused the differences", hint=_FAULT_FREE)
        if not case.run.observed or not case.drained:
            raise UsageError(f"{run} did not drain, so its outputs are incomplete", hint="run the scenario again")
        for index, output in enumerate(case.scenario.outputs):
            try:
                store_observed(case, output, folder / f"{index}.parquet")
            except NotEvaluated as gap:
                raise UsageError(f"{run}: {gap}") from gap
        return case.run.scenario.to_json(), input_digest(run), dict(case.scenario.outputs)


def _check_same_scenario(first: Path, run: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    for section in sorted((one.keys() | other.keys()) - _MAY_DIFFER):
        if _without_chunks(section, one.get(section)) != _without_chunks(section, other.get(section)):
            raise UsageError(f"{first} and {run} are runs of different scenarios: {section} differs")


def _without_chunks(section: str, value: Any) -> Any:
    """A section of a scenario, the input without the size of its chunks: it changes the batches and not the records."""
    if section != "input" or not isinstance(value, list):
        return value
    return [{name: inner for name, inner in item.items() if name != "chunks"} for item in value]


_FAULT_FREE = "run the scenario twice with chaos: []"
