"""Checks a scenario against an external stack (``--stack NAME``), and its faults against any external service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onceproof.faults.contract import EXECUTORS, EXECUTORS_NETWORK, needs_control
from onceproof.kinds.contract import kind_of
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint
from onceproof.scenario_files.checks import spark
from onceproof.stack.external.profile import StackProfile


def of_file(stack: object) -> Iterator[Complaint]:
    """What only ``--stack`` may set, and ``stack`` of a scenario file sets."""
    if not isinstance(stack, dict):
        return
    if stack.get("provider") == "external":
        message = "stack.provider: a scenario does not name an external stack, so that it runs everywhere"
        yield Complaint(
            ("stack", "provider"), message, "remove it, describe them in onceproof.toml, and use --stack NAME"
        )
    if stack.get("prefix"):
        yield Complaint(("stack", "prefix"), "stack.prefix is set by --stack NAME alone", "remove it", at_key=True)


def on_spark(scenario: Scenario, profile: StackProfile) -> Scenario:
    """The scenario with the Spark cluster of that stack, if it has one."""
    if profile.spark is None or not kind_of(scenario).micro_batches:
        return scenario
    return scenario.model_copy(update={"stack": scenario.stack.model_copy(update={"spark": profile.spark})})


def complaints(scenario: Scenario, profile: StackProfile) -> Iterator[Complaint]:
    """Why the scenario cannot use that stack at all."""
    if not kind_of(scenario).micro_batches:
        message = f"consumers need services of their own, and --stack {profile.name} names an external stack"
        yield Complaint(("pipeline", "consumers"), message, "run it without --stack", at_key=True)
        return
    if scenario.stack.object_store is not None:
        message = (
            f"the object store is a service of the embedded stack, and --stack {profile.name} names an external one"
        )
        yield Complaint(("stack", "object_store"), message, "run it without --stack", at_key=True)
    if scenario.stack.postgres is not None and profile.postgres is None:
        message = f"the scenario uses Postgres, and [stack.{profile.name}] has none"
        hint = f'add postgres = {{uri = "postgresql://USER@HOST/DATABASE"}} to [stack.{profile.name}]'
        yield Complaint(("stack", "postgres"), message, hint, at_key=True)
    for name, output in scenario.outputs.items():
        tables = {"table": output.table, "progress": output.progress.table if output.progress else None}
        for key, table in tables.items():
            if table is not None and "." in table:
                message = (
                    f"table {table!r} names a schema, but on an external stack all tables are in the run's own schema"
                )
                yield Complaint(("outputs", name, key), message, f"write {table.rpartition('.')[2]!r}")
    if profile.spark is not None:
        yield from spark.complaints(scenario)


@dataclass(frozen=True)
class Lacking:
    """Why a fault is n/a: something must be under control, and is not."""

    what: str
    """Worded to follow "needs control of"."""
    owner: str
    """What does not give that control: a stack, or a Spark cluster."""
    remedy: str


def lacking(spec: AnyFaultSpec, scenario: Scenario, profile: StackProfile | None) -> Lacking | None:
    """What the fault would have to control and cannot, on that stack (None: the run's own services); None if nothing."""
    what = needs_control(spec)
    cluster = scenario.stack.spark
    if what in (EXECUTORS, EXECUTORS_NETWORK) and cluster is not None and cluster.external:
        return Lacking(what, f"Spark {cluster.master}", "remove it, or use a Spark of the run: `spark: {}`")
    if what == EXECUTORS_NETWORK and profile is None:
        return Lacking(what, "the embedded stack", "run the scenario with --stack compose, or use `fault: stall`")
    if what in (None, EXECUTORS) or profile is None or what in profile.controlled:
        return None
    return Lacking(what, f"stack {profile.name}", "remove it, or run the scenario without --stack")


def control(scenario: Scenario, profile: StackProfile | None) -> Iterator[Complaint]:
    """The faults that would need control of what this stack does not control."""
    for index, spec in enumerate(scenario.chaos):
        if (found := lacking(spec, scenario, profile)) is not None:
            message = f"fault {spec.fault} {spec.target} is n/a on {found.owner}: it needs control of {found.what}"
            yield Complaint(("chaos", index, "fault"), message, found.remedy)
