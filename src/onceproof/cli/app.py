"""The command line. Commands only parse and hand over; what they need is imported when they run, so that --help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import onceproof
from onceproof.cli.options import EXIT_CODES, Json, Listing, Name, Resolved
from onceproof.cli.output import Output, failing_well

app = typer.Typer(
    name="onceproof",
    no_args_is_help=True,
    # Tracebacks with local variables would print what the environment holds, secrets included.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _version(asked: bool) -> None:
    if asked:
        Output(False).result(f"onceproof {onceproof.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run a PySpark streaming pipeline on real Kafka, Spark and Postgres, break it at an exact point of its commit
    protocol, and prove from what was observed whether its output is effectively-once.

    Begin with: onceproof doctor, then: onceproof run effectively-once
    """


@app.command(epilog=EXIT_CODES)
def run(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO", help="Names of shipped scenarios, or paths of YAML files.", show_default=False
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run every shipped scenario. Exit code 0 if each does what its 'expect' says.")
    ] = False,
    as_json: Json = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write JUnit XML to this file.", dir_okay=False)
    ] = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Where run directories are made.", file_okay=False)] = Path(
        "onceproof-runs"
    ),
    seed: Annotated[int | None, typer.Option(help="Use this seed, not the scenario's.")] = None,
) -> None:
    """Run scenarios: start the services, feed, break, heal, drain, judge.

    \b
    onceproof run effectively-once
    onceproof run my_job.yaml --json
    onceproof run --all --junit report.xml
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.run import run_scenarios

        code = run_scenarios(
            scenarios or [], everything=everything, runs_dir=runs, seed=seed, junit=junit, output=output
        )
        raise typer.Exit(code)


@app.command(epilog=EXIT_CODES)
def check(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, also one from another machine.")],
    as_json: Json = False,
) -> None:
    """Judge a stored run again: nothing is started, the same history gives the same verdict.

    \b
    onceproof check onceproof-runs/latest
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.run import check_run

        raise typer.Exit(check_run(directory, output))


@app.command(epilog=EXIT_CODES)
def replay(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    times: Annotated[int, typer.Option(min=1, max=10_000, help="How often to run it.")] = 10,
    as_json: Json = False,
) -> None:
    """Run a stored schedule again and say how often the same findings came back.

    Consumers share a broker that stays up, and take seconds. A Spark job is run anew each time, services included.

    Exit code 0 if every replay had the same findings, 3 if one did not. Replays that differ are kept in RUN/replays.

    \b
    onceproof replay onceproof-runs/latest --times 100
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.run import replay_run

        raise typer.Exit(replay_run(directory, times, output))


@app.command(epilog=EXIT_CODES)
def shrink(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a violated run.")],
    anomaly: Annotated[
        str | None, typer.Option(metavar="NAME", help="The anomaly that must stay (default: all of the run's).")
    ] = None,
    executions: Annotated[int, typer.Option(min=3, max=10_000, help="Run the schedule at most this often.")] = 60,
    as_json: Json = False,
) -> None:
    """Find the smallest schedule that still shows what a run has shown.

    Of consumers the fewest messages, consumers and faults; of a Spark job the fewest faults and chunks of input.

    Writes the minimal scenario and a run of it to RUN/shrunk. Exit code 0 if nothing more can be taken away, 3 if that was
    not proved. Ctrl-C ends the search and keeps the best until then.

    \b
    onceproof shrink onceproof-runs/latest
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.run import shrink_run

        raise typer.Exit(shrink_run(directory, anomaly, executions, output))


@app.command()
def picture(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory of a scenario with consumers.")],
) -> None:
    """Draw who held which message when: as text here, and as picture.svg in the run directory.

    \b
    onceproof picture onceproof-runs/latest
    """
    output = Output(False)
    with failing_well(output):
        from onceproof.cli.run import draw_run

        output.result(draw_run(directory))


@app.command("import")
def import_(
    scenario: Annotated[
        Path, typer.Option(metavar="FILE", help="Scenario: input topics, outputs, oracle and claim suffice.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="TOPIC=FILE", help="An input topic: .jsonl, .ndjson or .parquet."),
    ] = None,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", metavar="NAME=FILE", help="An output: .jsonl, .ndjson or .parquet.")
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME=FILE", help="A static table of the oracle, .parquet.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Read the topics that no file is given for from this Kafka.")
    ] = None,
    postgres_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Read the tables from the Postgres whose URI this variable holds."),
    ] = None,
    not_drained: Annotated[
        bool, typer.Option("--not-drained", help="More output may still come: what is missing is not reported as lost.")
    ] = False,
    runs: Annotated[
        Path, typer.Option("--runs", "--runs-dir", metavar="DIR", help="Where the run directory is made.")
    ] = Path("onceproof-runs"),
    as_json: Json = False,
) -> None:
    """Make a run directory from your own files, or from a live topic and table, for `check` to judge.

    A file whose first row has "value" holds records: {"key", "value", "partition", "offset", "timestamp_ms",
    "visibility"}, all but the value optional; "key_base64" and "value_base64" are for bytes. Without offsets, records
    are numbered in file order. Any other file holds plain rows, each of which is a record's value, or a row of the table.

    \b
    onceproof import --scenario orders.yaml --input orders=orders.jsonl --output totals=totals.parquet
    onceproof import --scenario orders.yaml --kafka broker:9092 --postgres-env DATABASE_URL
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.import_ import import_run

        output.result(import_run(scenario, inputs, outputs, tables, kafka, postgres_env, not_drained, runs, as_json))


@app.command("list")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")] = Listing.SCENARIOS,
    name: Annotated[
        str | None, typer.Argument(help="A fault, an oracle or a data set: list its fields.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped scenarios, what scenarios are made of, or the fields of one fault, oracle or data set.

    \b
    onceproof list
    onceproof list faults
    onceproof list faults crash
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import listing, listing_of

        output.result(listing(what.value, as_json) if name is None else listing_of(what.value, name, as_json))


@app.command("schema")
def schema_() -> None:
    """Print the JSON Schema of a scenario file, with a description of every field, for editors.

    \b
    onceproof schema > onceproof.schema.json
    """
    output = Output(False)
    with failing_well(output):
        from onceproof.cli.show import schema_text

        output.result(schema_text())


@app.command()
def plan(scenario: Name, as_json: Json = False) -> None:
    """Show what a scenario would do, and how exactly each fault can be placed, without starting anything.

    \b
    onceproof plan effectively-once
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import planned

        output.result(planned(scenario, as_json))


@app.command()
def validate(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO", help="Names or paths of YAML files.", show_default=False)
    ],
    as_json: Json = False,
    resolved: Resolved = False,
) -> None:
    """Check scenario files without starting anything: every problem with its line, column and a suggestion, and likely mistakes as warnings.

    \b
    onceproof validate my_job.yaml
    onceproof validate --resolved my_job.yaml > whole.yaml
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import validated, whole

        output.result(whole(scenarios, as_json) if resolved else validated(scenarios, as_json))


@app.command(context_settings={"allow_interspersed_args": False})
def init(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="What starts your job, as you type it here.", show_default=False),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A topic that the job reads; may be repeated.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A Postgres table that it writes; may be repeated.")
    ] = None,
    output_topic: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A topic that it writes; may be repeated.")
    ] = None,
    sample: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TOPIC=]FILE",
            help="Values of a topic's records, one JSON object per line, which become the input. One per topic.",
        ),
    ] = None,
    records: Annotated[
        bool | None,
        typer.Option(
            "--records/--values",
            help="Whether the lines of a sample are records (key, headers, timestamp, value) or values.",
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SQL that creates the tables before the job starts.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An environment variable of the job; may be repeated."),
    ] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The scenario to write (default: the job's name, .yaml, here).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the scenario if it exists.")] = False,
    as_json: Json = False,
) -> None:
    """Write a first scenario for your own job: it validates, and its comments say what you must still decide.

    Addresses of Kafka and Postgres, checkpoint folders and files in the command and its variables become templates, which
    a run fills in with its own. From a sample it proposes which fields identify a record, and which is the key.

    \b
    onceproof init --topic orders --table totals -- python job.py --kafka b:9092
    onceproof init --topic a --topic b --sample a=a.jsonl --sample b=b.jsonl -- PGHOST=db PGPASSWORD=x python job.py
    onceproof init --sample orders.jsonl --env DB=postgresql://db/x -- ./run.sh
    """
    output = Output(as_json)
    with failing_well(output):
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


@app.command(epilog=EXIT_CODES)
def qualify(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="SCENARIO", help="Name of a shipped one, or path of a YAML file.", show_default=False),
    ] = None,
    go_on: Annotated[
        Path | None, typer.Option("--continue", metavar="DIR", help="Continue the qualification in this directory.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long this call may take: 90s, 10m, 1h30m.")] = "10m",
    as_json: Json = False,
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the qualification's directory.", file_okay=False)
    ] = Path("onceproof-runs"),
    seed: Annotated[int | None, typer.Option(help="Use this seed, not the scenario's.")] = None,
) -> None:
    """Try crashes, lost requests and answers, refusals and zombie drivers at each point of a job's batches, and report what held.

    The job first runs without faults. If that run does not hold, its findings are the result and no fault is tried. The
    scenario's own faults are not used. Exit code 1 if any run is violated, 3 if a reachable cell was not exercised or is
    inconclusive, 0 if every reachable cell held.

    \b
    onceproof qualify my_job.yaml
    onceproof qualify my_job.yaml --budget 30m --json
    onceproof qualify --continue onceproof-runs/qualify-my_job-...
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.qualify import qualify as begin

        raise typer.Exit(begin(scenario, go_on=go_on, budget=budget, runs_dir=runs, seed=seed, output=output))


@app.command()
def explain(
    anomaly: Annotated[
        str | None,
        typer.Argument(metavar="ANOMALY", help="Name of an anomaly; without it, all are listed.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain what an anomaly means, how it comes about, how it is decided and what stops it; without a name, list them all.

    \b
    onceproof explain
    onceproof explain torn-batch
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import explained

        output.result(explained(anomaly, as_json))


@app.command()
def propose(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Directories of fault-free runs of one scenario, two or more.")
    ],
    as_json: Json = False,
) -> None:
    """Propose columns to ignore: those that differ between fault-free runs, and so do not show the effect of faults.

    \b
    onceproof propose onceproof-runs/my-job-1 onceproof-runs/my-job-2
    """
    output = Output(as_json)
    with failing_well(output):
        from onceproof.judge import proposals

        found = proposals.propose(runs)
        output.result(proposals.as_json(found) if as_json else proposals.as_text(found, len(runs)))


@app.command()
def doctor(as_json: Json = False) -> None:
    """List what is installed, what is missing for a run, and the command that fixes it. Exit code 4 if anything is missing."""
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import examined

        text, healthy = examined(as_json)
        output.result(text)
        raise typer.Exit(0 if healthy else 4)


@app.command()
def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """End and remove what a killed onceproof left behind, and nothing else. Live runs are left alone."""
    output = Output(as_json)
    with failing_well(output):
        from onceproof.cli.show import cleaned

        output.result(cleaned(dry_run, as_json))
