"""Prints what `watch` finds as it finds it: lines for people, or one JSON object per line."""

from __future__ import annotations

import json
from typing import Any

from onceproof.base.words import times
from onceproof.cli.output import Output
from onceproof.judge.findings import Finding, Verdict
from onceproof.watch.judging import Settlement
from onceproof.watch.session import Began, Ending, Event, Progress

#: Witnesses of a finding that are printed for people; with --json up to 32.
_SHOWN = 3


class Printer:
    """Prints events as lines: for people, or as JSON."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __call__(self, event: Event) -> None:
        if isinstance(event, Settlement):
            self._settled(event)
        elif isinstance(event, Began):
            self._began(event.inputs, event.outputs, event.metrics_port, event.notices)
        elif isinstance(event, Progress):
            rate, lag, problem = round(event.rate), round(event.lag_s, 1), event.problem
            text = (
                f"{_clock(event.seconds)}  {times(event.windows, 'window')}, {times(event.records, 'input record')} judged; "
                f"{rate:,} records/s, lag {lag} s, {event.waiting:,} records waiting"
            )
            self._line(
                text + (f"\n  {problem}" if problem else ""),
                event="progress",
                seconds=round(event.seconds, 1),
                windows=event.windows,
                records=event.records,
                records_per_second=rate,
                lag_seconds=lag,
                waiting=event.waiting,
                problem=problem,
            )
        elif isinstance(event, Ending):
            text = f"ending: settling the last windows takes {event.wait_s:g} s or a little more; Ctrl-C ends at once"
            self._line(text, event="ending", wait_seconds=event.wait_s)

    def _began(self, inputs: Any, outputs: Any, port: int | None, notices: tuple[str, ...]) -> None:
        starts = {f"{topic}/{partition}": at for (topic, partition), at in {**inputs, **outputs}.items()}
        text = "watching from " + ", ".join(f"{place}@{at}" for place, at in starts.items())
        text += f"\nmetrics at http://127.0.0.1:{port}/metrics" if port is not None else ""
        text += "".join(f"\nnot covered: {notice}" for notice in notices)
        self._line(text, event="began", start=starts, metrics_port=port, not_covered=list(notices))

    def _settled(self, settlement: Settlement) -> None:
        number = settlement.window.number
        for finding in settlement.findings:
            self._finding(number, finding)
        for late in settlement.late:
            if not late.wrong:
                text = f"arrived late: {_named(late.identity)} of output {late.output} at {late.position}; it was missing in window {late.window}"
                self._line(
                    text,
                    event="late",
                    output=late.output,
                    identity=late.identity,
                    cause=late.cause,
                    position=late.position,
                    window=late.window,
                )
        for doubt in settlement.doubts:
            self._line(f"not proved: {doubt}", event="doubt", window=number, why=doubt)

    def _finding(self, window: int, finding: Finding) -> None:
        lines = [f"{finding.anomaly} in output {finding.output}, window {window}: {finding.summary}"]
        for witness in finding.witnesses[:_SHOWN]:
            cause = f", input {witness.cause}" if witness.cause is not None else ""
            at = f", at {', '.join(witness.positions)}" if witness.positions else ""
            lines.append(f"  {_named(witness.identity)}{cause}{at}")
        if finding.total > _SHOWN:
            lines.append(f"  and {finding.total - _SHOWN:,} more")
        witnesses = [
            {
                "identity": w.identity,
                "cause": w.cause,
                "positions": list(w.positions),
                "argument": w.argument,
            }
            for w in finding.witnesses
        ]
        self._line(
            "\n".join(lines),
            event="finding",
            window=window,
            anomaly=finding.anomaly,
            output=finding.output,
            total=finding.total,
            summary=finding.summary,
            violates=finding.violates,
            witnesses=witnesses,
        )

    def _line(self, text: str, **fields: Any) -> None:
        self._output.result(json.dumps(fields)) if self._output.as_json else self._output.say(text)


def print_verdict(verdict: Verdict, output: Output) -> None:
    if output.as_json:
        output.result(
            json.dumps({"event": "verdict", **verdict.to_json(), "exit": verdict.outcome.exit_code}, default=str)
        )
    else:
        output.result("\n".join([f"verdict: {verdict.word}", *(f"  {reason}" for reason in verdict.reasons)]))


def _named(identity: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in identity.items())


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
