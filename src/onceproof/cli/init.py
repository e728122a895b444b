"""The command `init`: writes a valid scenario file for a job's command line, and lists what the user must still decide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from onceproof.base.errors import ScenarioError, UsageError
from onceproof.base.paths import exists, expanded, is_file, is_folder
from onceproof.base.registry import suggest
from onceproof.base.signals import uninterrupted
from onceproof.scenario_files.checks.names import TOPIC_RULE, is_topic, table_problem
from onceproof.scenario_files.drafts import command, draft, sample
from onceproof.scenario_files.load import load
from onceproof.scenario_files.schema import schema_text


def init_scenario(
    words: list[str],
    env: list[str],
    topics: list[str],
    output_topics: list[str],
    tables: list[str],
    samples: list[str],
    file: Path | None,
    force: bool,
    as_json: bool,
    *,
    records: bool | None = None,
    schema: Path | None = None,
) -> str:
    """Write the scenario, and return a message with its path, what to decide and what to do next.

    ``samples`` are FILE or TOPIC=FILE; for ``records`` see `onceproof.scenario_files.drafts.sample.read`. Raises `UsageError` if
    no scenario can be made of the arguments; no file is written or changed then.
    """
    folder = (expanded(file).absolute() if file is not None else Path.cwd() / "any").parent
    named, unnamed = _samples(samples)
    unread = next((topic for topic in named if topics and topic not in topics), None)
    if unread is not None:
        hint = f"{suggest(unread, list(topics))}\nor add --topic {unread}"
        raise UsageError(f"there is a sample of topic {unread!r}, and no --topic {unread}", hint=hint)
    job = command.read(
        words,
        env,
        folder=folder,
        topics=list(dict.fromkeys([*topics, *named])) if topics else [],
        output_topics=output_topics,
        tables=tables,
    )
    path = _target(file, job, force)
    guessed = set()
    read = list(dict.fromkeys([*job.topics, *named]))
    if not read:
        guessed.add("topic")
        read = ["my-input"]
    written = list(job.output_topics)
    if not written and not job.tables:
        guessed.add("output")
        written = ["my-output"]
    _check_names(read, written, job.tables)
    if unnamed is not None and len(read) > 1:
        hint = " ".join(f"--sample {topic}=FILE" for topic in read)
        raise UsageError(f"sample {str(unnamed)!r} needs its topic: there are {', '.join(read)}", hint=hint)
    files = {**named, **({read[0]: unnamed} if unnamed is not None else {})}
    drafted = draft.text(
        draft.Draft(
            job=job,
            file=path,
            inputs=tuple(
                draft.Fed(topic, sample.read(files[topic], records=records) if topic in files else None)
                for topic in read
            ),
            output_topics=tuple(written),
            tables=job.tables,
            schema=_statements(schema),
            guessed=frozenset(guessed),
        )
    )
    _write(path, drafted)
    for_editors = _write_schema(path.parent)
    decisions = draft.decisions(drafted)
    if as_json:
        return json.dumps({"scenario": str(path), "decide": decisions})
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return "\n".join(
        [
            f"wrote {shown}, a valid scenario. Now decide in it, where it says {command.DECIDE}:",
            *(f"  - {decision}" for decision in decisions),
            *(
                [f"wrote {draft.SCHEMA_FILE}, with which an editor checks and completes scenarios"]
                if for_editors
                else []
            ),
            f"next: onceproof plan {shown}, then: onceproof run {shown}",
        ]
    )


def _samples(given: list[str]) -> tuple[dict[str, Path], Path | None]:
    """The samples that name their topic, and the one that does not."""
    named: dict[str, Path] = {}
    unnamed: Path | None = None
    for text in given:
        topic, equals, file = text.partition("=")
        if not equals or is_file(expanded(text)) or not is_topic(topic):
            if unnamed is not None:
                message = f"samples {str(unnamed)!r} and {text!r} need their topics"
                raise UsageError(message, hint="--sample TOPIC=FILE")
            unnamed = expanded(text)
        elif topic in named:
            raise UsageError(f"topic {topic!r} has two samples", hint="put them into one file")
        else:
            named[topic] = expanded(file)
    return named, unnamed


def _check_names(read: list[str], written: list[str], tables: Sequence[str]) -> None:
    for name in (*read, *written):
        if not is_topic(name):
            raise UsageError(f"{name!r} is not a valid name of a Kafka topic", hint=TOPIC_RULE)
    for name in written:
        if name in read:
            raise UsageError(
                f"topic {name!r} would be both read and written", hint="name another --output-topic, or a --table"
            )
    for table in tables:
        if why := table_problem(table):
            raise UsageError(f"--table {table!r}: {why}")


def _statements(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return expanded(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"schema {str(file)!r} cannot be read: {error}", hint="--schema FILE.sql") from None


def _target(file: Path | None, job: command.Job, force: bool) -> Path:
    path = expanded(file or f"{job.stem}.yaml").absolute()
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{str(path)!r} is not named like a YAML file", hint=f"--to {path.stem or 'job'}.yaml")
    if not is_folder(path.parent):
        raise UsageError(f"folder {str(path.parent)!r} does not exist", hint="create it, or name another with --to")
    if is_folder(path) or (exists(path) and not force):
        raise UsageError(
            f"{str(path)!r} exists already", hint="overwrite it with --force, or name another with --to FILE"
        )
    return path


def _write_schema(folder: Path) -> bool:
    """Write the JSON Schema that the scenario's first line names, if there is none; whether it was written."""
    file = folder / draft.SCHEMA_FILE
    if exists(file):
        return False
    try:
        file.write_text(schema_text() + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}") from error
    return True


def _write(path: Path, drafted: str) -> None:
    """Write the scenario and load it, as `validate` would. If it does not load, restore what was there before."""
    try:
        before = path.read_bytes() if path.exists() else None
        path.write_text(drafted, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    try:
        load(path)
    except BaseException as error:
        with uninterrupted(f"restoring {path.name}"):
            if before is None:
                path.unlink()
            else:
                path.write_bytes(before)
        if not isinstance(error, ScenarioError):
            raise
        problems = "; ".join(f"{p.message} ({p.hint})" if p.hint else p.message for p in error.problems)
        raise UsageError(f"no valid scenario can be made from this: {problems}") from error
