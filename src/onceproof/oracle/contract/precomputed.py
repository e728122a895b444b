"""Expectations that code computed at the end of a run. They are stored with the history, so that judging runs none of that code.

What the oracle expects of an output is in ``history/expected/OUTPUT.parquet`` (the name percent-encoded), one row per effect,
with columns as an oracle's query gives them. ``run.json`` has ``expectation``: ``kind`` and ``failed``, a text or null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote as percent_encoded

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceproof.base.errors import EnvironmentProblem, NotEvaluated, WaitTimeout
from onceproof.base.masking import masked
from onceproof.base.waiting import wait_until
from onceproof.history.run_record import ExpectationRecord
from onceproof.oracle.contract.expectation import Expectation, ExpectedRows
from onceproof.oracle.contract.inputs import Inputs

if TYPE_CHECKING:
    from onceproof.base.timeline import Timeline
    from onceproof.history.run_directory import RunDir
    from onceproof.scenario.model import Scenario
    from onceproof.stack.processes.owner import Owner

#: The columns of committed input records that an oracle's code gets.
INPUT_COLUMNS = ["topic", "partition", "offset", "key", "value", "timestamp_ms"]

_LAST_LINES = 30
_GROUP_ROWS = 16_384


class OracleFailed(Exception):
    """The oracle's code gave no answer. The message names its place in the scenario, and the reason."""


@dataclass(frozen=True)
class OracleRunner:
    """What an oracle that runs code works with, after the services of the run have been stopped."""

    scenario: Scenario
    directory: RunDir
    owner: Owner
    timeline: Timeline
    environment: Mapping[str, str]
    """The whole environment of the oracle's programs: that of the pipeline's job."""
    values: Mapping[str, str]
    """Template -> value."""
    observe: Callable[[Scenario, Path], RunDir]
    """Runs a scenario on a stack of its own, in that new run directory, without judging it."""
    store_rows: Callable[[Path, Mapping[str, Path]], None]
    """Writes the rows that a reader sees after that run: output -> Parquet file, each column a text. Raises `NotEvaluated`."""

    def run(self, place: str, argv: list[str]) -> None:
        """Run one program to its end. Raises `OracleFailed`, beginning with ``place``, and with the end of its output."""
        limit = self.scenario.limits.deadline_s
        log = self.directory.logs / "oracle.log"
        try:
            service = self.owner.start("oracle", argv, log=log, env=self.environment, cwd=self.owner.scratch)
        except EnvironmentProblem as refused:
            raise OracleFailed(f"{place}: {refused}") from refused
        try:
            wait_until("the oracle to end", lambda: not service.is_running(), deadline_s=limit)
        except WaitTimeout:
            service.kill()
            why = f"it did not end within {limit:g} s (limits.deadline_s)"
            raise OracleFailed(f"{place}: {why}\n{self._end_of(log)}".rstrip()) from None
        code = service.returncode
        service.kill()  # ends what it started as well
        if code != 0:
            raise OracleFailed(f"{place}: it ended with exit code {code}\n{self._end_of(log)}".rstrip())

    def _end_of(self, log: Path) -> str:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        began = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        text = "\n".join((lines[began[-1] :] if began else lines)[-_LAST_LINES:])
        return masked(text)


@runtime_checkable
class PrecomputedOracle(Protocol):
    """An oracle that runs code. It is asked once, at the end of the run, and its answer is stored."""

    def files(self) -> Iterable[tuple[tuple[str | int, ...], str]]:
        """Return the code files that the oracle names: each with its place below ``oracle``, and with its templates."""

    def work_out(self, runner: OracleRunner) -> Mapping[str, Any]:
        """Store what each output must hold (`expected_file`), and return notes for ``run.json``. Raises `OracleFailed`."""


def work_out(oracle: PrecomputedOracle, kind: str, runner: OracleRunner) -> None:
    """Ask the oracle, and record in ``run.json`` whether it answered."""
    failed: str | None = None
    notes: Mapping[str, Any] = {}
    (runner.directory.history / "expected").mkdir(exist_ok=True)
    try:
        notes = oracle.work_out(runner)
    except OracleFailed as failure:
        failed = str(failure)
        runner.timeline.emit("warning", message=failed.splitlines()[0])
    runner.directory.update(expectation=ExpectationRecord(kind=kind, failed=failed, **notes))


def expected_file(run_dir: Path, output: str) -> Path:
    return run_dir / "history" / "expected" / f"{percent_encoded(output, safe='')}.parquet"


def expect(inputs: Inputs) -> Expectation:
    """Return the stored answer: `onceproof.oracle.Oracle.expect` of an oracle that was asked when the run ended."""
    if inputs.view.uncommitted:
        raise NotEvaluated("the oracle was asked only once, about the committed input")
    stored = inputs.run.expectation
    if stored is None:
        raise NotEvaluated("the run ended before its oracle was asked: run the scenario again")
    if stored.failed:
        raise NotEvaluated(stored.failed)
    rows = {}
    for output in inputs.scenario.asked():
        file = expected_file(inputs.history.run_dir, output)
        if not file.is_file():
            raise NotEvaluated(f"what the oracle expects of output {output!r} is missing: there is no {file.name}")
        rows[output] = ExpectedRows(inputs.stored(file))
    return Expectation(rows, stored=True)


def committed_input(run_dir: Path, folder: Path, scenario: Scenario) -> dict[str, Path]:
    """Write the committed records of each input topic to a Parquet file of its own in ``folder``, in bounded memory.

    Returns the file of each topic, by the name that the scenario's file uses.
    """
    topics = dict.fromkeys(spec.topic for spec in scenario.input)
    files = {topic: folder / f"input-{percent_encoded(topic, safe='')}.parquet" for topic in topics}
    with pq.ParquetFile(run_dir / "history" / "input.parquet") as stored:
        schema = pa.schema([stored.schema_arrow.field(name) for name in INPUT_COLUMNS])
        writers = {topic: pq.ParquetWriter(path, schema, compression="zstd") for topic, path in files.items()}
        try:
            for batch in stored.iter_batches(_GROUP_ROWS, columns=[*INPUT_COLUMNS, "visibility"]):
                committed = batch.filter(pc.equal(batch["visibility"], "committed")).select(INPUT_COLUMNS)
                for topic, writer in writers.items():
                    rows = committed.filter(pc.equal(committed["topic"], topic))
                    if rows.num_rows:
                        writer.write_batch(rows.cast(schema))
        finally:
            for writer in writers.values():
                writer.close()
    return {scenario.known_as(topic): path for topic, path in files.items()}
