"""The command line. A command parses its arguments and calls another module, which it imports only then, so that --help is quick."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from onceproof.base.version import __version__
from onceproof.cli import ci as ci_commands
from onceproof.cli import containers, follow_up, listing
from onceproof.cli import explore as explore_command
from onceproof.cli import selftest as selftest_command
from onceproof.cli import serve as serve_command
from onceproof.cli.options import (
    DEFAULT_RUNS,
    EXIT_CODES,
    Ci,
    FreshStack,
    Json,
    Junit,
    Name,
    Reports,
    Resolved,
    RunsDir,
    Seed,
    Stack,
    Tier,
)
from onceproof.cli.output import Output, failing_well
from onceproof.cli.sinks import command as sinks_command
from onceproof.cli.watch import command as watch_command

_RUN, _WRITE = "Run and judge", "Write a scenario"  # groups of commands in --help

app = typer.Typer(
    name="onceproof",
    no_args_is_help=True,
    # A traceback with local variables would print the environment, secrets included.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(asked: bool) -> None:
    if asked:
        Output(False).result(f"onceproof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Test whether a PySpark streaming job writes each result exactly once, even under faults.

    onceproof runs the job on real Kafka, Spark and Postgres, injects faults at
    exact points of a batch's commit protocol, and judges from what it observed
    whether the output is effectively-once and in order. A scenario, one YAML
    file, says what to run, what to break, and what the output must be.

    \b
    onceproof doctor                     is this machine ready?
    onceproof run effectively-once       a job that survives four faults
    onceproof run naive-append           a job that writes duplicates
    onceproof init -- python my_job.py   write a scenario for your own job
    onceproof qualify my_job.yaml        try every fault at every point of it
    """


@app.command(epilog=EXIT_CODES, rich_help_panel=_RUN)
def run(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            help="Names of shipped scenarios (`onceproof list`), or paths of YAML files.",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Run every shipped scenario. Exit code 0 if each has the result that its 'expect' names."
        ),
    ] = False,
    as_json: Json = False,
    junit: Junit = None,
    report: Reports = None,
    runs: RunsDir = DEFAULT_RUNS,
    seed: Seed = None,
    stack: Stack = None,
    fresh_stack: FreshStack = False,
    tier: Tier = "real",
    ci: Ci = False,
) -> None:
    """Run scenarios and judge their outputs.

    Each run starts the services, feeds the input to the job, injects the
    scenario's faults, waits until the job has processed all input, and judges
    what the job wrote. The report names the run directory, which stores
    everything that was observed.

    \b
    onceproof run effectively-once --json
    onceproof run --all --junit report.xml --report html=report.html
    """
    with failing_well(as_json, report) as output:
        from onceproof.cli.run import report_files, run_scenarios

        code = run_scenarios(
            scenarios or [],
            everything=everything,
            runs_dir=runs,
            files=report_files(junit, report or [], output),
            ci=ci,
            output=output,
            seed=seed,
            stack=stack,
            fresh_stack=fresh_stack,
            tier=tier,
        )
        raise typer.Exit(code)


@app.command(epilog=EXIT_CODES, rich_help_panel=_RUN)
def qualify(
    scenario: Annotated[
        str | None,
        typer.Argument(
            metavar="SCENARIO", help="Name of a shipped scenario, or path of a YAML file.", show_default=False
        ),
    ] = None,
    go_on: Annotated[
        Path | None, typer.Option("--continue", metavar="DIR", help="Continue the qualification of this directory.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time limit of this command: 90s, 10m, 1h30m.")] = "10m",
    tries: Annotated[int, typer.Option(metavar="N", help="Try a cell that holds at N batches.", min=1)] = 3,
    kinds: Annotated[
        str | None, typer.Option(metavar="LIST", help="Try these kinds of faults only: crash,stop. Or: all.")
    ] = None,
    as_json: Json = False,
    runs: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder in which to create the qualification's directory.", file_okay=False),
    ] = DEFAULT_RUNS,
    seed: Seed = None,
    stack: Stack = None,
    fresh_stack: FreshStack = False,
) -> None:
    """Try each kind of fault at each point of a job's batches.

    The kinds are crashes, lost requests and answers, refusals and zombie
    drivers, or those of --kinds; the scenario's own faults are not used.
    The job first runs without faults. If that run does not hold, its findings
    are the result. Else each cell is tried once; then, while time allows, cells
    that held are tried again at other batches: held 3/3.

    Exit code 1 if any run is violated, 3 if a reachable cell of the matrix was
    not tried or is inconclusive, 0 if every reachable cell held.

    \b
    onceproof qualify my_job.yaml --tries 1      each cell once: a first look
    onceproof qualify my_job.yaml --kinds stop,fence,checkpoint-damage
    onceproof qualify my_job.yaml --budget 30m --json
    onceproof qualify --continue onceproof-runs/qualify-my_job-...
    """
    with failing_well(as_json) as output:
        from onceproof.api.qualification import qualify as begin
        from onceproof.base.duration import seconds
        from onceproof.cli.qualify import chosen, listening, report

        result = begin(
            scenario,
            go_on=go_on,
            budget=budget,
            tries=tries,
            kinds=chosen(kinds),
            runs_dir=runs,
            seed=seed,
            stack=stack,
            fresh_stack=fresh_stack,
            listening=partial(listening, budget_s=seconds(budget)),
        )
        raise typer.Exit(report(result, output))


@app.command(epilog=EXIT_CODES, rich_help_panel=_RUN)
def check(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, of this machine or another.")],
    as_json: Json = False,
    report: Reports = None,
) -> None:
    """Judge a stored run again.

    Starts nothing: the verdict comes from the stored history alone.

    \b
    onceproof check onceproof-runs/latest
    onceproof check onceproof-runs/latest --report junit=report.xml
    """
    with failing_well(as_json, report) as output:
        from onceproof.cli.run import check_run, report_files

        raise typer.Exit(check_run(directory, report_files(None, report or [], output), output))


@app.command("import", rich_help_panel=_RUN)
def import_(
    scenario: Annotated[
        Path, typer.Option(metavar="FILE", help="A scenario; input topics, outputs, oracle and claim are enough.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="TOPIC=FILE",
            help="Records of an input topic, .jsonl, .ndjson or .parquet; may be repeated.",
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output", metavar="NAME=FILE", help="Rows of an output, .jsonl, .ndjson or .parquet; may be repeated."
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="NAME=FILE", help="A static table that the oracle reads, .parquet; may be repeated."
        ),
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Read the topics without a file from this Kafka.")
    ] = None,
    postgres_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Read the tables without a file from Postgres; the variable holds its URI."
        ),
    ] = None,
    not_drained: Annotated[
        bool, typer.Option("--not-drained", help="The job was still writing: do not report missing rows as lost.")
    ] = False,
    runs: Annotated[
        Path, typer.Option("--runs", "--runs-dir", metavar="DIR", help="Folder in which to create the run directory.")
    ] = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """Make a run directory from your own data, for `check` to judge.

    The data comes from files, or from a live Kafka topic and Postgres table.

    A file whose first row has "value" holds records: {"key", "value",
    "partition", "offset", "timestamp_ms", "visibility"}, all but the value
    optional; "key_base64" and "value_base64" are for bytes. Without offsets,
    records are numbered in file order. Any other file holds plain rows: each
    is the value of a record, or a row of the table.

    \b
    onceproof import --scenario orders.yaml --input orders=orders.jsonl --output totals=totals.parquet
    onceproof import --scenario orders.yaml --kafka broker:9092 --postgres-env DATABASE_URL
    """
    with failing_well(as_json) as output:
        from onceproof.api.histories import import_history
        from onceproof.cli.import_ import files

        run = import_history(
            scenario,
            inputs=files("--input", inputs),
            outputs=files("--output", outputs),
            tables=files("--table", tables),
            kafka=kafka,
            postgres_env=postgres_env,
            drained=not not_drained,
            runs_dir=runs,
        )
        output.result(json.dumps({"run": str(run)}) if as_json else f"run: {run}\njudge it: onceproof check {run}")


@app.command(context_settings={"allow_interspersed_args": False}, rich_help_panel=_WRITE)
def init(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="The command that starts your job, as you would type it in this folder.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A topic that the job reads; may be repeated.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A Postgres table that the job writes; may be repeated.")
    ] = None,
    output_topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A topic that the job writes; may be repeated.")
    ] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TOPIC=]FILE",
            help="A file with values of a topic's records, one JSON object per line. It becomes the input. One per topic.",
        ),
    ] = None,
    records: Annotated[
        bool | None,
        typer.Option(
            "--records/--values",
            help="Whether each line of a sample is a whole record (key, headers, timestamp, value) or only a value.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SQL statements that create the tables before the job starts.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An environment variable of the job; may be repeated."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The scenario file to write (default: JOB.yaml in this folder).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the scenario file if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a first scenario for your own job.

    The scenario is valid. Its comments, marked DECIDE, ask what only you can
    know.

    Addresses of Kafka and Postgres, checkpoint folders and files in the command
    and in its variables become templates, which a run fills in with its own.
    From a sample of the input, init proposes which fields identify a record and
    which one is its key.

    \b
    onceproof init --topic orders --table totals -- python job.py --kafka b:9092
    onceproof init --topic a --topic b --sample a=a.jsonl --sample b=b.jsonl -- PGHOST=db PGPASSWORD=x python job.py
    onceproof init --sample orders.jsonl --env DB=postgresql://db/x -- ./run.sh
    """
    with failing_well(as_json) as output:
        from onceproof.cli.init import init_scenario

        words = list(command or [])
        output.result(
            init_scenario(
                words,
                env or [],
                topic or [],
                output_topic or [],
                table or [],
                sample or [],
                to,
                force,
                as_json,
                records=records,
                schema=schema,
            )
        )


@app.command(rich_help_panel=_WRITE)
def validate(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO", help="Names of shipped scenarios, or paths of YAML files.", show_default=False
        ),
    ],
    as_json: Json = False,
    resolved: Resolved = False,
) -> None:
    """Check scenario files, without starting anything.

    Reports every problem with its line, its column and a suggestion, and likely
    mistakes as warnings.

    \b
    onceproof validate my_job.yaml
    onceproof validate --resolved my_job.yaml > whole.yaml
    """
    with failing_well(as_json) as output:
        from onceproof.cli.show.validate import validated, whole

        output.result(whole(scenarios, as_json) if resolved else validated(scenarios, as_json))


@app.command(rich_help_panel=_WRITE)
def plan(scenario: Name, as_json: Json = False, stack: Stack = None) -> None:
    """Show what a run of a scenario would do, without starting anything.

    For each fault: how exactly it can be placed on this job, by which means,
    and what will prove that it hit.

    \b
    onceproof plan effectively-once
    """
    with failing_well(as_json) as output:
        from onceproof.cli.show.plan import planned

        output.result(planned(scenario, as_json, stack))


app.add_typer(listing.commands)
app.add_typer(ci_commands.commands)
app.add_typer(explore_command.commands)
app.add_typer(follow_up.commands)
app.add_typer(serve_command.commands)
app.add_typer(watch_command.commands)
app.add_typer(containers.commands)
app.add_typer(selftest_command.commands)
app.add_typer(sinks_command.commands, name="sinks", rich_help_panel="Understand a finding")
