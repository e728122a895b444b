"""Decides which query of a job Postgres refused: a refused connection does not name its query.

The decision uses the batches that were open at the time, the queries that the scenario names for its outputs, and the requests
that were seen while each query had a batch open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.outputs import OutputSpec


@dataclass(frozen=True)
class RefusalAttribution:
    """Whether the refusals certainly struck the fault's query, and a sentence that says why."""

    decided: bool
    why: str


def attribute_refusals(
    query: str,
    batches: Sequence[Batch],
    outputs: Mapping[str, OutputSpec],
    *,
    requests: Sequence[float],
    refusals: Sequence[float],
) -> RefusalAttribution:
    """Decide whether Postgres refused ``query``, and no other query of ``batches``, at the times ``refusals``.

    ``requests``: the times at which the job sent statements to Postgres. Times are seconds of the run's clock.
    """
    names = list(dict.fromkeys([query, *(b.query for b in batches)]))
    uses = {name: uses_postgres(name, batches, outputs, requests) for name in names}
    if uses[query] is False:
        users = ", ".join(name for name in names if uses[name]) or "another query"
        return RefusalAttribution(False, f"query {query} does not use postgres: {users} was refused")
    open_too = [
        name
        for name in names
        if name != query and any(_open(b, at) for b in batches if b.query == name for at in refusals)
    ]
    suspects = [name for name in open_too if uses[name] is not False]
    if suspects:
        both = " and ".join([query, *suspects])
        return RefusalAttribution(
            False,
            f"which query was refused cannot be decided: {both} had batches open while postgres refused "
            "(name each output's query under outputs: NAME: query:, or refuse a table)",
        )
    others = ", ".join(open_too)
    return RefusalAttribution(
        True,
        f"of the queries with an open batch only {query} uses postgres ({others} does not)"
        if open_too
        else f"only query {query} had a batch open while postgres refused",
    )


def uses_postgres(
    name: str, batches: Sequence[Batch], outputs: Mapping[str, OutputSpec], requests: Sequence[float]
) -> bool | None:
    """Whether a query uses Postgres, by the requests that were seen, else by the scenario's outputs. None: not known."""
    own = [b for b in batches if b.query == name]
    rest = [b for b in batches if b.query != name]
    if any(_any_open(own, at) and not _any_open(rest, at) for at in requests):
        return True
    if requests and any(
        b.committed_at is not None and b.records() > 0 and not any(_open(b, at) for at in requests) for b in own
    ):
        return False  # it completed a batch with data during which no statement was sent
    tables = {spec.query for spec in outputs.values() if spec.table is not None}
    if name in tables:
        return True
    elsewhere = any(spec.query == name for spec in outputs.values())
    return False if elsewhere and None not in tables else None


def _any_open(batches: Collection[Batch], at: float) -> bool:
    return any(_open(b, at) for b in batches)


def _open(batch: Batch, at: float) -> bool:
    return batch.planned_at <= at and (batch.committed_at is None or at <= batch.committed_at)
