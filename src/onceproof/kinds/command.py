"""The kind ``command``: any command that runs Spark queries, fed in chunks, its checkpoint watched, restarted when it exits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from onceproof.base.errors import EnvironmentProblem, UsageError
from onceproof.base.masking import hide
from onceproof.base.timeline import Timeline
from onceproof.data import datasets
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import first_pipeline, needs_proxy, strikes_tasks
from onceproof.faults.controller import FaultController
from onceproof.faults.survey import watch
from onceproof.formats.feed import fed_records
from onceproof.history.execution import Execution
from onceproof.history.writer import HistoryWriter
from onceproof.instruments.checkpoint_watcher import CheckpointWatcher
from onceproof.instruments.instruments import Instruments
from onceproof.kinds.contract import Start, pipelines, stack_services
from onceproof.pipeline.drive import FeedLoop
from onceproof.pipeline.feed import Feeder
from onceproof.pipeline.list_offsets import ListOffsetsHold
from onceproof.pipeline.program import Program
from onceproof.pipeline.schedule import BatchSchedule, WholeJob, hinted_schedules
from onceproof.pipeline.spark_conf import CheckpointFiles, job_environment
from onceproof.pipeline.supervisor import Pipeline
from onceproof.pipeline.tiers.kept import Tiers
from onceproof.scenario.model import FaultSpec, Scenario
from onceproof.scenario.schedule import ShrinkHint
from onceproof.scenario.templates import fill
from onceproof.stack.api import Stack
from onceproof.stack.external.profile import StackProfile
from onceproof.stack.external.spark import exposure
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner
from onceproof.stack.profiles import provider_of
from onceproof.stack.sharing.shared import SharedStack, StackRequest
from onceproof.stores.contract import ReadBack, collect, jars, serve, store_of
from onceproof.stores.postgres.store import tables_of

if TYPE_CHECKING:
    from onceproof.pipeline.image import JobImage

_LAST_HEAL_S = 2.0
"""At the end of a run that failed or was interrupted: enough for proxies, and within the 10 s in which everything must be
stopped."""


@pipelines.register("command")
class Command:
    """Any command that runs Spark queries. onceproof sees their batches from outside, at the checkpoint."""

    fault_label: ClassVar[str] = ""
    micro_batches: ClassVar[bool] = True
    has_picture: ClassVar[bool] = False
    runs_oracle_code: ClassVar[bool] = True
    repeats_exactly: ClassVar[bool] = False
    shares_services: ClassVar[bool] = False

    def services(self, scenario: Scenario) -> tuple[str, ...]:
        return stack_services(scenario.stack)

    def whole(self, scenario: Scenario) -> WholeJob:
        return WholeJob(scenario)

    def hinted_schedules(
        self, whole: WholeJob, run_dir: Path, hints: Sequence[Sequence[ShrinkHint]]
    ) -> Iterator[BatchSchedule]:
        batches = [{hint.batch for hint in of if hint.batch is not None} for of in hints]
        return hinted_schedules(whole.schedule, batches)

    def fetch(
        self,
        scenario: Scenario,
        *,
        survey: bool = False,
        profile: StackProfile | None = None,
        shared: SharedStack | None = None,
    ) -> Start:
        if profile is None and scenario.stack.provider == "external":
            raise UsageError(
                "the run used an external stack, and run.json does not store how to reach it",
                hint="run its scenario again: onceproof run SCENARIO --stack NAME",
            )
        # First: a user should not learn only after minutes of fetching that nothing answers there.
        if profile is not None:
            provider_of(profile).check(profile)
        if scenario.pipeline.image is not None:
            from onceproof.pipeline import image  # with the daemon's client, which few runs need

            image.check(scenario.pipeline.image)
        fetched = components.ensure()
        fetched = replace(fetched, spark_jars=(*fetched.spark_jars, *jars(scenario)))
        program = None
        if scenario.stack.object_store is not None:
            program, s3a = components.ensure_object_store()
            fetched = replace(fetched, spark_jars=(*fetched.spark_jars, *s3a))
        frames = survey or needs_proxy(scenario)
        request = StackRequest(scenario.stack, fetched, program, frames)
        own_spark = scenario.stack.spark is not None and scenario.stack.spark.external

        def start(owner: Owner, folder: Path, timeline: Timeline) -> Stack:
            stack: Stack
            if profile is not None:
                stack = provider_of(profile).start(scenario, profile, owner, folder, fetched, timeline)
            elif shared is not None and not own_spark:
                stack = shared.lend(request, folder / "files", timeline)
            else:
                stack = request.start(owner, folder, timeline)
            if survey and stack.frames is not None:
                watch(stack.frames, timeline, scenario.known_as)
            return stack

        return start

    def prepare(self, execution: Execution, services: Stack, owner: Owner, writer: HistoryWriter) -> SparkJob:
        _prepare(execution, services)
        serve(execution.scenario, services, owner, execution.directory.logs)
        return SparkJob(execution, services, owner, writer)


class SparkJob:
    """Implements `onceproof.kinds.contract.PreparedPipeline`."""

    def __init__(self, execution: Execution, stack: Stack, owner: Owner, writer: HistoryWriter) -> None:
        self._execution = execution
        self._scenario = scenario = execution.scenario
        self._timeline = timeline = execution.timeline
        self._stack = stack
        self._writer = writer
        self._controller = FaultController(scenario.faults(FaultSpec), timeline, survey=execution.survey)
        self._instruments = Instruments(
            execution.directory.checkpoint,
            owner.scratch,
            timeline=timeline,
            listener=self._controller,
            start_of_driver=lambda: self._job.current_start,
            expected=scenario.pipeline.queries,
            frames=stack.frames,
            store=stack.object_store,
            host=stack.spark.conf.gate_host if stack.spark is not None else None,
        )
        self._watcher = self._instruments.watcher
        strikes = any(strikes_tasks(fault) for fault in scenario.faults(FaultSpec))
        self._events = execution.directory.logs / "spark-events" if strikes else None
        self._deleted_input: list[pa.RecordBatch] = []
        self._job = self._supervised(owner)
        self._feeders = [
            Feeder(
                stack.kafka.harness_client(),
                fed_records(scenario, spec, execution.here),
                spec,
                writer,
                timeline,
            )
            for spec in scenario.input
        ]
        hold = None
        if stack.frames is not None and len(scenario.input) > 1:
            hold = ListOffsetsHold(
                stack.frames.board("kafka"), {spec.topic: spec.partitions for spec in scenario.input}
            )
        self._loop = FeedLoop(
            scenario, stack, self._job, self._watcher, self._controller, timeline, self._instruments.modes, hold
        )

    def _supervised(self, owner: Owner) -> Pipeline:
        """The job, with an environment that leads it to the services and to the instruments."""
        execution, stack, spec = self._execution, self._stack, self._scenario.pipeline
        values = template_values(execution, stack)
        if (spark := self._scenario.stack.spark) is not None and (warning := exposure(spark)) is not None:
            self._timeline.emit("warning", message=warning)
        # For the environment only: every user of the machine can read the command in the list of processes.
        store = stack.object_store
        hidden = {} if stack.postgres is None else {"postgres.password": stack.postgres.password}
        scratch = owner.scratch / "job"
        scratch.mkdir()
        jar, gate = stack.checkpoint_jar, self._instruments.gate
        if gate.secret is not None:
            hide(gate.secret)
        image = self._image(owner)
        if self._events is not None:
            self._events.mkdir(parents=True)

        def program(scenario: Scenario) -> Program:
            own = {name: fill(value, {**values, **hidden}) for name, value in scenario.pipeline.env.items()}
            env = job_environment(
                class_path=stack.spark_class_path,
                archive=stack.spark_archive if image is None else None,
                scratch=scratch,
                passfile=stack.postgres.passfile if stack.postgres is not None else None,
                failpoints=self._instruments.failpoint_socket,
                own={**(store.environment if store is not None else {}), **own},
                secrets=spec.secrets,
                checkpoint=CheckpointFiles(jar, gate.address, gate.secret, hurried=spec.trigger == "fast")
                if jar
                else None,
                cluster=stack.spark.conf if stack.spark is not None else None,
                events=self._events,
                defaults=store.settings() if store is not None else {},
                image=image is not None,
            )
            return Program([fill(word, values) for word in scenario.job_command()], env)

        job, older = program(self._scenario), first_pipeline(self._scenario)
        real = "its tasks run on a cluster" if stack.spark is not None else None
        if older is not None:
            real = "a kept JVM would have the settings of the version before the upgrade"
        return Pipeline(
            job.command,
            job.env,
            owner=owner,
            timeline=self._timeline,
            logs=execution.directory.logs,
            cwd=scratch,
            limit=self._scenario.limits.restarts,
            may_restart=lambda: self._controller.any_fired,
            progress=self._instruments.committed_batches,
            calm=lambda: self._controller.quiet,
            # A container starts its JVM by itself.
            tiers=Tiers(execution.tier, owner.scratch / "jvm", self._instruments.gate, never=real)
            if image is None
            else None,
            image=image,
            first=None if older is None else program(self._scenario.model_copy(update={"pipeline": older})),
        )

    def _image(self, owner: Owner) -> JobImage | None:
        """The image in whose containers the job runs."""
        execution, name = self._execution, self._scenario.pipeline.image
        if name is None:
            return None
        from onceproof.pipeline.image import JobImage
        from onceproof.stack.compose.daemon import address

        if execution.tier == "kept":
            message = "tier kept is not used, every kill is real: the job runs in a container"
            self._timeline.emit("warning", message=message)
        owner.uses_daemon(address())
        # For `{here}`: the folder of the scenario, and that of the shipped ones, on which it may be based.
        code = [execution.here, Path(str(files("onceproof"))) / "scenarios"]
        found = JobImage(name, owner.run_id, [execution.directory.path], [*code, components.cache_folder()])
        owner.push(found.remove)
        return found

    @contextmanager
    def start(self) -> Iterator[None]:
        context = FaultContext(
            self._stack,
            self._job,
            self._watcher,
            self._timeline,
            events=self._events,
            attempt=self._instruments.gate.attempt,
            modes=self._instruments.modes,
            deleted_input=self._deleted_input,
            fill_disk=self._instruments.gate.fill_disk,
            scenario=self._scenario,
        )
        with ExitStack() as ending:
            for feeder in self._feeders:
                ending.callback(feeder.close)
            ending.enter_context(self._instruments)
            self._controller.arm(context)
            ending.callback(self._job.stop)
            self._job.start()
            try:
                yield
            except BaseException:
                self._controller.heal_briefly(_LAST_HEAL_S)
                raise

    def drive(self) -> None:
        self._loop.feed_and_drain(self._feeders)

    def heal(self) -> None:
        """Called before the job is stopped: a job that waits on a cut connection ends sooner once the fault is healed."""
        self._controller.heal_all()

    def collect(self) -> None:
        self._controller.check()
        self._instruments.check()  # what the proxy could not do, or had to refuse, since the feed loop last checked
        self._stack.check_health()  # the pipeline is not to blame for what a dead service left undone
        self._execution.phase("collect")
        self._writer.append("batches", _batch_rows(self._watcher))
        self._writer.append("progress", _progress_rows(self._watcher))
        self._writer.append("faults", self._controller.rows())
        for deleted in self._deleted_input:  # before the rest: rows are in offset order within a partition
            self._writer.append("input", deleted)
        reading = ReadBack(self._scenario, self._stack, self._writer, self._timeline)
        outputs = collect(reading)
        self._stack.check_health()
        self._execution.directory.update(
            outputs=outputs,
            ends=reading.ends,
            **self._loop.summary(),
            triggers=self._instruments.triggers,
            modes=self._instruments.modes,
            seconds=self._execution.seconds(),
        )


def create_inputs(execution: Execution, stack: Stack) -> None:
    """Create topics and static tables (as Parquet, for the job and for the oracle)."""
    scenario = execution.scenario
    for spec in scenario.input:
        stack.kafka.create_topic(spec.topic, spec.partitions, spec.config)
    prepare = scenario.pipeline.prepare
    for name, topic in prepare.topics.items():
        stack.kafka.create_topic(name, topic.partitions, topic.config)
    for table in prepare.tables:
        source = next(d for _, d in datasets.items() if table in d.tables())
        pq.write_table(source.table(table), execution.directory.tables / f"{table}.parquet")


def _prepare(execution: Execution, stack: Stack) -> None:
    """Create the inputs, and run the scenario's own SQL."""
    scenario, prepare = execution.scenario, execution.scenario.pipeline.prepare
    create_inputs(execution, stack)
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
    if stack.postgres is not None:
        stack.postgres.capture(set(tables_of(scenario).values()))


def template_values(execution: Execution, stack: Stack) -> dict[str, str]:
    """The values of the templates in the job's command and environment, except the password of the database."""
    scenario, directory = execution.scenario, execution.directory
    values = {
        "kafka": stack.kafka.client_bootstrap,
        "kafka.security": stack.kafka.client_security.protocol,
        "kafka.ca": stack.kafka.client_security.ca,
        "kafka.truststore": stack.kafka.client_security.truststore,
        "checkpoint": str(directory.checkpoint) if stack.object_store is None else stack.object_store.checkpoint,
        "kafka.properties": stack.kafka.client_security.properties,
        "kafka.librdkafka": stack.kafka.client_security.librdkafka,
        "here": str(execution.here),
        "python": sys.executable if scenario.pipeline.image is None else "python3",
    }
    if stack.postgres is not None:
        values |= {"postgres": stack.postgres.client_uri, "postgres.jdbc": stack.postgres.jdbc_url}
        host, _, port = stack.postgres.proxy.listen.rpartition(":")
        values |= {"postgres.host": host, "postgres.port": port}
        values |= {"postgres.user": stack.postgres.user, "postgres.database": stack.postgres.database}
        values["postgres.driver"] = str(stack.postgres_driver)
    if stack.spark is not None:
        values["spark.master"] = stack.spark.conf.master
    values |= {f"topic.{scenario.known_as(name)}": name for name in scenario.topics()}
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
