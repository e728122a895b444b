"""Checks the values of a scenario against each other and against the machine.

Finds for example a batch that the input never reaches, a file that does not exist, a topic that nothing creates.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from onceproof.base.paths import exists, is_folder
from onceproof.base.registry import suggest
from onceproof.base.user_code import name_problem
from onceproof.base.words import times
from onceproof.data import dataset_of, datasets, rows_of
from onceproof.faults.contract import ReplacesJob, SpecProblem, TakesTurns, fault_of, reads_frames, strikes_at
from onceproof.faults.controller import struck_target
from onceproof.faults.placement import has_own_file_manager
from onceproof.instruments.checkpoint_gate import FILE_MANAGER
from onceproof.judge.checker import checkers
from onceproof.kinds.contract import kind_of
from onceproof.oracle import oracle_of, oracles
from onceproof.oracle.contract import decoders
from onceproof.oracle.contract.precomputed import PrecomputedOracle
from onceproof.scenario import templates
from onceproof.scenario.model import DRIVER, FaultSpec, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario.problem import Complaint, Loc
from onceproof.scenario_files.checks import consumers as consumer_check
from onceproof.scenario_files.checks import formats, names, output_models
from onceproof.scenario_files.checks import image as image_check
from onceproof.scenario_files.checks import spark as spark_check
from onceproof.stores.contract import store_of


def complaints(scenario: Scenario, here: Path) -> list[Complaint]:
    """Everything wrong with a scenario whose values are each valid. ``here`` is the folder of the scenario file."""
    return [
        *names.complaints(scenario),
        *_input(scenario),
        *_KIND_CHECKS[scenario.pipeline.kind](scenario),
        *output_models.complaints(scenario),
        *_command(scenario, here),
        *_before_upgrade(scenario, here),
        *_secrets(scenario),
        *_expectation(scenario),
        *_specs(scenario),
        *_oracle_code(scenario),
        *_oracle_files(scenario, here),
        *_decoder_files(scenario, here),
        *formats.complaints(scenario, here),
    ]


def _spark_job(scenario: Scenario) -> Iterator[Complaint]:
    """What can be wrong only with a scenario of a Spark job."""
    yield from _chunks(scenario)
    yield from _batches(scenario)
    yield from _same_place(scenario)
    yield from _attempts(scenario)
    yield from _outputs(scenario)
    yield from _queries(scenario)
    yield from _prepared(scenario)
    yield from _templates(scenario)
    yield from spark_check.complaints(scenario)
    yield from image_check.complaints(scenario)


#: Kind of pipeline -> the checks for this kind alone.
_KIND_CHECKS: dict[str, Callable[[Scenario], Iterable[Complaint]]] = {
    "command": _spark_job,
    "consumers": consumer_check.complaints,
}


def of_schedule(scenario: Scenario) -> list[Complaint]:
    """What can become wrong with a valid scenario when parts of its schedule are removed."""
    return [*_KIND_CHECKS[scenario.pipeline.kind](scenario), *_specs(scenario)]


def of_judgement(scenario: Scenario, here: Path) -> list[Complaint]:
    """What is wrong with a scenario that only judges an imported history and is never run."""
    topics = [spec.topic for spec in scenario.input]
    return [
        *(
            Complaint(("input", index, "topic"), f"topic {topic!r} occurs twice", "one input per topic")
            for index, topic in enumerate(topics)
            if topic in topics[:index]
        ),
        *(complaint for index in range(len(topics)) for complaint in _like_another(scenario, index)),
        *_outputs(scenario),
        *output_models.complaints(scenario),
        *_expectation(scenario),
        *_specs(scenario),
        *_oracle_files(scenario, here),
        *_decoder_files(scenario, here),
        *formats.complaints(scenario, here, fed=False),
    ]


def _like_another(scenario: Scenario, index: int) -> Iterator[Complaint]:
    """Refuse an input topic that differs only by case from one before it: each is a view, and to SQL their names are the same."""
    topic = scenario.input[index].topic
    for other in scenario.input[:index]:
        if other.topic != topic and other.topic.lower() == topic.lower():
            message = f"topic {topic!r} differs only by case from input topic {other.topic!r}: the oracle sees one view for both"
            yield Complaint(("input", index, "topic"), message, "rename one of the topics")


def _input(scenario: Scenario) -> Iterator[Complaint]:
    fed: set[str] = set()
    for index, spec in enumerate(scenario.input):
        loc: Loc = ("input", index)
        if spec.topic in fed:
            yield Complaint((*loc, "topic"), f"topic {spec.topic!r} is fed twice", "one input per topic")
        fed.add(spec.topic)
        yield from _like_another(scenario, index)
        if spec.topic in scenario.pipeline.prepare.topics:
            where: Loc = ("pipeline", "prepare", "topics", spec.topic)
            yield Complaint(
                where, f"topic {spec.topic!r} is already an input", "set its partitions at the input", at_key=True
            )
        if problem := decoders.problem(spec.decode):
            yield Complaint((*loc, "decode"), *problem)
        has = dataset_of(spec, scenario.seed).rows()
        if spec.rows is not None and spec.rows > has:
            yield Complaint((*loc, "rows"), f"data set {spec.dataset!r} has only {has} records, not {spec.rows}")


def _chunks(scenario: Scenario) -> Iterator[Complaint]:
    for index, spec in enumerate(scenario.input):
        has, rows = dataset_of(spec, scenario.seed).rows(), rows_of(spec, scenario.seed)
        if rows <= has and spec.chunks > rows:
            message = f"{rows} records in {spec.chunks} chunks: some chunks would be empty"
            yield Complaint(("input", index, "chunks"), message, "a chunk needs at least one record")


def _batches(scenario: Scenario) -> Iterator[Complaint]:
    sure = scenario.guaranteed_batches()
    fed = " and ".join(
        f"{times(rows_of(s, scenario.seed), 'record')} in {times(s.chunks, 'chunk')}" for s in scenario.input
    )
    with_data = {1: "no batch with data", 2: "only batch 1"}.get(sure, f"only batches 1 to {sure - 1}")
    for index, spec in enumerate(scenario.faults(FaultSpec)):
        loc: Loc = ("chaos", index, "at", "batch")
        if spec.at.batch == 0:
            message = "batch 0 holds no data (the feed begins once the job has fixed its start offsets)"
            yield Complaint(loc, message, "use 1 or later" if sure > 1 else "use 1 or later, and at least 2 chunks")
        elif spec.at.batch >= sure:
            chunks = f"at least {spec.at.batch + 1} chunks"
            hint = f"a batch from 1 to {sure - 1}, or {chunks}" if sure > 1 else chunks
            message = f"the job may never reach batch {spec.at.batch}: {fed} guarantee {with_data}"
            yield Complaint(loc, message, hint)


def _same_place(scenario: Scenario) -> Iterator[Complaint]:
    """Two faults of which the second can never strike, because the first has already taken its target or its frame."""
    for index, spec in enumerate(scenario.faults(FaultSpec)):
        for number, other in enumerate(scenario.faults(FaultSpec)[:index], start=1):
            clash = _clash(spec, other)
            if clash is not None:
                where = f"batch {spec.at.batch}, {spec.at.point}"
                another = spec.at.attempt or 1
                yield Complaint(
                    ("chaos", index, "at"),
                    f"fault {number} ({other.fault} {other.target}) is already at {where}{clash}",
                    f"use another batch, or `attempt: {another + 1}` for the batch's next attempt",
                )
                break


def _clash(spec: FaultSpec, other: FaultSpec) -> str | None:
    """None if both can strike; else the reason, to be appended to the message."""
    queries = {spec.at.query, other.at.query}
    if (spec.at.batch, spec.at.attempt or 1) != (other.at.batch, other.at.attempt or 1):
        return None
    if strikes_at(spec) is not strikes_at(other) or (None not in queries and len(queries) > 1):
        return None
    kind = fault_of(spec)
    if spec.fault == other.fault and isinstance(kind, TakesTurns):
        return f", and {kind.takes_turns()}"
    frames = [reads_frames([one]) for one in (spec, other)]
    if struck_target(spec) != struck_target(other) or frames == [True, False] or frames == [False, True]:
        return None
    if all(frames):
        wanted = [(one.at.point, getattr(one, "frame", None)) for one in (spec, other)]
        return ", for the same frame" if wanted[0] == wanted[1] else None
    return ""


def _attempts(scenario: Scenario) -> Iterator[Complaint]:
    """An attempt at a batch that never happens, or that cannot be distinguished from the first."""
    for index, spec in enumerate(scenario.faults(FaultSpec)):
        at, loc = spec.at, ("chaos", index, "at", "attempt")
        if at.attempt is None:
            continue
        if has_own_file_manager(scenario):
            message = f"onceproof's checkpoint file system counts attempts, but the job sets {FILE_MANAGER} itself"
            yield Complaint(loc, message, "leave `attempt` out, or leave that setting at Spark's default")
            continue
        earlier = [
            other
            for other in scenario.faults(FaultSpec)
            if other is not spec and other.at.batch == at.batch and (other.at.attempt or 1) < at.attempt
        ]
        if at.attempt > 1 and not any(other.at.point is not Point.AFTER_COMMIT_LOG for other in earlier):
            message = f"batch {at.batch} has no attempt {at.attempt}: no fault breaks an earlier attempt"
            hint = f"add one: {{fault: crash, target: driver, at: {{batch: {at.batch}, point: after-sink-commit}}}}"
            yield Complaint(loc, message, hint)


def _outputs(scenario: Scenario) -> Iterator[Complaint]:
    for name, output in scenario.outputs.items():
        loc: Loc = ("outputs", name)
        for problem in store_of(output).problems(scenario, output):
            yield replace(problem, loc=(*loc, *problem.loc))
        if output.progress is not None and scenario.stack.postgres is None:
            message = f"progress table {output.progress.table!r} needs Postgres, and the stack has none"
            yield Complaint((*loc, "progress"), message, "add 'postgres: {}' under stack")


def _queries(scenario: Scenario) -> Iterator[Complaint]:
    """A query that is not among ``pipeline.queries``, if the scenario lists them."""
    known = scenario.pipeline.queries
    named: list[tuple[Loc, str | None]] = [
        (("chaos", i, "at", "query"), s.at.query) for i, s in enumerate(scenario.faults(FaultSpec))
    ]
    named += [(("outputs", name, "query"), output.query) for name, output in scenario.outputs.items()]
    for loc, query in named:
        if known and query is not None and query not in known:
            yield Complaint(loc, f"query {query!r} is not listed under pipeline.queries", suggest(query, known))


def _prepared(scenario: Scenario) -> Iterator[Complaint]:
    if scenario.stack.postgres is not None and scenario.stack.postgres.replica is not None:
        message = "only consumers can read from a replica of Postgres so far"
        yield Complaint(("stack", "postgres", "replica"), message, "remove replica", at_key=True)
    if scenario.pipeline.prepare.sql.strip() and scenario.stack.postgres is None:
        message = "prepare.sql needs Postgres, and the stack has none"
        yield Complaint(("pipeline", "prepare", "sql"), message, "add 'postgres: {}' under stack", at_key=True)
    known = sorted({table for spec in scenario.input for table in datasets.get(spec.dataset).tables()})
    for index, table in enumerate(scenario.pipeline.prepare.tables):
        if table not in known:
            message = f"none of the input's data sets has a static table {table!r}"
            yield Complaint(("pipeline", "prepare", "tables", index), message, suggest(table, known))


def _templates(scenario: Scenario) -> Iterator[Complaint]:
    known = {"topic": scenario.topics(), "table": scenario.pipeline.prepare.tables, "output": list(scenario.outputs)}
    declared = {"topic": "prepare.topics or the input", "table": "prepare.tables", "output": "outputs"}
    spark = scenario.stack.spark
    submit = [
        (("stack", "spark", "submit", i), text) for i, text in enumerate(spark.submit if spark is not None else [])
    ]
    for loc, text in (*scenario.pipeline.texts(), *submit):
        for misspelt, near in templates.misspelt(text):
            yield Complaint(loc, f"unknown template {{{misspelt}}}", near)
        for template in sorted(templates.used(text)):
            kind, _, name = template.partition(".")
            if kind in known and name not in known[kind]:
                hint = f"declare it under {declared[kind]}; {suggest(name, known[kind])}"
                yield Complaint(loc, f"template {{{template}}}: no {kind} {name!r}", hint)
            if kind in ("input", "expected"):
                message = f"template {{{template}}} can be used only in the command of oracle batch"
                yield Complaint(loc, message, "the job reads {topic.NAME} and writes to its outputs")
            if template == "postgres.password" and loc[1] != "env":
                message = "template {postgres.password} in the command: the process list would show the password"
                hint = 'pass it in a variable, for example pipeline: env: {PGPASSWORD: "{postgres.password}"}'
                yield Complaint(loc, message, hint)
            if kind == "postgres" and scenario.stack.postgres is None:
                message = f"template {{{template}}} needs Postgres, and the stack has none"
                yield Complaint(loc, message, "add 'postgres: {}' under stack")
            if kind == "spark" and spark is None:
                message = f"template {{{template}}} needs a Spark cluster, and the stack has none"
                yield Complaint(loc, message, "add 'spark: {}' under stack")


def _command(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    program, *arguments = scenario.pipeline.command
    if (function := scenario.pipeline.callable) is not None:
        yield from _callable(_filled(function, here), here)
        arguments = arguments[len(DRIVER) :]
        yield from _arguments(arguments, here, 1 + len(DRIVER))
        return
    filled = _filled(program, here)
    if not templates.used(filled) and shutil.which(filled) is None:
        hint = f"'{{python}}' is {sys.executable}" if "python" in filled else "give its path, or put its folder on PATH"
        yield Complaint(("pipeline", "command", 0), f"program {filled!r} was not found", hint)
    yield from _arguments(arguments, here, 1)


def _before_upgrade(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    """What is wrong with the way in which the job is started until a fault replaces it, and not with its own."""
    kinds = ((index, fault_of(spec), spec) for index, spec in enumerate(scenario.chaos))
    for index, kind, spec in kinds:
        if isinstance(kind, ReplacesJob):
            first = scenario.model_copy(update={"pipeline": kind.first_pipeline(spec, scenario)})
            known = {one.message for one in (*_templates(scenario), *_command(scenario, here))}
            for one in (*_templates(first), *_command(first, here)):
                if one.message not in known:
                    yield Complaint(("chaos", index, "old"), one.message, one.hint)


def _callable(function: str, here: Path) -> Iterator[Complaint]:
    """The function's name, and its file. Loads nothing."""
    loc = ("pipeline", "callable")
    if (problem := name_problem(function)) is not None:
        yield Complaint(loc, problem)
    elif (file := function.rpartition(":")[0]).endswith(".py"):
        yield from _file_argument(file, here, loc)


def _arguments(arguments: Sequence[str], here: Path, first: int) -> Iterator[Complaint]:
    for index, argument in enumerate(arguments, start=first):
        value = argument.partition("=")[2] if argument.startswith("-") else argument
        for part in value.split(","):
            if part.startswith("{here}/") or (part.endswith(".py") and "://" not in part):
                yield from _file_argument(part, here, ("pipeline", "command", index))


def _filled(text: str, here: Path) -> str:
    return templates.fill(text, {"here": str(here), "python": sys.executable})


def _file_argument(argument: str, here: Path, loc: Loc) -> Iterator[Complaint]:
    filled = _filled(argument, here)
    path = Path(filled)
    if templates.used(filled) or exists(path):
        return
    if not path.is_absolute() and exists(here / path):
        hint = f"write '{{here}}/{argument}': the job runs in another folder than the scenario's"
        yield Complaint(loc, f"job file {argument!r} is a relative path", hint)
        return
    folder = (here / path).parent
    near = sorted(entry.name for entry in folder.glob("*.py")) if is_folder(folder) else []
    hint = suggest(path.name, near) if near else f"there is no .py file in {folder}"
    yield Complaint(loc, f"job file {argument!r} does not exist", hint)


def _secrets(scenario: Scenario) -> Iterator[Complaint]:
    for index, name in enumerate(scenario.pipeline.secrets):
        if name not in os.environ:
            message = f"secret {name!r}: the environment variable is not set"
            yield Complaint(("pipeline", "secrets", index), message, f"run `export {name}=...` first")


def _expectation(scenario: Scenario) -> Iterator[Complaint]:
    expect = scenario.expect
    for index, anomaly in enumerate(expect.anomalies):
        if anomaly not in checkers.names():
            hint = suggest(anomaly, checkers.names())
            yield Complaint(("expect", "anomalies", index), f"unknown anomaly {anomaly!r}", hint)
    if expect.verdict == "violated" and not expect.anomalies:
        message = "expect: no run can be violated without anomalies"
        yield Complaint(("expect", "verdict"), message, "name the expected ones under anomalies:")
    if expect.verdict == "held" and expect.anomalies:
        message = f"expect: no run can be held with anomalies {', '.join(expect.anomalies)}"
        yield Complaint(("expect", "anomalies"), message, "did you mean verdict: violated?")


def _specs(scenario: Scenario) -> Iterator[Complaint]:
    """The problems that the kinds of the faults and of the oracle find in this scenario."""
    for index, spec in enumerate(scenario.chaos):
        for problem in fault_of(spec).problems(spec, scenario):
            yield _complaint(("chaos", index), problem)
    for problem in oracles.get(scenario.oracle.kind).problems(scenario.oracle, scenario):
        yield _complaint(("oracle",), problem)


def _oracle_code(scenario: Scenario) -> Iterator[Complaint]:
    runs_code = isinstance(oracle_of(scenario.oracle), PrecomputedOracle)
    if runs_code and not kind_of(scenario).runs_oracle_code:
        message = f"oracle {scenario.oracle.kind!r} runs code, which onceproof does not support for {scenario.pipeline.kind} yet"
        yield Complaint(("oracle", "kind"), message, "use sql or identity")


def _oracle_files(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    oracle = oracle_of(scenario.oracle)
    if isinstance(oracle, PrecomputedOracle):
        for loc, file in oracle.files():
            yield from _file_argument(file, here, ("oracle", *loc))


def _decoder_files(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    named: list[tuple[Loc, str]] = [(("input", i, "decode"), spec.decode) for i, spec in enumerate(scenario.input)]
    named += [(("outputs", name, "decode"), spec.decode) for name, spec in scenario.outputs.items()]
    for loc, decode in named:
        file = decode.rpartition(":")[0]
        if file.endswith(".py"):
            yield from _file_argument(file, here, loc)


def _complaint(above: Loc, problem: SpecProblem) -> Complaint:
    return Complaint(above + problem.loc, problem.message, problem.hint)
