"""One run, from scenario to verdict: load, start, feed and break, heal, drain, collect, expect, judge.

Whatever happens, everything is healed and everything started is gone when `run` returns or raises.
"""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq

from onceproof import __version__
from onceproof.base import signals as interrupts
from onceproof.base.errors import EnvironmentProblem, Interrupted, OnceproofError
from onceproof.base.masking import hiding, masked, of_environment
from onceproof.base.signals import interruptible, uninterrupted
from onceproof.base.timeline import Listener, Timeline
from onceproof.consumers import execution as stage
from onceproof.data import datasets, open_dataset
from onceproof.expectation.ask import ask_oracle
from onceproof.expectation.decode import decode_topics
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import reads_frames, strikes_tasks
from onceproof.faults.controller import FaultController
from onceproof.faults.survey import watch
from onceproof.history.run_directory import RunDir, private_files, run_dir_problem
from onceproof.history.run_record import StoredScenario
from onceproof.history.schema import VERSION
from onceproof.history.writer import HistoryWriter
from onceproof.instruments.checkpoint_gate import CheckpointGate
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.failpoints import FailpointServer
from onceproof.judge.findings import Outcome, Verdict
from onceproof.judge.verdict import check, write_verdict
from onceproof.pipeline.drive import FeedLoop
from onceproof.pipeline.feed import Feeder
from onceproof.pipeline.spark_conf import FILE_MANAGER, CheckpointFiles, job_environment
from onceproof.pipeline.supervisor import Pipeline
from onceproof.scenario.model import Scenario
from onceproof.scenario.points import Point
from onceproof.scenario.templates import fill
from onceproof.scenario_files.load import LoadedScenario
from onceproof.stack.api import Stack
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner
from onceproof.stores.contract import ReadBack, collect, jars, store_of

_LAST_HEAL_S = 2.0
"""On the way out of a run that failed or was interrupted: enough for proxies, and within the 10 s in which all must be gone."""
_PAST_THE_GATE = (
    "query {query} writes its checkpoint past onceproof's checkpoint file system: faults are placed by watching its files, "
    f"which may be too late (does the job set {FILE_MANAGER} itself, or run another Spark?)"
)
_DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


@dataclass(frozen=True)
class Result:
    verdict: Verdict
    run_dir: Path


def run(
    loaded: LoadedScenario,
    *,
    runs_dir: Path,
    seed: int | None = None,
    listeners: Sequence[Listener] = (),
    survey: bool = False,
) -> Result:
    """Run one scenario on a stack of its own and judge it. ``survey``: also note what it commits (`onceproof.faults.survey`).

    Raises `EnvironmentProblem` (a service that does not come up, a full disk),
    `Interrupted` on a signal (`onceproof.base.signals`). In each case the run directory, if there is one already, says so.
    """
    scenario = loaded.scenario
    with interruptible(), private_files(), hiding(of_environment(scenario.pipeline.secrets)):
        return _run(scenario, loaded.path, runs_dir, seed, listeners, survey=survey)


def _run(
    scenario: Scenario,
    scenario_path: Path,
    runs_dir: Path,
    seed: int | None,
    listeners: Sequence[Listener],
    *,
    survey: bool,
) -> Result:
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    directory = RunDir.create(runs_dir, scenario.name)
    timeline = Timeline(directory.events)
    for listener in listeners:
        timeline.listen(listener)
    try:
        with _attentive():
            _observe(scenario, scenario_path, directory, timeline, survey=survey)
            ask_oracle(scenario, scenario_path, directory, timeline, observe=_observe)
            timeline.emit("phase", name="judge")
            verdict = replace(check(directory.path), seconds=round(timeline.now(), 3))  # of the run, not of its judge
            write_verdict(directory.path, verdict)
            interrupts.check()
            return Result(verdict, directory.path)
    except Interrupted as interrupted:
        with uninterrupted("noting how the run ended"):
            interrupted.run_dir = directory.path
            _close_book(directory, scenario, timeline, Outcome.INTERRUPTED, "interrupted")
        raise
    except Exception as failure:
        try:
            with uninterrupted("noting how the run ended"):
                problem = _as_problem(failure, directory.path)
                problem.run_dir = directory.path
                _close_book(directory, scenario, timeline, Outcome.ERROR, masked(str(problem)))
        except Interrupted as interrupted:  # it came after the failure, which is what the directory says
            interrupted.run_dir = directory.path
            raise
        if problem is failure:
            raise
        raise problem from failure
    finally:
        timeline.close()


def _observe(scenario: Scenario, path: Path, directory: RunDir, timeline: Timeline, *, survey: bool = False) -> None:
    """Everything that touches live services: from the first process to the last row of history."""
    directory.update(
        schema=VERSION,
        onceproof=__version__,
        scenario=StoredScenario.of(scenario),
        scenario_path=str(path),
        seed=scenario.seed,
        wall_start=timeline.wall_start,
    )
    if scenario.pipeline.consumers is not None:
        stage.observe(scenario, path, directory, timeline)
        return
    timeline.emit("phase", name="fetch")
    fetched = components.ensure()
    fetched = replace(fetched, spark_jars=(*fetched.spark_jars, *jars(scenario)))
    with Owner() as owner, ExitStack() as healing:
        timeline.emit("phase", name="stack")
        frames = survey or reads_frames(scenario.chaos)
        stack = EmbeddedStack.start(scenario.stack, owner, directory.path, fetched, timeline, read_frames=frames)
        if survey and stack.frames is not None:
            watch(stack.frames, timeline)
        directory.update(versions=stack.versions())
        timeline.emit("phase", name="prepare")
        _prepare(scenario, stack, directory)
        writer = healing.enter_context(HistoryWriter(directory.path))
        feeders = [
            Feeder(
                stack.kafka.harness_bootstrap,
                open_dataset(spec.dataset, spec.options, seed=scenario.seed),
                spec,
                writer,
                timeline,
            )
            for spec in scenario.input
        ]
        for feeder in feeders:
            healing.callback(feeder.close)
        controller = FaultController(list(scenario.chaos), timeline, survey=survey)
        with _pipeline(scenario, path, stack, owner, controller, directory, timeline) as (job, watcher):
            drive = FeedLoop(scenario, stack, job, watcher, controller, timeline)
            drive.feed_and_drain(feeders)
        controller.check()
        if stack.frames is not None:
            stack.frames.check()  # what the proxy could not do, or had to refuse, since the drive last looked
        for feeder in feeders:
            feeder.close()
        stack.check_health()  # what it left undone is not the pipeline's doing
        timeline.emit("phase", name="collect")
        writer.append("batches", _batch_rows(watcher))
        writer.append("progress", _progress_rows(watcher))
        writer.append("faults", controller.rows())
        reading = ReadBack(scenario, stack, writer, timeline)
        outputs = collect(reading)
        stack.check_health()
        directory.update(outputs=outputs, ends=reading.ends, **drive.summary(), seconds=round(timeline.now(), 3))
        timeline.emit("phase", name="stop")
    decode_topics(scenario, path.resolve().parent, directory)
    directory.update(observed=True, seconds=round(timeline.now(), 3), harness_peak_rss_kib=_peak_rss_kib())


def _prepare(scenario: Scenario, stack: Stack, directory: RunDir) -> None:
    """Topics, static tables (as Parquet, for the job and for the oracle), and the scenario's own SQL."""
    for spec in scenario.input:
        stack.kafka.create_topic(spec.topic, spec.partitions)
    prepare = scenario.pipeline.prepare
    for name, topic in prepare.topics.items():
        stack.kafka.create_topic(name, topic.partitions, topic.config)
    for table in prepare.tables:
        source = next(d for _, d in datasets.items() if table in d.tables())
        pq.write_table(source.table(table), directory.tables / f"{table}.parquet")
    if prepare.sql:
        assert stack.postgres is not None, "validated: SQL needs Postgres"
        try:
            with psycopg.connect(
                stack.postgres.client_uri, passfile=str(stack.postgres.passfile), autocommit=True
            ) as connection:
                connection.execute(prepare.sql.encode())
        except psycopg.Error as refused:
            raise EnvironmentProblem(
                f"Postgres refused pipeline.prepare.sql: {refused}",
                hint="the statements run as the pipeline's own user",
            ) from refused


@contextmanager
def _pipeline(
    scenario: Scenario,
    path: Path,
    stack: Stack,
    owner: Owner,
    controller: FaultController,
    directory: RunDir,
    timeline: Timeline,
) -> Iterator[tuple[Pipeline, CheckpointWatcher]]:
    """The job, started and supervised, with its instruments in place before its first instruction."""
    values = _template_values(scenario, path, stack, directory)
    # For the environment alone: the command is in the list of processes.
    hidden = {} if stack.postgres is None else {"postgres.password": stack.postgres.password}
    scratch = owner.scratch / "job"
    scratch.mkdir()
    socket = owner.scratch / "failpoints"
    files = CheckpointFiles(stack.checkpoint_jar, owner.scratch / "checkpoint") if stack.checkpoint_jar else None
    spec = scenario.pipeline
    events = directory.logs / "spark-events" if any(strikes_tasks(fault) for fault in scenario.chaos) else None
    if events is not None:
        events.mkdir(parents=True)
    watcher: CheckpointWatcher

    def committed_batches() -> int:
        return sum(1 for batch in watcher.batches() if batch.committed_at is not None)

    job = Pipeline(
        [fill(word, values) for word in spec.command],
        job_environment(
            class_path=stack.spark_class_path,
            archive=stack.spark_archive,
            scratch=scratch,
            passfile=stack.postgres.passfile if stack.postgres is not None else None,
            failpoints=socket,
            own={name: fill(value, {**values, **hidden}) for name, value in spec.env.items()},
            secrets=spec.secrets,
            checkpoint=files,
            cluster=stack.spark.conf if stack.spark is not None else None,
            events=events,
        ),
        owner=owner,
        timeline=timeline,
        logs=directory.logs,
        cwd=scratch,
        limit=scenario.limits.restarts,
        may_restart=lambda: controller.any_fired,
        progress=committed_batches,
        calm=lambda: controller.quiet,
    )

    past_the_gate: set[str] = set()

    def on_log(query: str, batch: int, point: Point) -> None:
        if gate.serves(query):
            gate.meet(query, batch, point)  # faults strike there; here, the news of what they struck at
        else:
            controller.on_log(query, batch, point)  # before anything else: a fault may have to strike at once
        if point is Point.AFTER_OFFSET_LOG:
            if not gate.serves(query) and query not in past_the_gate:
                past_the_gate.add(query)
                timeline.emit("warning", message=_PAST_THE_GATE.format(query=query))
            timeline.emit("batch.planned", query=query, batch=batch)
        elif point is Point.AFTER_COMMIT_LOG:
            done = watcher.batch(query, batch)
            wrote = controller.wrote(query, batch)
            told = {} if wrote is None else {"wrote": list(wrote)}
            timeline.emit("batch.committed", query=query, batch=batch, records=done.records() if done else 0, **told)

    watcher = CheckpointWatcher(
        directory.checkpoint,
        clock=timeline.now,
        start_of_driver=lambda: job.current_start,
        on_log=on_log,
        expected=spec.queries,
    )
    gate = CheckpointGate(
        owner.scratch / "checkpoint",
        directory.checkpoint,
        wanted=controller.wanted,
        on_point=controller.on_write,
        on_failure=watcher.fail,
    )
    failpoints = FailpointServer(
        socket, clock=timeline.now, on_point=controller.on_point, on_sink_event=controller.on_sink_event
    )
    with ExitStack() as ending:
        ending.callback(watcher.stop)
        watcher.start()
        ending.callback(gate.close)
        gate.start()
        ending.callback(failpoints.close)
        failpoints.start()
        controller.arm(
            FaultContext(stack, job, watcher, timeline, events=events, attempt=gate.attempt, scenario=scenario)
        )
        ending.callback(job.stop)
        job.start()
        try:
            yield job, watcher
        except BaseException:
            controller.heal_briefly(_LAST_HEAL_S)
            raise
        controller.heal_all()  # before the job is stopped: what waits on a cut connection ends sooner once it is healed


def _template_values(scenario: Scenario, path: Path, stack: Stack, directory: RunDir) -> dict[str, str]:
    values = {
        "kafka": stack.kafka.client_bootstrap,
        "checkpoint": str(directory.checkpoint),
        "here": str(path.resolve().parent),
        "python": sys.executable,
    }
    if stack.postgres is not None:
        values |= {"postgres": stack.postgres.client_uri, "postgres.jdbc": stack.postgres.jdbc_url}
        host, _, port = stack.postgres.proxy.listen.rpartition(":")
        values |= {"postgres.host": host, "postgres.port": port}
        values |= {"postgres.user": stack.postgres.user, "postgres.database": stack.postgres.database}
        values["postgres.driver"] = str(stack.postgres_driver)
    if stack.spark is not None:
        values["spark.master"] = stack.spark.master_url
    values |= {f"topic.{name}": name for name in scenario.topics()}
    values |= {f"output.{name}": store_of(spec).address(spec, stack) for name, spec in scenario.outputs.items()}
    values |= {f"table.{name}": str(directory.tables / f"{name}.parquet") for name in scenario.pipeline.prepare.tables}
    return values


def _batch_rows(watcher: CheckpointWatcher) -> Iterator[dict[str, Any]]:
    for batch in watcher.batches():
        for topic, partitions in batch.ends.items():
            for partition, end in partitions.items():
                yield {
                    "query": batch.query,
                    "batch": batch.batch,
                    "topic": topic,
                    "partition": partition,
                    "start_offset": batch.starts.get(topic, {}).get(partition, 0),
                    "end_offset": end,
                    "watermark_ms": batch.watermark_ms,
                    "planned_at": batch.planned_at,
                    "planned_by": batch.planned_by,
                    "committed_at": batch.committed_at,
                    "committed_by": batch.committed_by,
                }


def _progress_rows(watcher: CheckpointWatcher) -> Iterator[dict[str, Any]]:
    last = {b.query: b.batch for b in watcher.batches() if b.committed_at is not None}
    for query, topics in watcher.progress().items():
        for topic, partitions in topics.items():
            for partition, end in partitions.items():
                yield {
                    "query": query,
                    "batch": last[query],
                    "topic": topic,
                    "partition": partition,
                    "end_offset": end,
                }


@contextmanager
def _attentive() -> Iterator[None]:
    """Let Python's threads take turns every half millisecond instead of every five.

    Between the creation of ``commits/N``'s temporary file and its rename lie some 30 ms, and on its way from the file event
    to the kill the watcher's thread has to wait for its turn several times.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _close_book(directory: RunDir, scenario: Scenario, timeline: Timeline, outcome: Outcome, why: str) -> None:
    """Leave a run directory that says how the run ended, as far as it can still be written."""
    timeline.emit("phase", name="stopped", outcome=str(outcome), why=why)
    seconds = round(timeline.now(), 3)
    try:
        if not directory.run.observed:  # a judge that fails leaves a whole history: check can try again
            directory.update(interrupted=outcome is Outcome.INTERRUPTED, error=why, seconds=seconds)
        verdict = Verdict(
            scenario=scenario.name,
            outcome=outcome,
            claim=scenario.claim.model_dump(mode="json"),
            reasons=(why,),
            seed=scenario.seed,
            seconds=seconds,
        )
        write_verdict(directory.path, verdict)
    except OSError:
        return  # the disk that failed is the reason why we are here, and the caller says so


def _as_problem(failure: Exception, run_dir: Path) -> OnceproofError:
    """What went wrong, as an error that carries an exit code and, where there is one, the mend."""
    if isinstance(failure, OnceproofError):
        return failure
    if isinstance(failure, OSError) and failure.errno in _DISK_TROUBLE:
        return run_dir_problem(failure, run_dir)
    return EnvironmentProblem(
        f"the harness failed: {type(failure).__name__}: {failure}",
        hint=f"the logs are in {run_dir / 'logs'}; if this machine is in order, it is a defect of onceproof",
    )


def _peak_rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
