"""onceproof: an exactly-once fault-tolerance test harness for PySpark streaming pipelines.

The public names of docs/python-api.md. Each is imported when it is first used, so that ``import onceproof`` is quick.
"""

import sys

TYPE_CHECKING = False  # type checkers know this name; importing it from `typing` would take most of the time
if TYPE_CHECKING:
    from types import ModuleType

    # Written by `python tools/generate.py`, from `_DEFINED_IN` below and the registered faults.
    from onceproof.api.faults import AbortedInput as AbortedInput
    from onceproof.api.faults import AddPartitions as AddPartitions
    from onceproof.api.faults import Bandwidth as Bandwidth
    from onceproof.api.faults import CheckpointDamage as CheckpointDamage
    from onceproof.api.faults import Crash as Crash
    from onceproof.api.faults import CrashAtFrame as CrashAtFrame
    from onceproof.api.faults import Cut as Cut
    from onceproof.api.faults import DiskFull as DiskFull
    from onceproof.api.faults import Failover as Failover
    from onceproof.api.faults import Fence as Fence
    from onceproof.api.faults import LateCommit as LateCommit
    from onceproof.api.faults import Latency as Latency
    from onceproof.api.faults import LateRequest as LateRequest
    from onceproof.api.faults import LeaderCrash as LeaderCrash
    from onceproof.api.faults import LostAck as LostAck
    from onceproof.api.faults import LostPut as LostPut
    from onceproof.api.faults import LostRequest as LostRequest
    from onceproof.api.faults import Partition as Partition
    from onceproof.api.faults import Poison as Poison
    from onceproof.api.faults import RecreateTopic as RecreateTopic
    from onceproof.api.faults import Reject as Reject
    from onceproof.api.faults import RejectedPut as RejectedPut
    from onceproof.api.faults import ReplicaLag as ReplicaLag
    from onceproof.api.faults import Retention as Retention
    from onceproof.api.faults import Rewind as Rewind
    from onceproof.api.faults import Slow as Slow
    from onceproof.api.faults import SlowPut as SlowPut
    from onceproof.api.faults import Stall as Stall
    from onceproof.api.faults import Stop as Stop
    from onceproof.api.faults import Upgrade as Upgrade
    from onceproof.api.faults import fault as fault
    from onceproof.api.histories import import_history as import_history
    from onceproof.api.qualification import qualify as qualify
    from onceproof.api.runs import Run as Run
    from onceproof.api.runs import check as check
    from onceproof.api.runs import run as run
    from onceproof.api.scenarios import load as load
    from onceproof.api.strategies import schedules as schedules
    from onceproof.base.errors import EnvironmentProblem as EnvironmentProblem
    from onceproof.base.errors import HistoryError as HistoryError
    from onceproof.base.errors import Interrupted as Interrupted
    from onceproof.base.errors import OnceproofError as OnceproofError
    from onceproof.base.errors import ScenarioError as ScenarioError
    from onceproof.base.errors import UsageError as UsageError
    from onceproof.base.version import __version__ as __version__
    from onceproof.judge.findings import BatchReport as BatchReport
    from onceproof.judge.findings import FaultReport as FaultReport
    from onceproof.judge.findings import Finding as Finding
    from onceproof.judge.findings import Outcome as Outcome
    from onceproof.judge.findings import Verdict as Verdict
    from onceproof.judge.findings import Witness as Witness
    from onceproof.qualify.cells import Cell as Cell
    from onceproof.qualify.session import Qualification as Qualification
    from onceproof.scenario.base import AnyFaultSpec as AnyFaultSpec
    from onceproof.scenario.model import Scenario as Scenario
    from onceproof.scenario_files.load import LoadedScenario as LoadedScenario
    from onceproof.stack.sharing.shared import SharedStack as SharedStack

else:
    ModuleType = type(sys)

#: Public name -> the module that defines it. The kinds of faults are in `onceproof.api.faults`, one per registered name.
_DEFINED_IN = {
    "AnyFaultSpec": "scenario.base",
    "BatchReport": "judge.findings",
    "Cell": "qualify.cells",
    "EnvironmentProblem": "base.errors",
    "FaultReport": "judge.findings",
    "Finding": "judge.findings",
    "HistoryError": "base.errors",
    "Interrupted": "base.errors",
    "LoadedScenario": "scenario_files.load",
    "OnceproofError": "base.errors",
    "Outcome": "judge.findings",
    "Qualification": "qualify.session",
    "Run": "api.runs",
    "Scenario": "scenario.model",
    "ScenarioError": "base.errors",
    "SharedStack": "stack.sharing.shared",
    "UsageError": "base.errors",
    "Verdict": "judge.findings",
    "Witness": "judge.findings",
    "__version__": "base.version",
    "check": "api.runs",
    "fault": "api.faults",
    "import_history": "api.histories",
    "load": "api.scenarios",
    "qualify": "api.qualification",
    "run": "api.runs",
    "schedules": "api.strategies",
}


class _Package(ModuleType):
    """This package. The import system sets each submodule as an attribute: `run` and `qualify` must not hide the functions."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _DEFINED_IN and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker must report an unknown name

    def __getattr__(name):
        if name in _DEFINED_IN:
            from importlib import import_module

            return vars(import_module(f"onceproof.{_DEFINED_IN[name]}"))[name]
        if name[:1].isupper():
            from onceproof.api.faults import kind_named

            if (kind := kind_named(name)) is not None:
                return kind
        raise AttributeError(f"module 'onceproof' has no attribute {name!r}")

    def __dir__():
        from onceproof.api.faults import class_names

        return sorted({*_DEFINED_IN, *class_names()})
