"""Stores what a person compares: the expected and found rows of the witnesses in a verdict, and their input records.

They are in ``witnesses/rows.json``, so that a report needs neither the oracle nor the outputs. Only the witnesses that
``verdict.json`` holds have rows here, so the file stays small however many effects are wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from onceproof.base.masking import masked_value
from onceproof.history import run_files
from onceproof.judge.findings import Verdict
from onceproof.judge.relations import on_demand
from onceproof.judge.witness_files import FOLDER

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

FILE = f"{FOLDER}/rows.json"
#: Rows of one identity on each side, and characters of one text.
_MOST_ROWS, _MOST_TEXT = 4, 2000


@dataclass(frozen=True)
class ShownRow:
    """Equal rows of one identity on one side."""

    content: dict[str, Any]
    """Compared column -> canonical text, or null."""
    count: int
    places: tuple[str, ...] = ()
    """Where the first of them are in the output; none for expected rows."""


@dataclass(frozen=True)
class InputRecord:
    """The input record that caused an effect. Bytes that are not UTF-8 are written as escapes."""

    position: str
    """``topic/partition@offset``"""
    key: str | None
    value: str | None


@dataclass(frozen=True)
class ShownRows:
    """The rows of one identity: what the oracle expects, and what a reader of the output finds after the run."""

    output: str
    identity: dict[str, Any]
    expected: tuple[ShownRow, ...]
    found: tuple[ShownRow, ...]
    input: InputRecord | None = None


_ADAPTER = TypeAdapter(tuple[ShownRows, ...])


def write(case: Case, verdict: Verdict, run_dir: Path) -> None:
    """Write the rows of all witnesses of findings that the claim does not allow. Writes nothing if there are none."""
    rows = tuple(of_verdict(case, verdict))
    if rows:
        text = json.dumps([masked_value(asdict(one)) for one in rows], default=str) + "\n"
        (run_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
        run_files.write_text(run_dir / FILE, text)


def read(run_dir: Path) -> tuple[ShownRows, ...]:
    """The stored rows; none if the run has no such file. Raises `OSError`, and `ValueError` for another format."""
    folder = run_dir / FOLDER
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    try:
        return _ADAPTER.validate_json(run_files.read_text(run_dir / FILE))
    except FileNotFoundError:
        return ()


def of_verdict(case: Case, verdict: Verdict) -> Iterator[ShownRows]:
    """The rows of the witnesses of all findings that the claim does not allow."""
    wanted: dict[str, dict[str, tuple[dict[str, Any], str | None]]] = {}
    for finding in verdict.findings:
        for witness in finding.witnesses if finding.allowed is None and finding.output in case.expectations else ():
            of_output = wanted.setdefault(finding.output, {})
            of_output.setdefault(_id(witness.identity), (witness.identity, witness.cause))
    inputs = _inputs(case, {cause for some in wanted.values() for _, cause in some.values() if cause is not None})
    for output, some in wanted.items():
        on_demand.load_ids(case, output, some)
        expected = _rows(case, "judge.expected", "NULL", output, some)
        found = _rows(case, "judge.effects", "place", output, some)
        for id_, (identity, cause) in some.items():
            if id_ in expected or id_ in found:
                sides = (expected.get(id_, ()), found.get(id_, ()))
                yield ShownRows(output, identity, *sides, inputs.get(cause or ""))


def _id(identity: Mapping[str, Any]) -> str:
    """The identity as the judge writes it: JSON without spaces."""
    return json.dumps(identity, separators=(",", ":"), ensure_ascii=False)


def _rows(case: Case, table: str, place: str, output: str, ids: Iterable[str]) -> dict[str, tuple[ShownRow, ...]]:
    query = f"""SELECT id, content, count(*) AS total, list({place})[:{_MOST_ROWS}] AS places FROM {table}
                WHERE output = $output AND list_contains($ids, id) GROUP BY id, content ORDER BY id, content"""  # noqa: S608
    rows: dict[str, tuple[ShownRow, ...]] = {}
    for row in case.rows(query, {"output": output, "ids": list(ids)}):
        before = rows.get(row["id"], ())
        if len(before) < _MOST_ROWS:
            content = {name: _short(value) for name, value in json.loads(row["content"] or "{}").items()}
            places = tuple(place for place in row["places"] or () if place is not None)
            rows[row["id"]] = (*before, ShownRow(content, row["total"], places))
    return rows


def _inputs(case: Case, causes: set[str]) -> dict[str, InputRecord]:
    """``topic/partition@offset`` -> the record there."""
    offsets = sorted({int(offset) for _, _, offset in (cause.rpartition("@") for cause in causes) if offset.isdigit()})
    query = """SELECT topic || '/' || "partition" || '@' || "offset" AS position, "key", "value" FROM history.input
               WHERE list_contains($offsets, "offset") AND list_contains($causes, topic || '/' || "partition" || '@' || "offset")"""
    found = case.rows(query, {"offsets": offsets, "causes": sorted(causes)}) if offsets else []
    return {
        row["position"]: InputRecord(row["position"], _decoded(row["key"]), _decoded(row["value"])) for row in found
    }


def _decoded(raw: bytes | None) -> str | None:
    return None if raw is None else _short(bytes(raw).decode("utf-8", "backslashreplace"))


def _short(value: Any) -> Any:
    return f"{value[:_MOST_TEXT]}..." if isinstance(value, str) and len(value) > _MOST_TEXT else value
