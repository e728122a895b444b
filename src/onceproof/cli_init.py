"""The command `init`: from a job's command line to a scenario file that validates, and what the user must still decide."""

from __future__ import annotations

import json
from pathlib import Path

from onceproof.errors import ScenarioError, UsageError
from onceproof.interrupts import uninterrupted
from onceproof.paths import exists, expanded, is_folder
from onceproof.scenario import command, draft, sample
from onceproof.scenario.load import load
from onceproof.scenario.names import TOPIC_RULE, is_topic


def init_scenario(
    words: list[str],
    env: list[str],
    topic: str | None,
    output_topic: str | None,
    table: str | None,
    sample_file: Path | None,
    file: Path | None,
    force: bool,
    as_json: bool,
) -> str:
    """Write the scenario, and tell where it is, what must be decided and what comes next.

    Raises `UsageError` for anything that no scenario can be made of; then no file is written or changed.
    """
    folder = (expanded(file).absolute() if file is not None else Path.cwd() / "any").parent
    job = command.read(words, env, folder=folder, topic=topic, output_topic=output_topic)
    path = _target(file, job, force)
    table = table or job.table
    guessed = set()
    read = topic or job.topic
    if read is None:
        guessed.add("topic")
    written = output_topic or job.output_topic
    if written is None and table is None:
        guessed.add("output")
        written = "my-output"
    for name in (read, written):
        if name is not None and not is_topic(name):
            raise UsageError(f"{name!r} is no name of a Kafka topic", hint=TOPIC_RULE)
    if written is not None and written == (read or "my-input"):
        raise UsageError(
            f"topic {written!r} is both read and written", hint="name another --output-topic, or a --table"
        )
    drafted = draft.text(
        draft.Draft(
            job=job,
            file=path,
            topic=read or "my-input",
            output_topic=written,
            table=table,
            sample=sample.read(expanded(sample_file)) if sample_file is not None else None,
            guessed=frozenset(guessed),
        )
    )
    _write(path, drafted)
    decisions = draft.decisions(drafted)
    if as_json:
        return json.dumps({"scenario": str(path), "decide": decisions})
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return "\n".join(
        [
            f"wrote {shown}, which validates. Decide in it (marked {draft.DECIDE}):",
            *(f"  - {decision}" for decision in decisions),
            f"then: onceproof plan {shown}, and: onceproof run {shown}",
        ]
    )


def _target(file: Path | None, job: command.Job, force: bool) -> Path:
    path = expanded(file or f"{job.stem}.yaml").absolute()
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{str(path)!r} is no YAML file by its name", hint=f"--to {path.stem or 'job'}.yaml")
    if not is_folder(path.parent):
        raise UsageError(f"there is no folder {str(path.parent)!r}", hint="make it first, or name another with --to")
    if is_folder(path) or (exists(path) and not force):
        raise UsageError(f"{str(path)!r} is there already", hint="--to FILE names another, --force overwrites it")
    return path


def _write(path: Path, drafted: str) -> None:
    """Write it and load it, as `validate` would; what does not load is not left behind."""
    try:
        before = path.read_bytes() if path.exists() else None
        path.write_text(drafted, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    try:
        load(path)
    except BaseException as error:
        with uninterrupted(f"putting {path.name} back as it was"):
            if before is None:
                path.unlink()
            else:
                path.write_bytes(before)
        if not isinstance(error, ScenarioError):
            raise
        told = "; ".join(f"{p.message} ({p.hint})" if p.hint else p.message for p in error.problems)
        raise UsageError(f"no scenario can be made of this: {told}") from error
