"""The modes of Spark in which a query does not log each batch before and after it runs, so that points do not mean what they say."""

from __future__ import annotations

from collections.abc import Mapping

_IN_WORDS = {
    "async": "asynchronous progress tracking (asyncProgressTrackingEnabled), which logs offsets and commits at intervals, and not "
    "for each batch",
    "continuous": "continuous processing (trigger(continuous=...)), which has epochs and no batches that are planned before they run",
    "realtime": "real-time mode (trigger(realTime=...)), which writes the rows of a batch before it logs its offsets",
}
"""Mode, as the driver reports it -> a noun phrase. Sources: SPARK-39591, SPARK-20928 and SPARK-53736."""

_WITHOUT_BATCHES = {"continuous"}
"""Modes whose logs do not say what a batch read. In continuous processing an epoch is planned by nobody: its tasks report its end,
and a driver that repeats an epoch keeps the end that the driver before it has logged (``ContinuousExecution.addOffset``).
"""


def without_batches(modes: Mapping[str, str] | None) -> list[str]:
    """The queries that have no batches to judge, in alphabetical order. ``modes``: query -> mode, as a run stores them.

    While a job runs, another thread may add a query to ``modes``.
    """
    return sorted(query for query, mode in list((modes or {}).items()) if mode in _WITHOUT_BATCHES)


def doubts_of(modes: Mapping[str, str] | None) -> list[str]:
    """Why no run with these queries is held. ``modes`` as in `without_batches`."""
    points = [
        f"query {query} uses {in_words(mode)}: what faults at the points of a batch show does not apply to it"
        for query, mode in (modes or {}).items()
    ]
    epochs = [
        f"the log of query {query} does not say what an epoch has read, so no epoch is judged as a batch"
        for query in without_batches(modes)
    ]
    return points + epochs


def in_words(mode: str) -> str:
    """The mode as a noun phrase; one that a stored run names and this version does not know, by its name."""
    return _IN_WORDS.get(mode, f"the mode {mode}")
