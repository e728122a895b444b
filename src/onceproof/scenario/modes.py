"""The modes of Spark in which a query does not log each batch before and after it runs, so that points do not mean what they say."""

from __future__ import annotations

_IN_WORDS = {
    "async": "asynchronous progress tracking (asyncProgressTrackingEnabled), which logs offsets and commits at intervals, and not "
    "for each batch",
    "continuous": "continuous processing (trigger(continuous=...)), which has epochs and no batches that are planned before they run",
    "realtime": "real-time mode (trigger(realTime=...)), which writes the rows of a batch before it logs its offsets",
}
"""Mode, as the driver reports it -> a noun phrase. Sources: SPARK-39591, SPARK-20928 and SPARK-53736."""


def in_words(mode: str) -> str:
    """The mode as a noun phrase; one that a stored run names and this version does not know, by its name."""
    return _IN_WORDS.get(mode, f"the mode {mode}")
