"""What a report says about the tier of a run: how its driver was to be restarted, and how often that was done."""

from __future__ import annotations

from collections import Counter

from onceproof.history.run_record import RunRecord


def sentence(record: RunRecord) -> str | None:
    """One sentence about a run in another tier than *real*; None for any other run."""
    if record.tier in (None, "real"):
        return None
    restarts = [] if record.job is None else [jvm for jvm in record.job.jvms if jvm.start]
    total = max((record.job.starts - 1) if record.job is not None else 0, len(restarts))
    fast = sum(jvm.tier == record.tier for jvm in restarts)
    reasons = Counter(jvm.why or "no reason is known" for jvm in restarts if jvm.tier != record.tier)
    parts = [f"{record.tier}, faster and less realistic: {fast} of {total} restarts used the running JVM again"]
    parts += [f"{n} had a new JVM ({why})" for why, n in reasons.items()]
    if total > len(restarts):
        parts.append(f"{total - len(restarts)} started without onceproof's spark-submit")
    return "; ".join(
        [*parts, "repeat it with --tier real: a finding may be due to the kept JVM, and so may its absence"]
    )
