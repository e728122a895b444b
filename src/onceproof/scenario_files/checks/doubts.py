"""Warnings about likely mistakes in a scenario that can be run nevertheless. `validate` and `plan` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from onceproof.base.paths import is_file
from onceproof.base.registry import suggest
from onceproof.kinds.contract import kind_of
from onceproof.scenario import templates
from onceproof.scenario.model import Scenario
from onceproof.scenario.problem import Complaint, Loc
from onceproof.scenario_files.checks import names
from onceproof.scenario_files.created_tables import created_tables, creates_only_these, folded
from onceproof.scenario_files.drafts import meaning
from onceproof.stack.external.spark import exposure

#: At most so much of a job's source is searched.
_SOURCE_BYTES = 1_000_000
_PACKAGES_IN_CODE = re.compile(rf"{re.escape(meaning.PACKAGES)}[\"']\s*,\s*[\"']([^\"']+)")


def warnings(scenario: Scenario, here: Path) -> list[Complaint]:
    """``here`` is the folder of the scenario file. Consumers get no warnings: they have neither checkpoint nor templates to miss."""
    if not kind_of(scenario).micro_batches:
        return []
    return [
        *_checkpoint(scenario),
        *_topics(scenario),
        *_tables(scenario),
        *_paths(scenario, here),
        *_packages(scenario, here),
        *_spark(scenario),
    ]


def _spark(scenario: Scenario) -> Iterator[Complaint]:
    if scenario.stack.spark is not None and (warning := exposure(scenario.stack.spark)) is not None:
        yield Complaint(("stack", "spark"), warning, None, at_key=True)


def _checkpoint(scenario: Scenario) -> Iterator[Complaint]:
    if not any("checkpoint" in templates.used(text) for _, text in scenario.pipeline.texts()):
        message = "the job does not use {checkpoint}: onceproof cannot see its progress or place faults by it"
        hint = "pass it a folder below {checkpoint} in an argument or a variable"
        yield Complaint(("pipeline", "command"), message, hint, at_key=True)


def _topics(scenario: Scenario) -> Iterator[Complaint]:
    known = scenario.topics()
    spec = scenario.pipeline
    for loc, name, value in meaning.named_values(spec.command, spec.env):
        if not meaning.is_topic(name):
            continue
        for topic in value.split(","):
            if names.is_topic(topic) and topic not in known:
                message = f"nothing creates topic {topic!r}, which {name} names: it is neither an input nor prepared"
                hint = f"pipeline: prepare: topics: {{{topic}: {{partitions: 3}}}}"
                yield Complaint(("pipeline", *loc), message, hint)


def _tables(scenario: Scenario) -> Iterator[Complaint]:
    """Output tables that ``prepare.sql`` does not create, although it creates others. Sinks create those for dead letters."""
    sql = scenario.pipeline.prepare.sql
    known = [table.name for table in created_tables(sql)]
    if not known or not creates_only_these(sql):
        return
    for output, spec in scenario.outputs.items():
        places: list[tuple[Loc, str]] = [] if spec.table is None or spec.is_side_output else [(("table",), spec.table)]
        places += [] if spec.progress is None else [(("progress", "table"), spec.progress.table)]
        for where, table in places:
            if folded(table) not in known:
                message = (
                    f"pipeline.prepare.sql does not create table {table!r}: unless the job does, the run shows nothing"
                )
                yield Complaint(("outputs", output, *where), message, suggest(table, known))


def _paths(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    spec = scenario.pipeline
    for loc, name, value in meaning.named_values(spec.command, spec.env):
        if not meaning.is_outside(value) or templates.used(value):
            continue
        if name == "PYTHONPATH":  # a job imports from there, and does not write
            continue
        if is_file(here / value.removeprefix("file://")):
            continue
        message = f"{value!r} is outside the run directory: the next run would find what this one writes there"
        hint = "if the job writes to it, use {checkpoint} or a relative path (each run starts the job in a new folder)"
        yield Complaint(("pipeline", *loc), message, hint)


def _packages(scenario: Scenario, here: Path) -> Iterator[Complaint]:
    spec = scenario.pipeline
    asked: list[tuple[Loc, str]] = [
        (("pipeline", "command", index), listed) for index, listed in meaning.packages(spec.command)
    ]
    submit = spec.env.get("PYSPARK_SUBMIT_ARGS", "")
    asked += [(("pipeline", "env", "PYSPARK_SUBMIT_ARGS"), listed) for _, listed in meaning.packages(submit.split())]
    for index, word in enumerate(spec.command):
        file = Path(templates.fill(word, {"here": str(here)}))
        if word.endswith(".py") and is_file(here / file):
            with (here / file).open("rb") as source:
                text = source.read(_SOURCE_BYTES).decode(errors="replace")
            asked += [(("pipeline", "command", index), listed) for listed in _PACKAGES_IN_CODE.findall(text)]
    for loc, listed in asked:
        needless, needed = meaning.needless_packages(listed), meaning.needed_packages(listed)
        if needless:
            message = f"the job asks for {', '.join(needless)}, which Spark fetches from the network at each start"
            hint = "remove it: Spark's Kafka connector and Postgres' JDBC driver are already on the job's class path"
            yield Complaint(loc, message, hint)
        if needed:
            message = f"the job asks for {', '.join(needed)}, which Spark fetches from the network at each start"
            yield Complaint(loc, message, "to run without a network, pass the jar: --jars {here}/lib/NAME.jar")
