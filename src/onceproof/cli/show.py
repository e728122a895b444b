"""The texts of the commands that start nothing: ``list``, ``plan``, ``validate``, ``explain``, ``doctor``, ``cleanup``."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from onceproof.base.errors import Problem, UsageError
from onceproof.base.paths import is_folder
from onceproof.base.registry import suggest
from onceproof.base.words import times
from onceproof.cli.options import LISTS
from onceproof.judge.findings import VERDICT_FILE, Verdict
from onceproof.scenario.points import LEFT_BEHIND
from onceproof.scenario_files.library import Entry, Row, entries, rows
from onceproof.scenario_files.load import find, load_all, load_file, resolved, warnings
from onceproof.scenario_files.plan import Plan, plan

_WIDTH = 80
#: If the output is not a terminal: lines of a log may be longer.
_WIDE = 120
#: Room for the name of a row.
_ROW = 20
#: The directory of a run: scenario, time, random letters.
_RUN_NAME = re.compile(r"(.+)-(\d{8}T\d{6})-[0-9a-f]+", re.ASCII)


def listing(what: str, as_json: bool) -> str:
    """The shipped scenarios, or the items of a registry: each name with a description. Raises `UsageError` for another list."""
    _must_be_a_list(what)
    if what == "scenarios":
        return _scenarios(as_json)
    entries = _entries(what)
    if as_json:
        return json.dumps({what: [{"name": name, "about": about} for name, about in entries]})
    return _table(entries) if entries else f"no {what}"


def _must_be_a_list(what: str) -> None:
    if what not in LISTS:
        hint = f"these can be listed: {', '.join(LISTS)}"
        raise UsageError(f"there is no list of {what!r}; {suggest(what, [*LISTS])}", hint=hint)


def listing_of(what: str, name: str, as_json: bool) -> str:
    """The fields of one fault, oracle, data set or store. Raises `UsageError` for an unknown name, or a list without fields."""
    from onceproof.data import datasets
    from onceproof.faults.contract import faults
    from onceproof.kinds.contract import pipelines
    from onceproof.oracle import oracles
    from onceproof.scenario_files.schema import fields
    from onceproof.stores.contract import stores

    _must_be_a_list(what)
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
        hint = f"these have fields: {', '.join(with_fields)}"
        raise UsageError(f"{what} have no fields to list: remove {name!r}", hint=hint)
    found = [entry for entry in with_fields[what] if name in (entry[0], entry[0].partition(" (")[0])]
    if not found:
        near = suggest(name, [each for each, _, _ in with_fields[what]])
        raise UsageError(f"there is no {name!r} among the {what}; {near}", hint=f"list them: onceproof list {what}")
    if as_json:
        return json.dumps(
            {what: [{"name": each, "about": about, "fields": dict(fields(m))} for each, about, m in found]}
        )
    blocks = []
    for each, about, model in found:
        rows = fields(model)
        blocks.append("\n".join([_hanging(each, about, len(each) + 2), _table(rows) if rows else "no fields"]))
    return "\n\n".join(blocks)


def planned(name: str, as_json: bool, stack: str | None = None) -> str:
    from onceproof.kinds.contract import kind_of
    from onceproof.stack.profiles import profile_of

    loaded = load_file(find(name), None if stack is None else profile_of(stack), runs=False)
    the_plan = plan(loaded.scenario, loaded.profile)
    found = warnings(loaded)
    if as_json:
        return json.dumps({**the_plan.to_json(), "warnings": [asdict(warning) for warning in found]})
    micro_batches = kind_of(loaded.scenario).micro_batches
    return "\n".join([_plan_text(the_plan, micro_batches=micro_batches), *_warning_lines(found)])


def validated(given: list[str], as_json: bool) -> str:
    loaded = load_all(given)
    found = [(each.path, warnings(each)) for each in loaded]
    if as_json:
        documents = [asdict(warning) for _, some in found for warning in some]
        return json.dumps({"valid": [str(each.path) for each in loaded], "warnings": documents})
    lines = []
    for path, some in found:
        lines += [f"{path}: valid" + (f", with {times(len(some), 'warning')}" if some else ""), *_warning_lines(some)]
    return "\n".join(lines)


def whole(given: list[str], as_json: bool) -> str:
    """The given scenario as YAML, with its bases merged in. Raises `UsageError` for several, else as `load`."""
    if len(given) != 1:
        raise UsageError(f"--resolved prints one scenario, and {len(given)} are named", hint="name one of them")
    text = resolved(find(given[0]))
    return json.dumps({"resolved": text}) if as_json else text.rstrip("\n")


def _warning_lines(found: Iterable[Problem]) -> list[str]:
    lines = []
    for warning in found:
        lines.append(f"{warning.place}: warning: {warning.message}")
        lines += [] if warning.hint is None else [f"    {warning.hint}"]
    return lines


def explained(name: str | None, as_json: bool) -> str:
    """One anomaly in full, or the list of all. Raises `UsageError` for an unknown name."""
    from onceproof.judge.anomalies import anomalies, anomaly, sections

    if name is None:
        entries = [(one.name, one.meaning) for one in anomalies()]
        if as_json:
            return json.dumps({"anomalies": [{"name": name, "meaning": meaning} for name, meaning in entries]})
        return f"{_table(entries)}\n\nin full: onceproof explain ANOMALY"
    try:
        one = anomaly(name)
    except KeyError:
        near = suggest(name, [each.name for each in anomalies()])
        raise UsageError(f"there is no anomaly {name!r}; {near}", hint="list them: onceproof explain") from None
    if as_json:
        return json.dumps(one.to_json())
    blocks = [one.name]
    for heading, paragraphs in sections(one):
        item = "- " if len(paragraphs) > 1 else ""
        filled = [
            textwrap.fill(
                f"{item}{text}",
                _WIDTH,
                initial_indent="  ",
                subsequent_indent=f"  {' ' * len(item)}",
                break_on_hyphens=False,
            )
            for text in paragraphs
        ]
        blocks.append("\n".join([heading, *filled]))
    return "\n\n".join(blocks)


def examined(as_json: bool) -> tuple[str, bool]:
    """What `onceproof.stack.doctor` found, and whether everything is there."""
    from onceproof.stack.doctor import examine

    checks = examine()
    healthy = all(check.ok for check in checks)
    if as_json:
        return json.dumps({"healthy": healthy, "checks": [asdict(check) for check in checks]}), healthy
    lines = []
    for check in checks:
        lines.append(f"{'ok     ' if check.ok else 'MISSING'}  {check.name}: {check.found}")
        if check.fix and not check.ok:
            lines.append(f"         fix: {check.fix}")
    lines.append("ready to run" if healthy else "not ready: fix what is MISSING above")
    return "\n".join(lines), healthy


def cleaned(dry_run: bool, as_json: bool, stack: str | None = None) -> str:
    """What was removed: from this machine or, with ``stack``, from the services of that profile."""
    if stack is None:
        from onceproof.stack.cleanup import clean_up

        done = clean_up(dry_run=dry_run)
    else:
        from onceproof.stack.external import cleanup
        from onceproof.stack.external.profile import load_profile

        done = cleanup.clean_up(load_profile(stack), dry_run=dry_run)
    if as_json:
        return json.dumps({"dry_run": dry_run, "done": done})
    return "\n".join(done) if done else "nothing was left behind"


def _entries(what: str) -> list[tuple[str, str]]:
    from onceproof.data import datasets
    from onceproof.faults.contract import faults
    from onceproof.judge.checker import checkers
    from onceproof.kinds.contract import pipelines
    from onceproof.oracle import oracles
    from onceproof.oracle.contract.decoders import listed
    from onceproof.reports.report import reports
    from onceproof.stores.contract import stores

    match what:
        case "points":
            return [(point.value, left) for point, left in LEFT_BEHIND.items()]
        case "faults":
            return [
                (f"{name}{kind.fault_label}", "; ".join(fault.about for fault in faults.of(pipeline).all(name)))
                for pipeline, kind in pipelines.items()
                for name in faults.of(pipeline).names()
            ]
        case "checkers":
            return [(name, checker.meaning) for name, checker in checkers.items()]
        case "oracles":
            return [(name, oracle.about) for name, oracle in oracles.items()]
        case "datasets":
            return [(name, dataset.about) for name, dataset in datasets.items()]
        case "stores":
            return [(name, f"{store.field}: {store.about}") for name, store in stores.items()]
        case "decoders":
            return listed()
        case _:
            return [(name, report.about) for name, report in reports.items()]


def _scenarios(as_json: bool) -> str:
    """One line per shipped scenario, grouped by the result that it expects: the anomalies, or held."""
    shown = sorted(entries(), key=lambda one: (one.shows != [], one.shows, one.name))
    if as_json:
        documents = [
            {"name": one.name, "about": one.about, "shows": one.shows, "phenomena": one.phenomena} for one in shown
        ]
        return json.dumps({"scenarios": documents})
    margin = max(len(one.name) for one in shown) + 4
    width = max(_WIDTH, shutil.get_terminal_size((_WIDE, 24)).columns)
    lines = ["The shipped scenarios, by the verdict or the anomalies that a run of each is expected to show."]
    for what, group in itertools.groupby(shown, key=lambda one: one.shows):
        lines += ["", f"{', '.join(what)}:" if what else "held:"]
        for one in group:
            lines.append(f"  {one.name:<{margin - 2}}{textwrap.shorten(one.about, width - margin, placeholder=' ...')}")
    return "\n".join([*lines, "", "in full: onceproof plan NAME; to run one: onceproof run NAME"])


def listing_by_row(what: str, name: str | None, by: str, runs: Path, as_json: bool) -> str:
    """The phenomena: the naive scenarios and the remedies of each, and the last result of each in the folder ``runs``.

    Raises `UsageError` unless ``what`` is the scenarios, without a ``name``, and ``by`` is ``row``.
    """
    if by != "row":
        raise UsageError(f"--by: there is no order {by!r}", hint="onceproof list --by row")
    if what != "scenarios" or name is not None:
        raise UsageError(f"--by row lists scenarios, not {name or what!r}", hint="onceproof list --by row")
    found, last = rows(), _last_results(runs)
    if as_json:
        return json.dumps({"rows": [_row_document(row, last) for row in found]})
    lines = [
        "What the shipped scenarios show: each phenomenon with its naive scenarios, and the remedies under the same fault."
    ]
    for group, members in itertools.groupby(found, key=lambda row: row.phenomenon.group):
        lines += ["", f"{group}:"]
        for row in members:
            lines.append(f"  {row.name:<{_ROW}}{row.phenomenon.title}")
            lines += _scenario_lines("naive", row.naive, last) + _scenario_lines("remedy", row.remedies, last)
            lines += [_hanging(f"{'':<{_ROW}}  not yet", row.case.missing, _ROW + 12)] if row.case.missing else []
    complete = sum(not row.lacks for row in found)
    return "\n".join([*lines, "", f"{complete} of {len(found)} are shown; what happens in each: docs/phenomena.md"])


def _scenario_lines(label: str, scenarios: Sequence[Entry], last: dict[str, Verdict]) -> list[str]:
    return [
        f"{'':<{_ROW}}  {label:<9} {one.name}" + (f" (last run: {_result(last[one.name])})" if one.name in last else "")
        for one in scenarios
    ]


def _row_document(row: Row, last: dict[str, Verdict]) -> dict[str, Any]:
    def listed(scenarios: Sequence[Entry]) -> list[dict[str, Any]]:
        return [{"name": one.name, "last": _result(last[one.name]) if one.name in last else None} for one in scenarios]

    return {
        "row": row.name,
        "group": row.phenomenon.group,
        "title": row.phenomenon.title,
        "about": row.phenomenon.about,
        "limit": row.phenomenon.limit,
        "anomalies": row.case.anomalies,
        "naive": listed(row.naive),
        "remedies": listed(row.remedies),
        "missing": row.case.missing,
    }


def _result(verdict: Verdict) -> str:
    return f"{verdict.word}{': ' if verdict.anomalies() else ''}{', '.join(verdict.anomalies())}"


def _last_results(runs: Path) -> dict[str, Verdict]:
    """Scenario -> the verdict of its newest run in the folder ``runs`` that has one. Only verdicts are read, no history."""
    found = [(match[2], match[1], match[0]) for path in _in_folder(runs) if (match := _RUN_NAME.fullmatch(path.name))]
    newest: dict[str, Verdict] = {}
    for _, scenario, name in sorted(found, reverse=True):
        if scenario not in newest:
            with suppress(OSError, ValueError):  # it was never judged, or by another version
                newest[scenario] = Verdict.from_json(runs / name / VERDICT_FILE)
    return newest


def _in_folder(runs: Path) -> list[Path]:
    return list(runs.iterdir()) if is_folder(runs) else []


def _table(entries: Iterable[tuple[str, str]]) -> str:
    entries = list(entries)
    margin = max(len(name) for name, _ in entries) + 2
    return "\n".join(_hanging(name, about, margin) for name, about in entries)


def _hanging(label: str, text: str, margin: int = 12) -> str:
    """``label`` and next to it the text, wrapped, its lines aligned."""
    return textwrap.fill(
        text or "-",
        _WIDTH,
        initial_indent=f"{label:<{margin - 1}} ",
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plan_text(plan: Plan, *, micro_batches: bool) -> str:
    blocks = [f"{plan.scenario}: what a run would do; nothing was started"]
    if plan.about:
        blocks.append(_hanging("about", " ".join(plan.about.split())))
    blocks += (
        [_hanging("base", f"{plan.base}, merged in (print all of it: onceproof validate --resolved)")]
        if plan.base is not None
        else []
    )
    blocks += [_hanging("stack", "; ".join(plan.stack))]
    for fed in plan.input:
        parts = times(fed.partitions, "partition" if micro_batches else "queue")
        text = f"{times(fed.records, 'record')} of {fed.dataset} into {fed.topic} ({parts})"
        blocks.append(_hanging("input", text + (f", in {fed.chunks} chunks" if micro_batches else "")))
    if micro_batches:
        blocks.append(_hanging("batches", _batches(plan.guaranteed_batches)))
    if plan.consumers:
        blocks.append(_hanging("consumers", _pairs(plan.consumers)))
    blocks += [_hanging("there", sentence) for sentence in plan.external]
    blocks += [_hanging("prepare", "; ".join(plan.prepare))] if plan.prepare else []
    # On one line, however long, so that it can be copied.
    blocks.append(f"{'job':<11} {shlex.join(plan.command)}")
    for number, fault in enumerate(plan.faults, start=1):
        query = f" of {fault.query}" if fault.query else ""
        settings = f" ({_pairs(fault.settings)})" if fault.settings else ""
        where = fault.point if fault.batch is None else f"batch {fault.batch}{query} @ {fault.point}"
        what = f"{fault.fault} {fault.target}{settings}, {where}"
        blocks += [
            _hanging(f"fault {number}", what),
            _hanging("", f"{fault.placement.exactness}, by {fault.placement.instrument}: {fault.placement.why}"),
            _hanging("", f"proof of the hit: {fault.placement.proof}"),
        ]
    for output in plan.outputs:
        ignored = f", ignored {', '.join(output.ignore)}" if output.ignore else ""
        text = f"{output.name}: {output.where}, identity {', '.join(output.identity)}{ignored}"
        own = f"; claims {_pairs(output.claim)}" if output.claim != plan.claim else ""
        blocks.append(_hanging("output", text + own))
    blocks += [
        _hanging("oracle", plan.oracle),
        _hanging("checkers", ", ".join(plan.checkers)),
        _hanging("claim", _pairs(plan.claim)),
        _hanging("expect", ", ".join([plan.expect["verdict"], *plan.expect["anomalies"]])),
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
