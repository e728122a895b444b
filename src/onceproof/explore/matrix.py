"""The result of an exploration as text, as Markdown and as JSON: a matrix of points and batches, with counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from onceproof.base.words import times
from onceproof.explore.exploration import Confirmation, State
from onceproof.explore.result import Exploration
from onceproof.explore.schedules import MOST_FAULTS, text_of
from onceproof.scenario.points import Point

_Z95 = 1.959964
"""The quantile of the normal distribution for 95 %."""
_SHOWN = 12
"""Lines of each list in the text; the JSON has all."""
_EXECUTED = [state for state in State if state is not State.NOT_EXECUTED]
_SAMPLING = (
    f"each schedule has 1 to {MOST_FAULTS} faults, drawn by Hypothesis from all places, without repeating a schedule and without "
    "those that no run can reach; Hypothesis prefers short ones, so this is not a uniform sample of all schedules"
)


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion. ``of`` must not be 0."""
    share, z2 = hits / of, _Z95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of)) / (1 + z2 / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def cells(result: Exploration) -> dict[Point, dict[int, Counter[State]]]:
    """Point -> batch -> in how many schedules with a fault there each state was found."""
    found = {point: {batch: Counter[State]() for batch in result.plan.batch_numbers} for point in result.plan.points}
    for faults, verdicts in result.results.items():
        for place in set(faults):
            found[place.point][place.batch][verdicts.state] += 1
    return found


def as_text(result: Exploration) -> str:
    """The matrix and what follows from it, for a terminal."""
    return "\n".join([_title(result), "", *_table(result, "  ", pad=True), "", *_lines(result)])


def as_markdown(result: Exploration) -> str:
    lines = [line for line in _lines(result) if line]
    return "\n".join(
        [f"# {_title(result)}", "", *_table(result, "", pad=False), "", *(f"- {line}" for line in lines), ""]
    )


def as_json(result: Exploration) -> dict[str, Any]:
    counted = result.count()
    return {
        **{name: value for name, value in asdict(result.plan).items() if name != "files"},
        "directory": str(result.directory.path),
        "verdict": result.outcome().value,
        "exit": result.outcome().exit_code,
        "ended": result.ended,
        "schedules": len(result.wanted),
        "undrawn": result.undrawn,
        "states": {str(state): counted[state] for state in State},
        "impossible": {text_of(faults): why for faults, why in result.impossible.items()},
        "without_faults": None if result.baseline is None else asdict(result.baseline),
        "matrix": {
            str(point): {str(batch): {str(s): n for s, n in of.items()} for batch, of in row.items()}
            for point, row in cells(result).items()
        },
        "results": [
            {"faults": text_of(faults), "state": str(found.state), **asdict(found)}
            for faults, found in result.results.items()
        ],
        "confirmations": [
            {
                "faults": text_of(one.faults),
                "agrees": one.agrees if one.decided else None,
                "fast": asdict(one.fast),
                "real": asdict(one.real),
            }
            for one in result.repeated
        ],
        "agreement": _agreement(result),
        "interval": _interval(result),
        "warm": {"schedules": result.warm_done, "seconds": round(result.warm_s, 1), "judged": result.distinct},
    }


def _title(result: Exploration) -> str:
    tier = f"{result.plan.tier} tier"
    return f"explore {result.plan.scenario}, {result.plan.mode}, {tier}: {result.outcome().value}"


def _table(result: Exploration, indent: str, *, pad: bool) -> Iterator[str]:
    batches = result.plan.batch_numbers
    header = ["point", *(f"batch {batch}" for batch in batches)]
    rows = [[str(point), *(_cell(row[batch]) for batch in batches)] for point, row in cells(result).items()]
    if not pad:
        yield f"| {' | '.join(header)} |"
        yield f"|{' --- |' * len(header)}"
        yield from (f"| {' | '.join(row)} |" for row in rows)
        return
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        yield (indent + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))).rstrip()


def _cell(found: Counter[State]) -> str:
    parts = [f"{found[state]} {state}" for state in State if found[state]]
    return ", ".join(parts) or "not tried"


def _lines(result: Exploration) -> Iterator[str]:
    plan, counted = result.plan, result.count()
    if result.baseline is not None and result.baseline.state is not State.HELD:
        tried = "" if result.shown() else ", so no fault was tried"
        yield f"without faults it is {result.baseline.verdict}{tried}: {result.baseline.why}"
        yield f"run: {result.baseline.run}"
        if not result.shown():
            return
    yield (
        f"{result.executed} of {times(len(result.wanted), 'schedule')} executed: "
        + (", ".join(f"{counted[state]} {state}" for state in _EXECUTED if counted[state]) or "none")
        + (f"; {len(result.impossible)} more cannot happen in any run" if result.impossible else "")
    )
    if result.undrawn:
        yield f"the budget ended before all random schedules were drawn: {result.undrawn} of {plan.number} are missing"
    if result.warm_done and result.warm_s:
        yield (
            f"the warm tier executed {result.warm_done} in {result.warm_s:.0f} s "
            f"({60 * result.warm_done / result.warm_s:.0f} per minute); the judge saw each of {result.distinct} distinct outcomes once"
        )
    if plan.tier_reason:
        yield f"not in the warm tier: {plan.tier_reason}"
    if result.ended != "done":
        yield f"ended early: {result.ended}; continue it: onceproof explore --continue {result.directory.path}"
    yield from _violations(result)
    yield from _confirmations(result)
    if (sampled := _interval(result)) is not None:
        low, high = sampled["from"], sampled["to"]
        yield f"violated: {sampled['violated']} of {sampled['of']} (95 % interval {low:.1%} to {high:.1%}, Wilson): {_SAMPLING}"
    unclear = (State.INCONCLUSIVE, State.NOT_EXERCISED, State.N_A, State.NOT_EXECUTED)
    others = [faults for faults, found in result.results.items() if found.state in unclear]
    for faults in others[:_SHOWN]:
        found = result.results[faults]
        yield f"{found.state}: {text_of(faults)}: {found.why}"
    yield from _more(others)
    for what, why in plan.not_explored.items():
        yield f"not explored: {what}: {why}"
    yield f"directory: {result.directory.path}"


def _violations(result: Exploration) -> Iterator[str]:
    shown = result.shown()
    if result.plan.tier == "warm" and (fast := result.count()[State.VIOLATED]):
        confirmed = sum(one.fast.state is State.VIOLATED for one in result.confirmed())
        yield f"{times(fast, 'schedule')} violated in the warm tier; {confirmed} of them confirmed with real kills"
    for faults, found in list(shown.items())[:_SHOWN]:
        yield f"violated: {text_of(faults)}: {found.why} (run: {found.run})"
    yield from _more(list(shown))


def _confirmations(result: Exploration) -> Iterator[str]:
    if result.plan.tier != "warm":
        return
    agreement = _agreement(result)
    held = [one for one in result.repeated if one.decided and one.fast.state is State.HELD]
    clean = result.count()[State.HELD]
    share = f"{len(held) / clean:.0%}" if clean else "none"
    yield f"repeated with real kills: {len(held)} of {clean} that held ({share}; wanted: {result.sample})"
    if agreement["decided"]:
        yield f"agreement with real kills: {agreement['agree']} of {agreement['decided']}"
    for one in result.disagreements:
        yield f"the warm tier's results do not count for this job: it said {_said(one, fast=True)} of {text_of(one.faults)}, real kills {_said(one, fast=False)}"
    undecided = [one for one in result.repeated if not one.decided]
    for one in undecided[:_SHOWN]:
        yield f"no verdict from real kills: {text_of(one.faults)}: {one.real.why}"


def _said(one: Confirmation, *, fast: bool) -> str:
    found = one.fast if fast else one.real
    anomalies = ", ".join(sorted(found.anomalies))
    return f"{found.state} ({anomalies})" if anomalies else str(found.state)


def _agreement(result: Exploration) -> dict[str, int]:
    decided = [one for one in result.repeated if one.decided]
    return {"repeated": len(result.repeated), "decided": len(decided), "agree": sum(one.agrees for one in decided)}


def _interval(result: Exploration) -> dict[str, Any] | None:
    """The interval of the share of violated schedules; only for sampled ones, whose results count."""
    counted = result.count()
    of = counted[State.HELD] + counted[State.VIOLATED]
    if result.plan.mode != "random" or not of or not result.trusted:
        return None
    low, high = interval(counted[State.VIOLATED], of)
    return {"violated": counted[State.VIOLATED], "of": of, "from": low, "to": high, "sampling": _SAMPLING}


def _more(items: list[Any]) -> Iterator[str]:
    if len(items) > _SHOWN:
        yield f"... and {len(items) - _SHOWN} more (--json has all)"
