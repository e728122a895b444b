"""``plan``: what a run of a scenario would do."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Any

from onceproof.base.words import times
from onceproof.cli.show.layout import hanging
from onceproof.cli.show.validate import warning_lines
from onceproof.kinds.contract import kind_of
from onceproof.scenario_files.load import load_file, warnings
from onceproof.scenario_files.plan import Plan, plan
from onceproof.scenario_files.shipped import find
from onceproof.stack.profiles import profile_of


def planned(name: str, as_json: bool, stack: str | None = None) -> str:
    loaded = load_file(find(name), None if stack is None else profile_of(stack), runs=False)
    the_plan = plan(loaded.scenario, loaded.profile)
    found = warnings(loaded)
    if as_json:
        return json.dumps({**the_plan.to_json(), "warnings": [asdict(warning) for warning in found]})
    micro_batches = kind_of(loaded.scenario).micro_batches
    return "\n".join([_plan_text(the_plan, micro_batches=micro_batches), *warning_lines(found)])


def _plan_text(plan: Plan, *, micro_batches: bool) -> str:
    blocks = [f"{plan.scenario}: what a run would do; nothing was started"]
    if plan.about:
        blocks.append(hanging("about", " ".join(plan.about.split())))
    blocks += (
        [hanging("base", f"{plan.base}, merged in (print all of it: onceproof validate --resolved)")]
        if plan.base is not None
        else []
    )
    blocks += [hanging("stack", "; ".join(plan.stack))]
    for fed in plan.input:
        parts = times(fed.partitions, "partition" if micro_batches else "queue")
        text = f"{times(fed.records, 'record')} of {fed.dataset} into {fed.topic} ({parts})"
        blocks.append(hanging("input", text + (f", in {fed.chunks} chunks" if micro_batches else "")))
    if micro_batches:
        blocks.append(hanging("batches", _batches(plan.guaranteed_batches)))
    if plan.consumers:
        blocks.append(hanging("consumers", _pairs(plan.consumers)))
    blocks += [hanging("there", sentence) for sentence in plan.external]
    blocks += [hanging("prepare", "; ".join(plan.prepare))] if plan.prepare else []
    # On one line, however long, so that it can be copied.
    blocks.append(f"{'job':<11} {shlex.join(plan.command)}")
    for number, fault in enumerate(plan.faults, start=1):
        query = f" of {fault.query}" if fault.query else ""
        settings = f" ({_pairs(fault.settings)})" if fault.settings else ""
        where = fault.point if fault.batch is None else f"batch {fault.batch}{query} @ {fault.point}"
        what = f"{fault.fault} {fault.target}{settings}, {where}"
        blocks += [
            hanging(f"fault {number}", what),
            hanging("", f"{fault.placement.exactness}, by {fault.placement.instrument}: {fault.placement.why}"),
            hanging("", f"proof of the hit: {fault.placement.proof}"),
        ]
    for output in plan.outputs:
        ignored = f", ignored {', '.join(output.ignore)}" if output.ignore else ""
        text = f"{output.name}: {output.where}, identity {', '.join(output.identity)}{ignored}"
        own = f"; claims {_pairs(output.claim)}" if output.claim != plan.claim else ""
        blocks.append(hanging("output", text + own))
    blocks += [
        hanging("oracle", plan.oracle),
        hanging("checkers", ", ".join(plan.checkers)),
        hanging("claim", _pairs(plan.claim)),
        hanging("expect", ", ".join([plan.expect["verdict"], *plan.expect["anomalies"]])),
    ]
    return "\n".join(blocks)


def _batches(sure: int) -> str:
    """The batches at which a fault can be placed."""
    if sure == 1:
        return "none at which a fault can be placed: only batch 0 is certain, and it is nearly always empty"
    which = "1" if sure == 2 else f"1 to {sure - 1}"
    return f"{which}, at which faults can be placed: every run reaches them with data; 0 is nearly always empty"


def _pairs(values: dict[str, Any]) -> str:
    """Settings as text, without those that are empty."""
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items() if value not in (None, [], {}))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_pairs(value)})"
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
