"""Builds witnesses and the wording of findings, for all checkers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict

from onceproof.base.words import times
from onceproof.judge.findings import MAX_WITNESSES, Finding, Witness
from onceproof.judge.relations import on_demand
from onceproof.stores.contract import Words, store_of, stores

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case

Row = dict[str, Any]

#: The number of positions that one witness names.
_PLACES = 4
_PARAMETER = re.compile(r"\$(\w+)")


class WitnessFields(TypedDict):
    """The fields of a finding that hold its witnesses."""

    witnesses: tuple[Witness, ...]
    every: Callable[[], Iterator[Witness]]


def identity_of(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(row["id"])
    return document


def shown_rows(
    case: Case,
    query: str,
    values: Mapping[str, Any],
    argument: Callable[[Row], str],
    *,
    at: Sequence[str] = (),
    placed_in: str | None = None,
    identity: Callable[[Row], dict[str, Any]] = identity_of,
) -> WitnessFields:
    """The first few witnesses, and a function that gives all: one for each row of a query.

    ``query`` takes ``values`` and ``$limit``; its columns ``id``, ``batch`` and, for the cause, ``topic``, ``partition`` and
    ``offset`` become those of the witness. ``at`` names the columns that hold positions, which may be null. With ``placed_in``,
    an output, the positions are the identity's `places` there, and ``argument`` finds them in ``row["places"]``.
    """

    def make(limit: int | None) -> Iterator[Witness]:
        for rows in case.pages(query, {**values, "limit": limit}):
            found = {} if placed_in is None else places(case, placed_in, [row["id"] for row in rows])
            for row in rows:
                named = tuple(row[column] for column in at if row[column] is not None)
                row["places"] = named if placed_in is None else found.get(row["id"], ())
                yield Witness(
                    identity=identity(row),
                    argument=argument(row),
                    cause=cause_of(row) if "offset" in row else None,
                    batch=row.get("batch"),
                    positions=row["places"],
                )

    return {"witnesses": tuple(make(MAX_WITNESSES)), "every": lambda: make(None)}


def finding(
    case: Case,
    anomaly: str,
    rows: Sequence[Row],
    summary: str,
    query: str,
    argument: Callable[[Case, Row], str],
    *,
    at: Sequence[str] = (),
    placed: bool = False,
    identity: Callable[[Row], dict[str, Any]] = identity_of,
    source: str | None = None,
    **more: Any,
) -> Finding:
    """The finding of an anomaly from its totals: rows of one ``output`` and, if they have that column, of one ``source``.

    Their ``total`` is summed for the finding, and by ``label`` and ``of_batch``, if they have these columns. ``query`` gives a row
    per witness (`shown_rows`); its parameters are columns of ``rows``, and ``$drained``. With ``placed``, the positions of a
    witness are the places of its identity. ``more``: further fields of the finding.
    """
    known = {"drained": case.drained, **rows[0]}
    # A `$` may also be part of a quoted name of a column or output.
    values = {name: known[name] for name in _PARAMETER.findall(query) if name in known}
    output: str = known["output"]
    witnesses = shown_rows(
        case, query, values, partial(argument, case), at=at, placed_in=output if placed else None, identity=identity
    )
    return Finding(
        anomaly,
        output,
        total_of(rows),
        summary,
        source=source or known.get("source"),
        attribution=sums(rows, "label"),
        batches=sums(rows, "of_batch"),
        **witnesses,
        **more,
    )


def total_of(rows: Iterable[Row]) -> int:
    return sum(row["total"] for row in rows)


def counted(case: Case, rows: Sequence[Row]) -> str:
    """The total of these rows of one output, in words: ``2 records``."""
    return times(total_of(rows), noun(case, rows[0]["output"]))


def cause_of(row: Row) -> str | None:
    """``topic/partition@offset``, or None if the oracle names no cause."""
    return None if row["offset"] is None else f"{row['topic']}/{row['partition']}@{row['offset']}"


def input_of(row: Row) -> str:
    """The input of an effect, as the start of a sentence."""
    cause = cause_of(row)
    return "Its input" if cause is None else f"Input {cause}"


def behind(case: Case) -> str:
    """Why a state that differs may still become right: the input was not all processed."""
    ended = "the history was imported as not drained" if case.run.imported else "the run did not drain"
    return f"{ended}, and the rest of the input may still change that"


def noun(case: Case, output: str) -> str:
    """The singular of what an output holds: a row in a table, a record in a topic."""
    return _words(case, output).item


def _words(case: Case, output: str) -> Words:
    spec = case.scenario.outputs.get(output)
    return (stores.get("kafka") if spec is None else store_of(spec)).words  # without a spec, it is an input topic


def listed(items: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    names = list(items)
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""


def holding(case: Case, output: str, count: int, where: Iterable[str]) -> str:
    """``the table holds 2 rows, written by transactions 758 and 759``."""
    positions, words = list(where), _words(case, output)
    commits = [
        position.rpartition(f" {words.commit} ")[2]
        for position in positions
        if words.commit and f" {words.commit} " in position
    ]
    if commits:
        at = f", {words.written}{'' if len(commits) == 1 else 's'} {listed(commits)}"
    else:
        at = f", at {listed(positions)}" if any("@" in position for position in positions) else ""
    if at and len(positions) < count and len(positions) == _PLACES:
        at += " among others"
    return f"the {words.whole} holds {times(count, words.item)}{at}"


def labelled(total: int, what: str, labels: Mapping[str, int]) -> str:
    """``what``, followed by its origin if ``labels`` (a finding's ``attribution``) has only one."""
    (label,) = labels if len(labels) == 1 else ("",)
    return f"{what}, {'all ' if total > 1 else ''}{label}" if label else what


def places(case: Case, output: str, ids: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """Identity -> the positions of its effects, in order; the first few of each."""
    ids = list(ids)
    on_demand.load_ids(case, output, ids)
    query = """SELECT id, place FROM judge.effects WHERE output = $output AND list_contains($ids, id)
               QUALIFY row_number() OVER (PARTITION BY id ORDER BY pos, lane) <= $places ORDER BY id, pos, lane"""
    rows = case.rows(query, {"output": output, "ids": ids, "places": _PLACES})
    return {id_: tuple(row["place"] for row in group) for id_, group in groupby(rows, key=lambda row: row["id"])}


def columns(*names: str) -> Callable[[Row], dict[str, Any]]:
    """For `finding`: the identity of a witness is the values of these columns."""
    return lambda row: {name: row[name] for name in names}


def named_values(names: Iterable[str], values: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} = {'null' if values[name] is None else values[name]}" for name in names)


def unsettled_loss(rows: Sequence[Row]) -> str | None:
    return "it is not known whether a fault caused the loss" if rows[0]["source"] == "unknown" else None


def by(rows: list[Row], *columns: str) -> Iterator[list[Row]]:
    """Group rows, which are sorted by ``columns``, by equal values of these."""
    for _, group in groupby(rows, key=itemgetter(*columns)):
        yield list(group)


def sums(rows: Iterable[Row], column: str) -> dict[str, int]:
    """Value of ``column`` -> sum of ``total``, in the order of the rows; rows without a value are left out."""
    result: dict[str, int] = {}
    for row in rows:
        if row.get(column) is not None:
            result[row[column]] = result.get(row[column], 0) + int(row["total"])
    return result
