"""The command `watch`: judges a running pipeline, and prints what it finds as it finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onceproof.cli.options import EXIT_CODES
from onceproof.cli.output import Output, failing_well

if TYPE_CHECKING:
    from onceproof.judge.findings import Finding, Verdict
    from onceproof.watch.judging import Settlement
    from onceproof.watch.session import Event, Options

#: Witnesses of a finding that are printed for people; with --json up to 32.
_SHOWN = 3

commands = typer.Typer()


@commands.command(epilog=EXIT_CODES, rich_help_panel="Run and judge")
def watch(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario; input topics, outputs, oracle and claim are enough.",
            show_default=False,
        ),
    ],
    kafka: Annotated[str, typer.Option(metavar="ADDRESS", help="The Kafka that the pipeline uses.")],
    window: Annotated[str, typer.Option(metavar="TIME", help="Close a window of the input after this time.")] = "5s",
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="How long after that its last row may become readable: more than a batch and its commit take.",
        ),
    ] = "5s",
    lead_in: Annotated[
        str,
        typer.Option(
            "--lead-in",
            metavar="TIME",
            help="Read the input of this time before the start too: more than the pipeline may lag behind.",
        ),
    ] = "60s",
    for_: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="End after this time (default: at Ctrl-C).", show_default=False),
    ] = None,
    remember: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long a row that comes again is called a duplicate; 24 bytes on disk per row."
        ),
    ] = "10m",
    metrics: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Serve metrics for Prometheus on 127.0.0.1; 0: any free port.",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line on stdout, the verdict last.")
    ] = False,
) -> None:
    """Judge a pipeline while it runs, and name lost, repeated and wrong rows within seconds.

    It reads the input and output topics of your Kafka from now on, and compares
    what the oracle expects of each few seconds of input with what the pipeline
    has written. It joins no consumer group and writes nothing to your systems.

    Every row must follow from one input record: an oracle identity, or sql with
    one SELECT over one topic, with _partition and _offset. Outputs are topics of
    kind append. For all others: `onceproof import`, then `onceproof check`.

    Ctrl-C ends it with a verdict on all that was judged; a second one at once.

    \b
    onceproof watch orders.yaml --kafka broker:9092
    onceproof watch orders.yaml --kafka broker:9092 --grace 30s --metrics 9464
    onceproof watch orders.yaml --kafka broker:9092 --for 10m --json
    """
    with failing_well(as_json) as output:
        from onceproof.base import signals
        from onceproof.scenario_files.load import load_to_judge
        from onceproof.watch.per_record import refuse_unwatchable
        from onceproof.watch.session import Watch

        loaded = load_to_judge(scenario)
        refuse_unwatchable(loaded)
        options = _options(kafka, window, grace, lead_in, for_, remember, metrics)
        verdict = Watch(loaded, options, _Printer(output)).run()
        signals.taken()
        _print_verdict(verdict, output)
        raise typer.Exit(verdict.outcome.exit_code)


def _options(
    kafka: str, window: str, grace: str, lead_in: str, for_: str | None, remember: str, metrics: int | None
) -> Options:
    from onceproof.base.duration import any_seconds
    from onceproof.base.errors import UsageError
    from onceproof.watch.session import Options

    window_s, grace_s = any_seconds(window, "--window"), any_seconds(grace, "--grace")
    if window_s < 1:
        raise UsageError(
            f"--window {window} is too short: judging a window takes up to a second", hint="give 1s or more"
        )
    if grace_s > 4 * window_s:
        hint = f"give --window {grace_s / 4:g}s or more"
        why = "each record would be compared with more than five windows"
        raise UsageError(f"--grace {grace} is more than four times --window {window}: {why}", hint=hint)
    return Options(
        kafka,
        window_s,
        grace_s,
        any_seconds(lead_in, "--lead-in"),
        None if for_ is None else any_seconds(for_, "--for"),
        any_seconds(remember, "--remember"),
        metrics,
    )


class _Printer:
    """Prints events as lines: for people, or as JSON."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __call__(self, event: Event) -> None:
        from onceproof.watch.judging import Settlement
        from onceproof.watch.session import Began, Ending, Progress

        if isinstance(event, Settlement):
            self._settled(event)
        elif isinstance(event, Began):
            self._began(event.inputs, event.outputs, event.metrics_port, event.notices)
        elif isinstance(event, Progress):
            rate, lag, problem = round(event.rate), round(event.lag_s, 1), event.problem
            text = (
                f"{_clock(event.seconds)}  {event.windows:,} windows, {event.records:,} input records judged; "
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


def _print_verdict(verdict: Verdict, output: Output) -> None:
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
