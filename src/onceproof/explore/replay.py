"""`onceproof replay`: the stored schedule of a run is played again, as often as wanted, on one broker that stays up.

Every play has queues and processes of its own, and is judged like a run. Plays that came to the same findings and left the
effects in the same order are removed; one that did not is kept, with its verdict.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from onceproof.base.errors import HistoryError, Interrupted, UsageError
from onceproof.base.masking import hiding, of_environment
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import Timeline
from onceproof.consumers.brokers import services
from onceproof.consumers.brokers.contract import Broker, WarmsUp
from onceproof.consumers.faults import consumer_faults
from onceproof.history import run_files
from onceproof.history.execution import Execution
from onceproof.history.reader import read_document
from onceproof.history.run_directory import RunDir, private_files
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.unobserved import unobserved
from onceproof.judge.verdict import judge, write_verdict
from onceproof.oracle import oracles
from onceproof.run import execute
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.owner import Owner

Say = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """What a play came to: what must be the same."""

    outcome: Outcome
    anomalies: tuple[tuple[str, str, int], ...]
    """Anomaly, output, effects: after the claim."""
    hit: tuple[bool, ...]
    """Of each fault."""
    order: tuple[tuple[str, str], ...]
    """Output and content of each effect, in the order in which they stand."""


@dataclass(frozen=True)
class Replay:
    """How often the same came back."""

    run: str
    times: int
    same: int
    verdicts: dict[str, int]
    seconds: tuple[float, ...]
    """Of each play, judging included, without the start of the broker."""
    start_s: float
    """Of the start of the broker, and of whatever else the scenario has in its stack: once for all plays."""
    different: tuple[str, ...]
    """Run directories of plays that came to something else."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "times": self.times,
            "same": self.same,
            "verdicts": self.verdicts,
            "seconds": list(self.seconds),
            "start_s": self.start_s,
            "different": list(self.different),
        }


def stored_scenario(run_dir: Path) -> Scenario:
    """The scenario of a run of consumers, as it was run. Raises `UsageError` for one that cannot be replayed."""
    document = read_document(run_dir)
    stored = dict(document["scenario"])
    if not (stored.get("pipeline") or {}).get("consumers"):
        raise UsageError(
            f"{run_dir} is a run of a Spark job, which replay does not repeat yet",
            hint=f"onceproof run {stored.get('name', 'SCENARIO')} runs it again, with seed {document.get('seed', 0)}",
        )
    try:
        chaos = [consumer_faults.get(spec["fault"]).Spec.model_validate(spec) for spec in stored.get("chaos") or []]
        oracle = oracles.get(stored["oracle"]["kind"]).Spec.model_validate(stored["oracle"])
        frame = Scenario.model_validate({**stored, "chaos": [], "oracle": {"kind": stored["oracle"]["kind"]}})
    except (KeyError, TypeError, ValueError) as error:
        raise HistoryError(f"the scenario in {run_dir / 'run.json'} cannot be used: {error}") from error
    return frame.model_copy(update={"chaos": chaos, "oracle": oracle})


def playable(run_dir: Path) -> Scenario:
    """The scenario of a run that can be played again and compared with. Raises `UsageError` and `HistoryError`."""
    scenario = stored_scenario(run_dir)
    _must_be_whole(run_dir)
    for secret in scenario.pipeline.secrets:
        if secret not in os.environ:
            raise UsageError(
                f"secret {secret!r}: no environment variable of that name is set",
                hint=f"export {secret}=... before the replay",
            )
    return scenario


def replay(run_dir: Path, *, times: int, tell: Say) -> Replay:
    """Play the schedule of ``run_dir`` ``times`` times. Raises as a run does, and `HistoryError` for a run without a history."""
    scenario = playable(run_dir)
    with private_files(), hiding(of_environment(scenario.pipeline.secrets)):
        return _replay(run_dir, scenario, times, tell)


def _replay(run_dir: Path, scenario: Scenario, times: int, tell: Say) -> Replay:
    wanted = _result(run_dir, judge(run_dir))
    here = Path(str(read_document(run_dir).get("scenario_path", run_dir))).resolve().parent
    folder = run_dir / "replays"
    verdicts: Counter[str] = Counter()
    seconds: list[float] = []
    different: list[str] = []
    start = services.fetched(scenario)
    with Owner() as owner:
        began = time.monotonic()
        broker = start_broker(start, owner, run_dir / "logs" / "replay")
        start_s = round(time.monotonic() - began, 3)
        run_files.remove(folder)  # of an earlier replay: worth keeping until this one can be
        for number in range(1, times + 1):
            began = time.monotonic()
            directory = RunDir.below(folder / f"{number:04d}")
            try:
                play_once(scenario, here, broker, directory, number)
                verdict = judge(directory.path)
            except Interrupted:
                with uninterrupted("removing the replay that did not end"):  # half a play says nothing
                    shutil.rmtree(directory.path if different else folder)
                raise
            result = _result(directory.path, verdict)
            seconds.append(round(time.monotonic() - began, 3))
            verdicts[verdict.outcome.value] += 1
            if result == wanted:
                shutil.rmtree(directory.path)
            else:
                write_verdict(directory.path, verdict)
                different.append(str(directory.path))
            said = "the same" if result == wanted else f"NOT the same: {directory.path}"
            tell(f"replay {number} of {times}: {verdict.outcome.value}, {said} ({seconds[-1]:.1f} s)")
    if not different:
        shutil.rmtree(folder, ignore_errors=True)
    same = times - len(different)
    return Replay(str(run_dir), times, same, dict(verdicts), tuple(seconds), start_s, tuple(different))


def start_broker(start: services.Start, owner: Owner, folder: Path) -> Broker:
    """The broker of all plays; its logs go below ``folder``."""
    run_files.fresh_folder(folder)
    (folder / "logs").mkdir()
    timeline = Timeline(folder / "events.jsonl")
    try:
        broker = start(owner, folder, timeline)
        if isinstance(broker, WarmsUp):
            broker.warm_up()
        return broker
    finally:
        timeline.close()


def _must_be_whole(run_dir: Path) -> None:
    """Raises `HistoryError` for a run that ended before its history was written: there is nothing to come to again."""
    document = read_document(run_dir)
    if document.get("observed") is True:
        return
    (why,) = unobserved(run_dir, document).reasons
    raise HistoryError(
        f"{run_dir} has no whole history to compare a replay with: {why}",
        hint="run the scenario again, and replay that run",
    )


def play_once(scenario: Scenario, here: Path, broker: Broker, directory: RunDir, number: int) -> None:
    """Play the schedule on a broker that is up, and leave a whole history in ``directory``; ``number`` keeps its queues apart."""
    timeline = Timeline(directory.events)
    try:
        execution = Execution(scenario, here / f"{scenario.name}.yaml", directory, timeline, number=number)
        execute(execution, lambda *_: broker)
    finally:
        timeline.close()


def _result(run_dir: Path, verdict: Verdict) -> Result:
    rows = pq.read_table(run_dir / "history" / "output.parquet", columns=["output", "content"]).to_pylist()
    return Result(
        verdict.outcome,
        tuple(sorted((f.anomaly, f.output, f.total) for f in verdict.findings if f.violates)),
        tuple(fault.hit for fault in verdict.faults),
        tuple((row["output"], row["content"] or "") for row in rows),
    )


def as_text(done: Replay) -> str:
    counted = ", ".join(f"{outcome} {count}" for outcome, count in sorted(done.verdicts.items()))
    slowest, typical = max(done.seconds), sorted(done.seconds)[len(done.seconds) // 2]
    lines = [
        f"{done.same} of {done.times} replays came to the same findings ({counted})",
        f"a replay took {typical:.1f} s, the longest {slowest:.1f} s",
    ]
    return "\n".join([*lines, *(f"not the same: {path}" for path in done.different)])
