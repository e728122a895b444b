"""The texts of the commands that start nothing: ``list``, ``plan``, ``validate``, ``explain``, ``doctor``, ``cleanup``."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from onceproof.base.errors import Problem, ScenarioError, UsageError
from onceproof.base.registry import suggest
from onceproof.scenario.points import LEFT_BEHIND
from onceproof.scenario_files import document
from onceproof.scenario_files.load import find, load_all, load_file, names, resolved, warnings
from onceproof.scenario_files.plan import Plan, plan

_WIDTH = 80
#: Where the output is no terminal: a line of a log may be longer.
_WIDE = 120


def listing(what: str, as_json: bool) -> str:
    """Names and what each is, of scenarios or of what a registry holds."""
    if what == "scenarios":
        return _scenarios(as_json)
    entries = _entries(what)
    if as_json:
        return json.dumps({what: [{"name": name, "about": about} for name, about in entries]})
    return _table(entries) if entries else f"no {what}"


def listing_of(what: str, name: str, as_json: bool) -> str:
    """The fields of one fault, oracle or data set. Raises `UsageError` for a name that there is not, or a list without fields."""
    from onceproof.data import datasets
    from onceproof.faults.contract import faults
    from onceproof.kinds.contract import pipelines
    from onceproof.oracle import oracles
    from onceproof.scenario_files.schema import fields
    from onceproof.stores.contract import stores

    with_fields: dict[str, list[tuple[str, str, type[BaseModel]]]] = {
        "faults": [
            (f"{each}{kind.fault_label}", fault.about, fault.Spec)
            for pipeline, kind in pipelines.items()
            for each, fault in faults.of(pipeline).items()
        ],
        "oracles": [(each, kind.about, kind.Spec) for each, kind in oracles.items()],
        "datasets": [(each, kind.about, kind.Options) for each, kind in datasets.items()],
        "stores": [(each, store.about, store.Spec) for each, store in stores.items()],
    }
    if what not in with_fields:
        hint = f"fields have: {', '.join(with_fields)}"
        raise UsageError(f"{what} have no fields to list, so {name!r} is one argument too many", hint=hint)
    found = [entry for entry in with_fields[what] if name in (entry[0], entry[0].partition(" (")[0])]
    if not found:
        near = suggest(name, [each for each, _, _ in with_fields[what]])
        raise UsageError(
            f"there is no {name!r} among the {what}; {near}", hint=f"the list of them: onceproof list {what}"
        )
    if as_json:
        return json.dumps(
            {what: [{"name": each, "about": about, "fields": dict(fields(m))} for each, about, m in found]}
        )
    blocks = []
    for each, about, model in found:
        rows = fields(model)
        blocks.append("\n".join([_hanging(each, about, len(each) + 2), _table(rows) if rows else "no fields"]))
    return "\n\n".join(blocks)


def schema_text() -> str:
    from onceproof.scenario_files.schema import schema

    return json.dumps(schema(), indent=2)


def planned(name: str, as_json: bool) -> str:
    from onceproof.kinds.contract import kind_of

    loaded = load_file(find(name))
    told = plan(loaded.scenario)
    doubts = warnings(loaded)
    if as_json:
        return json.dumps({**told.to_json(), "warnings": [asdict(doubt) for doubt in doubts]})
    return "\n".join([_plan_text(told, micro_batches=kind_of(loaded.scenario).micro_batches), *_warning_lines(doubts)])


def validated(given: list[str], as_json: bool) -> str:
    loaded = load_all(given)
    doubts = [(each.path, warnings(each)) for each in loaded]
    if as_json:
        found = [asdict(doubt) for _, some in doubts for doubt in some]
        return json.dumps({"valid": [str(each.path) for each in loaded], "warnings": found})
    return "\n".join(line for path, some in doubts for line in [_valid(path, some), *_warning_lines(some)])


def whole(given: list[str], as_json: bool) -> str:
    """The one scenario that is given, whole: its bases merged in. Raises as `load`."""
    if len(given) != 1:
        raise UsageError(f"--resolved prints one scenario, and {len(given)} are given", hint="give one of them")
    text = resolved(find(given[0]))
    return json.dumps({"resolved": text}) if as_json else text.rstrip("\n")


def _valid(path: Path, doubts: list[Problem]) -> str:
    count = f", with {len(doubts)} warning{'s' if len(doubts) > 1 else ''}" if doubts else ""
    return f"{path}: valid{count}"


def _warning_lines(doubts: Iterable[Problem]) -> list[str]:
    lines = []
    for doubt in doubts:
        lines.append(f"{doubt.place}: warning: {doubt.message}")
        lines += [] if doubt.hint is None else [f"    {doubt.hint}"]
    return lines


def explained(name: str | None, as_json: bool) -> str:
    """One anomaly in full, or the list of them. Raises `UsageError` for a name that no checker has."""
    from onceproof.judge.anomalies import anomalies, anomaly, sections

    if name is None:
        entries = [(one.name, one.meaning) for one in anomalies()]
        if as_json:
            return json.dumps({"anomalies": [{"name": name, "meaning": meaning} for name, meaning in entries]})
        return f"{_table(entries)}\n\nmore of one: onceproof explain NAME"
    try:
        one = anomaly(name)
    except KeyError:
        near = suggest(name, [each.name for each in anomalies()])
        raise UsageError(f"there is no anomaly {name!r}; {near}", hint="the list of them: onceproof explain") from None
    if as_json:
        return json.dumps(one.to_json())
    blocks = [one.name]
    for heading, paragraphs in sections(one):
        item = "- " if len(paragraphs) > 1 else ""
        told = [
            textwrap.fill(
                f"{item}{text}",
                _WIDTH,
                initial_indent="  ",
                subsequent_indent=f"  {' ' * len(item)}",
                break_on_hyphens=False,
            )
            for text in paragraphs
        ]
        blocks.append("\n".join([heading, *told]))
    return "\n\n".join(blocks)


def examined(as_json: bool) -> tuple[str, bool]:
    """What `onceproof.stack.doctor` found, and whether nothing is missing."""
    from onceproof.stack.doctor import examine

    checks = examine()
    healthy = all(check.ok for check in checks)
    if as_json:
        return json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}), healthy
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.ok else 'MISSING'}  {check.name}: {check.found}")
        if check.mend and not check.ok:
            lines.append(f"         fix: {check.mend}")
    lines.append("ready to run" if healthy else "not ready: see what is MISSING above")
    return "\n".join(lines), healthy


def cleaned(dry_run: bool, as_json: bool) -> str:
    from onceproof.stack.cleanup import clean_up

    done = clean_up(dry_run=dry_run)
    if as_json:
        return json.dumps({"dry_run": dry_run, "done": done})
    return "\n".join(done) if done else "nothing was left behind"


def _entries(what: str) -> list[tuple[str, str]]:
    from onceproof.data import datasets
    from onceproof.faults.contract import faults
    from onceproof.judge.checker import checkers
    from onceproof.kinds.contract import pipelines
    from onceproof.oracle import oracles
    from onceproof.reports.report import reports
    from onceproof.stores.contract import stores

    match what:
        case "points":
            return [(point.value, left) for point, left in LEFT_BEHIND.items()]
        case "faults":
            return [
                (f"{name}{kind.fault_label}", fault.about)
                for pipeline, kind in pipelines.items()
                for name, fault in faults.of(pipeline).items()
            ]
        case "checkers":
            return [(name, checker.meaning) for name, checker in checkers.items()]
        case "oracles":
            return [(name, oracle.about) for name, oracle in oracles.items()]
        case "datasets":
            return [(name, dataset.about) for name, dataset in datasets.items()]
        case "stores":
            return [(name, f"{store.field}: {store.about}") for name, store in stores.items()]
        case _:
            return [(name, report.about) for name, report in reports.items()]


def _scenarios(as_json: bool) -> str:
    """One line per shipped scenario, under what it shows: the anomalies that it expects, or that the job holds."""
    shown = sorted(((*_about(name), name) for name in names()), key=lambda one: (one[0] != [], one[0], one[2]))
    if as_json:
        return json.dumps({"scenarios": [{"name": name, "about": about, "shows": what} for what, about, name in shown]})
    margin = max(len(name) for _, _, name in shown) + 4
    width = max(_WIDTH, shutil.get_terminal_size((_WIDE, 24)).columns)
    lines: list[str] = []
    for what, of_group in itertools.groupby(shown, key=lambda one: one[0]):
        lines += ["", f"{', '.join(what)}:" if what else "held, whatever breaks:"]
        for _, about, name in of_group:
            lines.append(f"  {name:<{margin - 2}}{textwrap.shorten(about, width - margin, placeholder=' ...')}")
    return "\n".join([*lines[1:], "", "the whole text of one: onceproof plan NAME"])


def _about(name: str) -> tuple[list[str], str]:
    """What a scenario shows, and what it says of itself. Listing must work where one does not validate (a secret is not set)."""
    try:
        data = document.read(find(name)).data
    except ScenarioError as error:
        return [], f"(does not load: {error.problems[0].message})"
    about = " ".join(str(data.get("about", "")).split())
    expect = data.get("expect") or {}
    verdict = expect.get("verdict", "held")
    return sorted(expect.get("anomalies", [] if verdict == "held" else [verdict])), about


def _table(entries: Iterable[tuple[str, str]]) -> str:
    entries = list(entries)
    margin = max(len(name) for name, _ in entries) + 2
    return "\n".join(_hanging(name, about, margin) for name, about in entries)


def _hanging(label: str, text: str, margin: int = 12) -> str:
    """``label`` and the text beside it, wrapped, its lines under each other."""
    return textwrap.fill(
        text or "-",
        _WIDTH,
        initial_indent=f"{label:<{margin - 1}} ",
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plan_text(told: Plan, *, micro_batches: bool) -> str:
    blocks = [f"{told.scenario}: nothing is started by this"]
    if told.about:
        blocks.append(_hanging("about", " ".join(told.about.split())))
    blocks += (
        [_hanging("base", f"{told.base}, merged in (onceproof validate --resolved prints the whole)")]
        if told.base is not None
        else []
    )
    blocks += [_hanging("stack", "; ".join(told.stack))]
    for fed in told.input:
        parts = "partitions" if micro_batches else "queues"
        text = f"{fed.records:,} records of {fed.dataset} into {fed.topic} ({fed.partitions} {parts})"
        blocks.append(_hanging("input", text + (f", in {fed.chunks} chunks" if micro_batches else "")))
    if micro_batches:
        blocks.append(_hanging("batches", _batches(told.guaranteed_batches)))
    if told.consumers:
        blocks.append(_hanging("consumers", _pairs(told.consumers)))
    blocks += [_hanging("prepare", "; ".join(told.prepare))] if told.prepare else []
    # One line, however long: a command is copied.
    blocks.append(f"{'job':<11} {shlex.join(told.command)}")
    for number, fault in enumerate(told.faults, start=1):
        query = f" of {fault.query}" if fault.query else ""
        settings = f" ({_pairs(fault.settings)})" if fault.settings else ""
        where = fault.point if fault.batch is None else f"batch {fault.batch}{query} @ {fault.point}"
        what = f"{fault.fault} {fault.target}{settings}, {where}"
        blocks += [
            _hanging(f"fault {number}", what),
            _hanging("", f"{fault.placement.exactness}, by {fault.placement.instrument}: {fault.placement.why}"),
            _hanging("", f"it hit if: {fault.placement.proof}"),
        ]
    for output in told.outputs:
        ignored = f", ignoring {', '.join(output.ignore)}" if output.ignore else ""
        text = f"{output.name}: {output.where}, identity {', '.join(output.identity)}{ignored}"
        own = f"; claims {_pairs(output.claim)}" if output.claim != told.claim else ""
        blocks.append(_hanging("output", text + own))
    blocks += [
        _hanging("oracle", told.oracle),
        _hanging("checkers", ", ".join(told.checkers)),
        _hanging("claim", _pairs(told.claim)),
        _hanging("expect", ", ".join([told.expect["verdict"], *told.expect["anomalies"]])),
    ]
    return "\n".join(blocks)


def _batches(sure: int) -> str:
    """The ones at which a fault can be put."""
    if sure == 1:
        return "only 0 is surely reached, and it holds no data: no place for a fault"
    which = "1 is" if sure == 2 else f"1 to {sure - 1} are"
    return f"{which} surely reached, with data; 0 is nearly always empty"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
