"""The warm tier in the harness: starts the services and the session once, then has it execute schedules, several at a time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

import psycopg

from onceproof.base.errors import EnvironmentProblem, HistoryError, OnceproofError, WaitTimeout
from onceproof.base.masking import masked
from onceproof.base.waiting import wait_until
from onceproof.formats.feed import fed_records
from onceproof.history.execution import Execution
from onceproof.history.memory import MemoryTables
from onceproof.history.run_record import OutputRecord
from onceproof.kinds.command import create_inputs, template_values
from onceproof.kinds.contract import kind_of
from onceproof.pipeline import callable_driver
from onceproof.pipeline.feed import Feeder
from onceproof.pipeline.spark_conf import CheckpointFiles, job_environment
from onceproof.scenario.model import DRIVER, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario.templates import fill
from onceproof.stack.api import Stack
from onceproof.stack.processes.owner import Owner, Service
from onceproof.stores.contract import store_of
from onceproof.stores.kafka.read_back import collect_topics
from onceproof.stores.postgres.compartments import Compartments
from onceproof.stores.postgres.store import PostgresStore, tables_of
from onceproof.warm import checkpoint
from onceproof.warm.attempts import Strike
from onceproof.warm.process import READY_S, SessionProcess
from onceproof.warm.separation import checkpoint_problem, shared_value

#: Points at which the session can end an attempt.
POINTS = (
    Point.BEFORE_OFFSET_LOG,
    Point.AFTER_OFFSET_LOG,
    Point.BEFORE_SINK_COMMIT,
    Point.AFTER_SINK_COMMIT,
    Point.AFTER_COMMIT_LOG,
)
AT_ONCE = 8
"""Schedules that the session executes at a time. More are not faster on two cores, and each takes longer."""
#: Characters of an error of the job that are kept.
_LONGEST_ERROR = 2_000
_READ_EVERY = 24
"""Schedules between two reads of the commits."""
_SCHEDULE_S = 120.0


class Unavailable(OnceproofError):
    """The job cannot be warmed. The message is the reason."""

    exit_code = 3


def unavailable(scenario: Scenario) -> str | None:
    """Why the warm tier cannot execute this scenario's pipeline; None if nothing in the scenario speaks against it."""
    pipeline, stack = scenario.pipeline, scenario.stack
    if pipeline.callable is None:
        return "the pipeline is a command: only pipeline.callable can be warmed"
    if stack.spark is not None:
        return "its tasks run on a cluster: the session has only its own cores"
    if stack.object_store is not None:
        return "its checkpoints are in an object store: the session copies local ones"
    if len(scenario.input) > 1:
        return "it reads more than one topic: the session can limit the batches of only one"
    for name, spec in scenario.outputs.items():
        if not isinstance(store_of(spec), PostgresStore):
            return f"output {name} is {store_of(spec).about}: the session can separate only Postgres tables of many schedules"
        if "." in (spec.table or ""):
            return f"output {name} names a schema ({spec.table}): each schedule has a schema of its own"
    return checkpoint_problem(pipeline) or shared_value(pipeline)


def records_per_batch(rows: int, chunks: int, partitions: int) -> int:
    """The most records of a batch with which Spark makes at least as many batches as there are chunks; if it can, no more.

    Spark divides the limit among the partitions. It rounds a share down, so that a batch may lack one record per partition,
    but takes one record of each partition whose share is less. So there may be fewer batches if a partition has records, but
    fewer than there are chunks.
    """
    limit = -(-rows // chunks) + partitions
    most = limit + partitions - 1
    return limit if (chunks - 1) * most < rows else max(1, rows // chunks)


def _shown(error: str) -> str:
    """An error of the job for people: without secrets, its first line, and not too long."""
    return masked(error).partition("\n")[0][:_LONGEST_ERROR]


@dataclass
class Executed:
    """One schedule, as the session executed it."""

    number: int
    strikes: tuple[Strike, ...]
    fired: tuple[float, ...]
    """When each fault struck, in its order, seconds since ``wall_start``; shorter than ``strikes`` if some were not reached."""
    starts: int
    errors: tuple[str, ...]
    """Failures of the job itself, not by a fault."""
    ended: bool
    """Whether the query came to the end of its input."""
    tables: MemoryTables
    outputs: dict[str, OutputRecord]
    wall_start: float
    seconds: float
    query: str
    points: tuple[tuple[float, str, int, int], ...] = ()
    """What it reached: seconds since ``wall_start``, point, batch, start."""
    instruments: frozenset[str] = frozenset()
    open_watermark: bool = False
    gave_up: bool = False
    """Whether the job failed too often in a row after a fault, as for the supervisor of an ordinary run."""
    failed: str | None = None
    """Why the harness could not execute it."""

    @property
    def reached(self) -> bool:
        """Whether every fault struck."""
        return len(self.fired) == len(self.strikes)

    def as_far_as_it_came(self) -> Executed:
        """The execution of the faults that struck, without those that were not reached."""
        return replace(self, strikes=self.strikes[: len(self.fired)])

    def passed(self, missed: Strike) -> bool:
        """Whether the attempt at which ``missed`` was due went on to the end of the batch without that point.

        Only a commit of the sink can be left out so: a sink that knows the batch does not write it again.
        """
        since = self.fired[-1] if self.fired else 0.0
        seen = {point for at, point, batch, _ in self.points if batch == missed.batch and at > since}
        return missed.point is Point.BEFORE_SINK_COMMIT and missed.point not in seen and Point.AFTER_SINK_COMMIT in seen


@dataclass
class _Sent:
    number: int
    strikes: tuple[Strike, ...]
    checkpoint: Path
    at: float
    wall: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        return f"s{self.number:06d}"


class WarmTier:
    """Use it with ``with``. ``execution``: its directory gets the logs; its scenario has the outputs and the input."""

    def __init__(self, execution: Execution, *, last_batch: int, at_once: int = AT_ONCE) -> None:
        self._execution = execution
        self._scenario = execution.scenario
        self._last_batch = last_batch
        self._at_once = at_once
        self._closing = ExitStack()
        self._number = 0
        self.shared = MemoryTables()
        """The tables that all schedules have in common: the input, and the ledger of the feed."""
        self.ends: dict[str, dict[int, int]] = {}
        self.versions: dict[str, Any] = {}
        self._stack: Stack
        self._places: Compartments
        self._session: SessionProcess
        self._template: Path
        self._folder: Path

    def __enter__(self) -> Self:
        """Start everything, and feed the input. Raises `Unavailable`, `EnvironmentProblem`, and as a run does."""
        if (why := unavailable(self._scenario)) is not None:
            raise Unavailable(why)
        try:
            self._start()
            return self
        except BaseException:
            self._closing.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def processes(self) -> tuple[Service, list[Service]]:
        """The session (its JVM and Python), and the services it uses (Kafka, Postgres, proxies)."""
        session = self._session.service
        return session, [service for service in self._owner.services() if service is not session]

    def execute(self, schedules: Iterable[Sequence[Strike]]) -> Iterator[Executed]:
        """Execute schedules; each is yielded some time after it has ended, in any order. Raises `EnvironmentProblem`."""
        waiting: dict[str, _Sent] = {}
        done: list[tuple[_Sent, dict[str, Any], float]] = []
        left = iter(schedules)
        while True:
            # A few more than the session executes at once, so that it never waits for the next one.
            for strikes in islice(left, self._at_once + 2 - len(waiting)):
                sent = self._send(tuple(strikes))
                waiting[sent.name] = sent
            if not waiting and not done:
                return
            if waiting:
                answer = self._answer()
                done.append((waiting.pop(answer["id"]), answer, time.monotonic()))
            if len(done) >= _READ_EVERY or (done and not waiting):
                self._read()
                for sent, answer, ended in done:
                    yield self._executed(sent, answer, ended)
                done.clear()

    # -- start ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        execution, scenario = self._execution, self._scenario
        start = kind_of(scenario).fetch(scenario, survey=False)
        self._owner = self._closing.enter_context(Owner())
        services = start(self._owner, execution.directory.path, execution.timeline)
        self._stack = stack = cast(Stack, services)
        self.versions = dict(stack.versions())
        if stack.checkpoint_jar is None:
            raise Unavailable("the checkpoint file system does not fit this Spark (see `onceproof doctor`)")
        create_inputs(execution, stack)
        assert stack.postgres is not None, "every output is a Postgres table"
        statements = scenario.pipeline.prepare.sql
        self._places = self._closing.enter_context(Compartments(stack.postgres, tables_of(scenario), statements))
        self._folder = self._owner.scratch / "schedules"
        self._folder.mkdir()
        self._start_session()
        self._template = self._make_template()
        self._feed()

    def _start_session(self) -> None:
        execution, stack = self._execution, self._stack
        values = template_values(execution, stack)
        gate = self._owner.scratch / "gate.sock"
        scratch = self._owner.scratch / "session"
        scratch.mkdir()
        assert stack.postgres is not None and stack.checkpoint_jar is not None
        hidden = {"postgres.password": stack.postgres.password}
        pipeline = self._scenario.pipeline
        own = {name: fill(value, {**values, **hidden}) for name, value in pipeline.env.items()}
        # Many short jobs in one JVM on few cores: threads of a parallel collector would only compete with them.
        own["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, ["-XX:+UseSerialGC", own.get("SPARK_SUBMIT_OPTS")]))
        environment = job_environment(
            class_path=stack.spark_class_path,
            archive=stack.spark_archive,
            scratch=scratch,
            passfile=stack.postgres.passfile,
            failpoints=None,
            own=own,
            secrets=pipeline.secrets,
            checkpoint=CheckpointFiles(stack.checkpoint_jar, str(gate)),
        )
        self._session = SessionProcess(self._owner, scratch, execution.directory.logs / "session.log")
        self._closing.callback(self._session.close)
        function = fill(pipeline.callable or "", values)
        (spec,) = self._scenario.input
        records = records_per_batch(spec.rows or 0, spec.chunks, spec.partitions)
        words = [str(gate), function, str(self._at_once), str(self._last_batch), str(records)]
        self._session.start(words, environment)
        self._answer()

    def _make_template(self) -> Path:
        """Run the query once on the empty topic; its plan of batch 0 is where every schedule begins."""
        sent = self._send((), fresh=True)
        answer = self._answer()
        self._read()
        self._executed(sent, answer, time.monotonic(), keep=True)
        if not answer.get("ended"):
            why = _shown(answer.get("failed") or "; ".join(answer["errors"]))
            raise Unavailable(f"the query did not end when its topics were empty: {why}")
        if (why_not := checkpoint.is_template(sent.checkpoint)) is not None:
            raise Unavailable(why_not)
        return sent.checkpoint

    def _feed(self) -> None:
        execution, stack = self._execution, self._stack
        for spec in self._scenario.input:
            records = fed_records(self._scenario, spec, execution.here)
            feeder = Feeder(stack.kafka.harness_client(), records, spec, self.shared, execution.timeline)
            for chunk in range(spec.chunks):
                feeder.send_chunk(chunk)
            feeder.close()
            self.ends[spec.topic] = dict(feeder.ends)
        # No schedule changes the input, so it is read once.
        topics = [spec.topic for spec in self._scenario.input]
        collect_topics(stack.kafka, topics, {}, self.shared, execution.timeline)

    # -- one schedule ---------------------------------------------------------------------------------------------

    def _send(self, strikes: tuple[Strike, ...], *, fresh: bool = False) -> _Sent:
        self._number += 1
        root = self._folder / f"s{self._number:06d}"
        args, where = self._arguments(root, f"s{self._number:06d}")
        sent = _Sent(self._number, strikes, where, time.monotonic())
        self._create(sent.name)
        if fresh:
            root.mkdir()
        else:
            checkpoint.begin_from(self._template, where)
        request = {
            "id": sent.name,
            "checkpoint": str(where),
            "args": args,
            "strikes": [{"batch": s.batch, "point": str(s.point), "attempt": s.attempt} for s in strikes],
            "restarts": self._scenario.limits.restarts,
            "deadline_s": _SCHEDULE_S,
        }
        try:
            self._session.send(request)
        except OSError:
            raise self._died() from None
        return sent

    def _create(self, name: str) -> None:
        """Make the schedule's schema. Raises `Unavailable` if the statements that prepare it cannot be repeated there."""
        try:
            self._places.create(name)
        except EnvironmentProblem as refused:
            # An operational error is not about a statement: the server is gone, or has no room.
            if isinstance(refused.__cause__, psycopg.OperationalError):
                raise
            why = _shown(str(refused.__cause__))
            raise Unavailable(
                f"pipeline.prepare.sql cannot be repeated in a schema of each schedule: {why}"
            ) from refused

    def _read(self) -> None:
        """Read the commits of all schedules. Raises `Unavailable` for a TRUNCATE: it may belong to any of them."""
        try:
            self._places.read()
        except HistoryError as refused:
            raise Unavailable(refused.message) from refused

    def _arguments(self, root: Path, name: str) -> tuple[Mapping[str, Any], Path]:
        """The callable's arguments for this schedule, and its checkpoint."""
        values = template_values(self._execution, self._stack)
        values |= {"checkpoint": str(root), "postgres": self._places.uri(name)}
        values["postgres.jdbc"] = self._places.jdbc_url(name)
        words = [fill(word, values) for word in self._scenario.pipeline.command[len(DRIVER) + 1 :]]
        args = callable_driver.arguments(words)
        return args, Path(str(args[callable_driver.CHECKPOINT]))

    def _executed(self, sent: _Sent, answer: dict[str, Any], ended: float, *, keep: bool = False) -> Executed:
        tables, found = self._places.take(sent.name)
        root = self._folder / sent.name
        # As in an ordinary run, whose root has a name.
        below = sent.checkpoint.relative_to(root)
        query = str(below) if below.parts else self._execution.directory.checkpoint.name
        events = answer.get("events", [])
        failed = _shown(answer["failed"]) if answer.get("failed") else None
        if failed is None:
            tables.append("batches", checkpoint.batch_rows(sent.checkpoint, query, events, sent.wall))
            tables.append("progress", checkpoint.progress_rows(sent.checkpoint, query))
        executed = Executed(
            sent.number,
            sent.strikes,
            tuple(at - sent.wall for at in answer.get("fired", ())),
            answer.get("last_start", -1) + 1,
            tuple(_shown(error) for error in answer.get("errors", ())),
            bool(answer.get("ended")),
            tables,
            {
                name: OutputRecord(columns=o.columns, note=o.note, rows=o.rows, generated=o.generated)
                for name, o in found.items()
            },
            sent.wall,
            round(ended - sent.at, 3),
            query,
            tuple((wall - sent.wall, point, batch, start) for wall, point, batch, start in events),
            frozenset(answer.get("instruments", ())),
            failed is None and checkpoint.open_watermark(sent.checkpoint),
            bool(answer.get("gave_up")),
            failed,
        )
        if not keep:
            checkpoint.remove(root)
        return executed

    # -- answers of the session -----------------------------------------------------------------------------------

    def _answer(self) -> dict[str, Any]:
        answer = self._session.answer(READY_S + _SCHEDULE_S, self._stack.check_health)
        if answer is None:
            raise self._died()
        return answer

    def _died(self) -> OnceproofError:
        with suppress(WaitTimeout):
            wait_until("the session to end", lambda: not self._session.service.is_running(), deadline_s=2)
        if (code := self._session.service.returncode) is not None and code < 0:
            return EnvironmentProblem(
                f"the warm session was killed by {signal.Signals(-code).name}, perhaps for lack of memory",
                hint=f"continue the exploration: onceproof explore --continue; the session's log: {self._session.log}",
            )
        return Unavailable(
            f"the warm session has ended: a job that ends its process cannot be warmed; its log: {self._session.log}"
        )
