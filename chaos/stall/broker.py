"""Stall of a broker or the controller: it is stopped (SIGSTOP) while a batch is open, loses its role, and is continued (SIGCONT)."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.chaos.crash.broker import BrokerAway, BrokerSpec, ControllerAway, ControllerSpec
from onceproof.faults.contract import faults
from onceproof.scenario.model import FaultSpec


class BrokerStallSpec(BrokerSpec):
    fault: Literal["stall"]


@faults.register("stall", "broker")
class BrokerStall(BrokerAway):
    """A broker pauses, and resumes after another one has taken its place."""

    Spec: ClassVar[type[FaultSpec]] = BrokerStallSpec
    about: ClassVar[str] = "SIGSTOP of a broker, then SIGCONT"
    how = "stopped"


class ControllerStallSpec(ControllerSpec):
    fault: Literal["stall"]


@faults.register("stall", "controller")
class ControllerStall(ControllerAway):
    """The controller pauses, and resumes after the batch had time to do without it."""

    Spec: ClassVar[type[FaultSpec]] = ControllerStallSpec
    about: ClassVar[str] = "SIGSTOP of the controller, then SIGCONT"
    how = "stopped"
