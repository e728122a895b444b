"""Crash of one of the two halves of a Spark Connect job: of its client, or of its server, which is the driver.

A client only sends plans to the server and waits for results (SPARK-39375): the query does not need it. The server holds the
query's only copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from onceproof.base.waiting import wait_until
from onceproof.chaos.crash.driver import DriverCrash
from onceproof.faults.context import FaultContext
from onceproof.faults.contract import Occurrence, Placement, Proof, SpecProblem, faults, missed, proven
from onceproof.faults.job import Job, Try
from onceproof.faults.placement import (
    GATED,
    PARKED,
    RESTART_S,
    WATCHED,
    AtItsPoint,
    committed,
    placement_at,
    point_problems,
)
from onceproof.pipeline.connect import CLIENT, SERVER
from onceproof.scenario.model import FaultSpec, Scenario


class ServerCrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["server"]


class ClientCrashSpec(FaultSpec):
    fault: Literal["crash"]
    target: Literal["client"]


@faults.register("crash", "server")
class ServerCrash(DriverCrash):
    """The Connect server and its Python workers die, and its client lives until the job is started again."""

    Spec: ClassVar[type[FaultSpec]] = ServerCrashSpec
    about: ClassVar[str] = "SIGKILL of a Spark Connect server"

    @classmethod
    def problems(cls, spec: FaultSpec, scenario: Scenario) -> list[SpecProblem]:
        return [*point_problems(spec, (*GATED, *WATCHED, *PARKED)), *_needs_connect(scenario)]

    @classmethod
    def tries(cls, job: Job) -> Iterator[Try]:
        """None: for the query it is a crash of the driver."""
        yield from ()

    def _kill(self, context: FaultContext) -> int:
        return context.job.kill_connected(SERVER)


@faults.register("crash", "client")
class ClientCrash(AtItsPoint[ClientCrashSpec]):
    """The client dies. The server completes the batch; a client that starts the query again makes it stop the active run."""

    Spec: ClassVar[type[FaultSpec]] = ClientCrashSpec
    about: ClassVar[str] = "SIGKILL of the client of a Spark Connect server"

    def __init__(self, spec: ClientCrashSpec) -> None:
        self._spec = spec
        self._start = 0
        self._killed: list[int] = []
        self._server: list[int] = []

    @classmethod
    def problems(cls, spec: ClientCrashSpec, scenario: Scenario) -> list[SpecProblem]:
        return [*point_problems(spec, (*GATED, *WATCHED, *PARKED)), *_needs_connect(scenario)]

    @classmethod
    def placement(cls, spec: ClientCrashSpec, scenario: Scenario) -> Placement:
        proof = "its processes are gone, the server's process lives and commits the batch, and a new client was started"
        why = f"the client is killed while the driver is at {spec.at.point} of its batch; the driver runs on"
        return replace(placement_at(spec.at.point, proof, scenario), why=why)

    def strike(self, context: FaultContext, seen: Occurrence) -> None:
        self._killed = [process.pid for process in context.job.connected(CLIENT)]
        self._server = [process.pid for process in context.job.connected(SERVER)]
        self._start = context.job.kill_connected(CLIENT)

    def prove(self, context: FaultContext, seen: Occurrence) -> Proof:
        if not self._killed:
            return missed("the job had no client at that moment")
        evidence = [f"the client was killed (SIGKILL), and is gone: process {self._killed[0]}"]
        wait_until(
            f"batch {seen.batch} to be committed, and a new client",
            lambda: committed(context, seen.query, seen.batch) and context.job.connected(CLIENT),
            deadline_s=RESTART_S,
            explain=lambda: f"clients: {len(context.job.connected(CLIENT))}, driver start {context.job.current_start}",
        )
        left = [process.pid for process in context.job.connected(SERVER)]
        if context.job.restarted_since(self._start) or self._server[:1] != left[:1]:
            return missed(*evidence, "the server ended too")
        evidence.append(f"its server lived on: process {self._server[0]}")
        return proven(*evidence, f"batch {seen.batch} was committed, and a new client was started")


def _needs_connect(scenario: Scenario) -> list[SpecProblem]:
    if scenario.pipeline.connect is not None:
        return []
    return [
        SpecProblem(
            ("target",), "the job is not a client of Spark Connect", "set pipeline.connect, or choose target: driver"
        )
    ]
