"""Whose requests a service refused, where a job has several queries: a refused connection names no query.

It can still be known: from the batches that were open at the time, from the queries that the scenario names for its outputs,
and from what each query was seen to send to the service before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onceproof.instruments.checkpoint_watcher import Batch
from onceproof.scenario.outputs import OutputSpec


@dataclass(frozen=True)
class Whose:
    """Whether the refusals were those of one query's batch."""

    decided: bool
    why: str
    """A sentence."""


def whose_refusals(
    query: str,
    batches: Sequence[Batch],
    outputs: Mapping[str, OutputSpec],
    *,
    requests: Sequence[float],
    refusals: Sequence[float],
) -> Whose:
    """Whether Postgres refused ``query``, and no other query of ``batches``, at the times ``refusals``.

    ``requests``: when statements of the job were seen on their way to Postgres. Times are seconds of the run's clock.
    """
    names = list(dict.fromkeys([query, *(b.query for b in batches)]))
    uses = {name: _uses(name, batches, outputs, requests) for name in names}
    if uses[query] is False:
        users = ", ".join(name for name in names if uses[name]) or "another query"
        return Whose(False, f"query {query} does not use postgres: it was {users} that was refused")
    open_too = [
        name
        for name in names
        if name != query and any(_open(b, at) for b in batches if b.query == name for at in refusals)
    ]
    suspects = [name for name in open_too if uses[name] is not False]
    if suspects:
        both = " and ".join([query, *suspects])
        return Whose(
            False,
            f"not decidable: queries {both} were open while postgres refused, and each may have been refused "
            "(name each output's query under outputs: NAME: query:, or refuse a table)",
        )
    others = ", ".join(open_too)
    return Whose(
        True,
        f"of the queries that were open only {query} uses postgres ({others} does not)"
        if open_too
        else f"no other query than {query} was open while postgres refused",
    )


def _uses(
    name: str, batches: Sequence[Batch], outputs: Mapping[str, OutputSpec], requests: Sequence[float]
) -> bool | None:
    """Whether a query uses Postgres: by what was seen, else by what the scenario says of its outputs. None: not known."""
    own = [b for b in batches if b.query == name]
    rest = [b for b in batches if b.query != name]
    if any(_within(own, at) and not _within(rest, at) for at in requests):
        return True
    if requests and any(b.committed_at is not None and b.records() > 0 and not _any(b, requests) for b in own):
        return False  # a batch with data, and not one statement in all the time that it took
    tables = {spec.query for spec in outputs.values() if spec.table is not None}
    if name in tables:
        return True
    elsewhere = any(spec.query == name for spec in outputs.values())
    return False if elsewhere and None not in tables else None


def _within(batches: Collection[Batch], at: float) -> bool:
    return any(_open(b, at) for b in batches)


def _any(batch: Batch, times: Sequence[float]) -> bool:
    return any(_open(batch, at) for at in times)


def _open(batch: Batch, at: float) -> bool:
    return batch.planned_at <= at and (batch.committed_at is None or at <= batch.committed_at)
