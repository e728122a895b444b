"""From an executed schedule to its verdict: the same judge as for any run, once for each distinct outcome.

The digest of an outcome covers everything that the judge reads, except numbers that only name things: transactions, log
positions, and the times of a clock. Times are in it by their order: which commit was before which log write, and before which
fault. An outcome that held is also what holds for all executions with the same rows in the same commits and batches, whatever
faults struck there: a row that is right needs no explanation. One that did not, or in which the claim allows what is wrong (a loss
in a batch that a fault struck), is judged for each digest with its faults, since the judge looks there for the cause.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceproof.base.timeline import Timeline
from onceproof.data import dataset_of, rows_of
from onceproof.expectation.ask import ask_oracle
from onceproof.expectation.decode import decode_topics
from onceproof.faults.evidence.item import to_row
from onceproof.history.execution import Execution
from onceproof.history.memory import MemoryTables
from onceproof.history.run_directory import RunDir
from onceproof.history.writer import HistoryWriter
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import judge, write_verdict
from onceproof.run import execute
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.warm.attempts import Strike
from onceproof.warm.tier import Executed, WarmTier

Specs = Callable[[Sequence[Strike]], list[FaultSpec]]

#: Columns of rows whose values differ from execution to execution of the same schedule.
_NAMES = ("xid", "lsn", "commit_time_us", "planned_at", "committed_at")
#: Columns that name starts of the driver: with the faults, they say how an outcome came about.
_STARTS = ("planned_by", "committed_by")


@dataclass(frozen=True)
class Judged:
    """The verdict on an outcome."""

    outcome: Outcome
    anomalies: dict[str, int] = field(default_factory=dict)
    """Anomaly -> rows that violate the claim."""
    reason: str = ""
    run: str | None = None
    """The run directory that was judged."""
    clean: bool = True
    """Whether there is no finding at all, also none that the claim allows."""


def digest(executed: Executed, *, cause: bool) -> str:
    """A text that is equal for two executions if the judge says the same of both.

    ``cause``: also if it has to explain what is wrong, so that starts of the driver and faults count.
    """
    tables = executed.tables
    left_out = _NAMES if cause else (*_NAMES, *_STARTS)
    masked: dict[str, Any] = {
        name: [{k: v for k, v in row.items() if k not in left_out} for row in tables.rows(name)]
        for name in ("output", "batches", "progress")
    }
    # Other commits, as of a sink that registers a start, are between those of outputs; only the order of the latter counts.
    numbers = _numbers(executed)
    for row in masked["output"]:
        row["commit_order"] = numbers[row["commit_order"]]
    # A row's place in its table is not part of a table's content.
    masked["snapshot"] = sorted(tables.rows("snapshot"), key=lambda row: (row["output"], row["content"]))
    facts = {
        **masked,
        "order": _order(executed, cause=cause),
        "ended": executed.ended,
        "failed": bool(executed.errors) and not executed.ended,
        "gave_up": executed.gave_up,
        "open": executed.open_watermark,
        "cause": [[str(strike) for strike in executed.strikes], executed.starts] if cause else None,
        "outputs": {name: record.to_json() for name, record in executed.outputs.items()},
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _order(executed: Executed, *, cause: bool) -> list[str]:
    """The commits of outputs and the final log writes of batches, with ``cause`` also the faults, in the order of their times."""
    numbers = _numbers(executed)
    moments = [
        (row["commit_time_us"] / 1e6 - executed.wall_start, f"commit {numbers[row['commit_order']]}")
        for row in executed.tables.rows("commits")
        if row["commit_order"] in numbers
    ]
    for row in executed.tables.rows("batches"):
        moments.append((row["planned_at"], f"planned {row['batch']}"))
        if row["committed_at"] is not None:
            moments.append((row["committed_at"], f"committed {row['batch']}"))
    if cause:
        moments += [(at, f"fault {index}") for index, at in enumerate(executed.fired)]
    moments = sorted(set(moments))  # a batch has a row for each partition
    return [what for _, what in sorted(moments)]


def _numbers(executed: Executed) -> dict[int, int]:
    """The commits that wrote an output -> their numbers among these."""
    written = sorted({row["commit_order"] for row in executed.tables.rows("output")})
    return {order: number for number, order in enumerate(written)}


class Judge:
    """Judges executed schedules, and keeps the run directory of each distinct outcome in ``folder``."""

    def __init__(self, tier: WarmTier, execution: Execution, folder: Path, specs: Specs) -> None:
        """``specs`` gives the faults that an ordinary run of a schedule would have: the judge reads them."""
        self._specs = specs
        self._tier = tier
        self._execution = execution
        self._folder = folder
        self._held: dict[tuple[str, bool], Judged] = {}
        """Digest and whether any fault struck -> verdict: the run without faults does not show that a schedule with some holds."""
        self._others: dict[str, Judged] = {}

    @property
    def distinct(self) -> int:
        """How many outcomes were judged; all others are equal to one of them."""
        return len(self._held) + len(self._others)

    def judge(self, executed: Executed) -> Judged:
        """The verdict on the outcome of a schedule in which every fault struck."""
        plain, whole = (digest(executed, cause=False), bool(executed.strikes)), digest(executed, cause=True)
        known = self._held.get(plain) or self._others.get(whole)
        if known is None:
            known = self._judge(executed)
            if known.outcome is Outcome.HELD and known.clean:
                self._held[plain] = known
            else:
                self._others[whole] = known
        return known

    def _judge(self, executed: Executed) -> Judged:
        directory = RunDir.below(self._folder / f"{self.distinct + 1:04d}")
        faults = self._specs(executed.strikes)
        verdict = judged_run(self._tier, self._execution, executed, faults, directory)
        reason = verdict.reasons[0].partition("\n")[0] if verdict.reasons else ""
        return Judged(verdict.outcome, verdict.anomalies(), reason, str(directory.path), not verdict.findings)


def judged_run(
    tier: WarmTier, execution: Execution, executed: Executed, faults: list[FaultSpec], directory: RunDir
) -> Verdict:
    """Store an executed schedule as a run, and judge it."""
    scenario = execution.scenario.model_copy(update={"chaos": list(faults)})
    timeline = Timeline(directory.events)
    try:
        one = Execution(scenario, execution.path, directory, timeline)
        one.begins()
        directory.update(wall_start=executed.wall_start, versions=tier.versions)
        _copy_tables(execution.directory, directory)
        with HistoryWriter(directory.path) as writer:
            tier.shared.write(writer)
            executed.tables.write(writer)
            writer.append("faults", _fault_rows(executed, faults))
        directory.update(**_facts(tier, executed))
        decode_topics(scenario, one.here, directory)
        one.observed()
        ask_oracle(one, execute)
    finally:
        timeline.close()
    verdict = judge(directory.path)
    write_verdict(directory.path, verdict)
    return verdict


def _copy_tables(of: RunDir, to: RunDir) -> None:
    for path in of.tables.glob("*.parquet"):
        shutil.copyfile(path, to.tables / path.name)


def _facts(tier: WarmTier, executed: Executed) -> dict[str, Any]:
    """The fields of ``run.json`` about the feed and the job."""
    covered = executed.ended and _covers(executed.tables, tier.ends)
    drained = covered and not executed.open_watermark
    why = (
        "no batch has acted on the query's last watermark" if covered else "the query ended before the end of its input"
    )
    note = None if drained else "; ".join(executed.errors[-1:]) or why
    return {
        "fed": True,
        "drained": drained,
        "drain_note": note,
        # Before any fault, a job that ends without progress is simply broken.
        "stuck": executed.gave_up and bool(executed.fired),
        "nudged": False,
        "never_reads": False,
        "open_watermarks": {},
        "outputs": executed.outputs,
        "ends": tier.ends,
        "job": {
            "starts": executed.starts,
            "exits": [],
            "died_before_fault": not executed.ended and not executed.fired,
            "given_up": not executed.ended,
            "traceback": note,
        },
    }


def _covers(tables: MemoryTables, ends: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether recorded progress is at the end of the input."""
    done = {(row["topic"], row["partition"]): row["end_offset"] for row in tables.rows("progress")}
    return all(done.get((topic, partition), 0) >= end for topic, of in ends.items() for partition, end in of.items())


def _fault_rows(executed: Executed, faults: list[FaultSpec]) -> list[dict[str, Any]]:
    rows = []
    for index, fault in enumerate(faults):
        fired = executed.fired[index] if index < len(executed.fired) else None
        evidence = (
            f"warm: the attempt ended at {fault.at.point} of batch {fault.at.batch}, and the query was started again"
            if fired is not None
            else "warm: this point was not reached"
        )
        rows.append(
            {
                "index": index,
                "fault": fault.fault,
                "target": fault.target,
                "query": executed.query,
                **fault.at.described(),
                "armed_at": 0.0,
                "fired_at": fired,
                "hit": fired is not None,
                "healed_at": fired,
                **to_row([evidence]),
            }
        )
    return rows


def reduced(scenario: Scenario, rows_per_batch: int, batches: int) -> Scenario:
    """The scenario without its faults, with an input of ``batches`` chunks of at most ``rows_per_batch`` records.

    An ordinary run of it feeds one more chunk (`onceproof.explore.real`): the data set has enough records for that, too.
    """
    inputs = []
    for spec in scenario.input:
        has = dataset_of(spec, scenario.seed).rows()
        of_a_chunk = min(rows_per_batch, rows_of(spec, scenario.seed) // batches, has // (batches + 1))
        rows = min(has, batches * max(1, of_a_chunk))
        inputs.append(spec.model_copy(update={"chunks": batches, "rows": rows}))
    return scenario.model_copy(update={"input": inputs, "chaos": []})
