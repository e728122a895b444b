"""The run record, ``run.json``: the scenario as it was run, and how the run went. One frozen value, read and written in one call.

The types of fields that judging reads are checked: ``"drained": "false"`` would otherwise count as true. A field that is only
for people (`Loose`) counts as unknown if its value has another type. Keys that other programs added are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from onceproof.base.errors import HistoryError, NotARun
from onceproof.history import run_files
from onceproof.history.fields import (
    Bool,
    Loose,
    LooseBool,
    LooseInt,
    LooseText,
    MaybeBool,
    MaybeText,
    Part,
    TextOrNull,
    a_count,
    a_whole,
    an_object,
    is_time,
    must,
    object_or_null,
    objects_or_null,
    texts_of,
)
from onceproof.history.not_a_run import describe_path
from onceproof.history.version import JUDGE_THERE, other_version
from onceproof.scenario.consumers import ConsumersSpec
from onceproof.scenario.model import Scenario, kind_of_pipeline

FILE = "run.json"
#: Validation context while a record is written: every type is checked then.
_WRITING = {"writing": True}
AGAIN = "copy the whole run directory again, or run the scenario again"
_FORMAT = "it breaks the format in docs/history.md: fix the program that wrote it, or copy the run again"


class StoredPipeline(Part):
    secrets: Annotated[list[str], BeforeValidator(texts_of)] = Field(
        [], description="environment variables passed to the job"
    )
    consumers: Any = Field(None, description="plain consumers instead of a Spark job")

    @property
    def kind(self) -> str:
        """Which kind of pipeline this is (`onceproof.kinds`)."""
        return kind_of_pipeline({"consumers": self.consumers or None})

    def consumers_spec(self) -> ConsumersSpec:
        """Its consumers. Raises `ValueError` if the field does not describe any."""
        return ConsumersSpec.model_validate(self.consumers)


class StoredScenario(Part):
    """The scenario as it was run, with every default filled in. `parsed` makes a `Scenario` from it."""

    name: MaybeText = Field(None, description="the name in the scenario's file")
    claim: Annotated[dict[str, Any] | None, an_object] = Field(None, description="what the pipeline promises")
    chaos: Annotated[list[dict[str, Any]] | None, objects_or_null] = Field(None, description="the faults")
    pipeline: Annotated[StoredPipeline, Loose] = Field(StoredPipeline(), description="the job under test")
    stack: Any = Field(None, description="the services that it ran on")
    input: Any = Field(None, description="the topics that were fed")
    outputs: Any = Field(None, description="what the job writes")
    oracle: Any = Field(None, description="defines what the outputs must hold")
    expect: Any = Field({}, description="the verdict and anomalies that `run --all` counts as right")

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        return cls.model_validate(scenario.to_json())

    def parsed(self, run_dir: Path, *, with_faults: bool = True) -> Scenario:
        """The scenario as a model. Raises `HistoryError`.

        Judging leaves the faults out: the history holds what they did, and their kind may no longer exist.
        """
        # Earlier versions stored the settings of all targets of a fault, and null for those that the target does not have.
        document = {
            **self.to_json(),
            "chaos": [_without_nulls(fault) for fault in self.chaos or ()] if with_faults else [],
        }
        try:
            return Scenario.model_validate(document)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            raise HistoryError(f"the scenario in {run_dir / FILE} cannot be used: {why}") from error


def _without_nulls(fault: dict[str, Any]) -> dict[str, Any]:
    """In the fault's own settings and in its frame; elsewhere null may be a value (an option that an old version did not have)."""
    kept = {name: setting for name, setting in fault.items() if setting is not None}
    if isinstance(frame := kept.get("frame"), dict):
        kept["frame"] = {name: setting for name, setting in frame.items() if setting is not None}
    return kept


class BuiltComponent(Part):
    version: str = Field(description="its version")
    sha256: str = Field(description="SHA-256 of the file that was built here")


class ExitRecord(Part):
    """One exit of the job's process."""

    start: LooseInt = Field(None, description="which start of the job exited, from 0")
    code: LooseInt = Field(None, description="exit code")
    at: Annotated[float | None, Loose] = Field(None, description="seconds on the run's clock")
    killed: LooseBool = Field(None, description="the harness killed it")
    consumer: LooseText = Field(None, description="the consumer, where there are several")


class JvmRecord(Part):
    """How one JVM of the job was started."""

    start: LooseInt = Field(None, description="which start of the job it belongs to, from 0")
    tier: LooseText = Field(None, description="kept: the JVM of the start before; real: a new one")
    how: LooseText = Field(None, description="scripts: Spark's; direct: without them; kept")
    why: LooseText = Field(None, description="why not in the tier that was asked for")


class FailureRecord(Part):
    causes: Annotated[list[str], Loose] = Field([], description="exceptions, the deepest first")
    foreign_address: LooseText = Field(
        None, description="where the job tried to connect, if no service of the run is there"
    )
    log: LooseText = Field(None, description="its log, relative to the run directory")
    hint: LooseText = Field(None, description="what the user can do about the cause")


class JobRecord(Part):
    starts: Annotated[int, a_count] = Field(1, description="how often the job was started")
    exits: Annotated[list[ExitRecord] | None, objects_or_null] = Field(None, description="each exit of its process")
    jvms: Annotated[list[JvmRecord], Loose] = Field([], description="how each of its JVMs was started")
    died_before_fault: Bool = Field(False, description="the job failed before any fault struck")
    given_up: Annotated[bool, Loose] = Field(False, description="the job was restarted too often without progress")
    traceback: TextOrNull = Field(None, description="the end of its log, if the run ended early")
    failure: Annotated[FailureRecord | None, object_or_null] = Field(None, description="why it failed")
    log_tail: TextOrNull = Field(None, description="the last lines of its log")

    def failure_text(self) -> str:
        """Why the job failed: the cause, where its log is, and a hint if there is one."""
        failure = self.failure
        if failure is None:  # a run stored by an earlier version, or a run of consumers
            return self.traceback or ""
        lines = [
            *(failure.causes or (self.log_tail or "").splitlines()),
            f"full log: {failure.log} in the run directory",
        ]
        if failure.foreign_address is not None:
            lines.append(
                f"{failure.foreign_address} is not an address of this run: services get new ports in each run, so "
                "pass the addresses to the job by templates in pipeline.command or pipeline.env ({kafka}, {postgres}, "
                "{postgres.jdbc})"
            )
        return "\n".join(lines if failure.hint is None else [*lines, failure.hint])


class OpenWatermark(Part):
    """Why no batch of a query has acted on its last watermark."""

    batch: LooseInt = Field(None, description="the batch that moved the watermark")
    watermark_ms: LooseInt = Field(None, description="the watermark before that batch")
    next_watermark_ms: LooseInt = Field(None, description="the watermark after it")
    reason: LooseText = Field(None, description="none, restarted, due or open")
    note: Annotated[str, Loose] = Field("", description="a sentence about it")


class OutputRecord(Part):
    """What was read back from an output."""

    columns: Annotated[dict[str, str] | None, Loose] = Field(None, description="table: column -> Postgres type")
    note: LooseText = Field(None, description="table: why it has no columns")
    rows: LooseInt = Field(None, description="table: number of rows")
    generated: Annotated[list[str], Loose] = Field(
        [], description="table: its generated columns; those that are not among its columns were not read"
    )
    committed: LooseInt = Field(None, description="topic: number of committed records")
    aborted: LooseInt = Field(None, description="topic: number of aborted records")
    open: LooseInt = Field(None, description="topic: number of records in open transactions")
    ends: Annotated[dict[int, int] | None, Loose] = Field(None, description="topic: partition -> its end offset")
    from_: LooseText = Field(None, alias="from", description="import: the name of the file it was read from")


class ExpectationRecord(Part):
    """How an oracle that runs code fared. An oracle may add notes of its own."""

    kind: LooseText = Field(None, description="the kind of oracle")
    failed: TextOrNull = Field(None, description="why the oracle gave no answer")
    chunks: Annotated[list[int] | None, Loose] = Field(None, description="reference: the chunks of its fault-free runs")
    anchored: Annotated[bool, Loose] = Field(
        False, description="reference: its fault-free runs disagree, so its anchor decides"
    )


class DecodeProblem(Part):
    """A value that cannot be decoded."""

    topic: str = Field(description="the topic")
    partition: int = Field(description="the partition")
    offset: int = Field(description="the offset")
    cause: str = Field(description="why it cannot be decoded")


class DecodeNote(Part):
    decode: LooseText = Field(None, description="the format or function, as the scenario names it")
    undecodable: Annotated[int | None, a_count] = Field(None, description="number of values that it could not decode")
    first: LooseText = Field(None, description="position of the first such value, and the error")
    problems: Annotated[list[DecodeProblem], Loose] = Field([], description="a format: the first of these values")
    types: Annotated[dict[str, str], an_object] = Field(
        {}, description="a format: path of a field, as a JSON list -> DuckDB's type, if JSON does not show it"
    )


_Notes = Annotated[dict[str, Annotated[DecodeNote | None, object_or_null]], an_object]


class DecodedRecord(Part):
    """How formats and functions that decode values fared."""

    failed: TextOrNull = Field(None, description="why no value was decoded")
    inputs: _Notes = Field({}, description="input topic -> what was decoded")
    outputs: _Notes = Field({}, description="output -> what was decoded")


class StruckRecord(Part):
    """For a slice with a stored oracle answer: the batch of the original run that a fault struck."""

    output: str = Field(description="the output that lacks the row or record")
    id: str = Field(description="identity of what is missing, as canonical JSON")
    query: str | None = Field(None, description="the query that writes the output")
    batch: int | None = Field(None, description="the batch that lost it")
    found_by: str | None = Field(None, description="how the batch was found: window or follows")
    fault: str | None = Field(None, description="the fault that struck the batch")


class SliceRecord(Part):
    """For a slice: its run and its finding."""

    of: LooseText = Field(None, description="directory of the original run")
    anomaly: LooseText = Field(None, description="anomaly of the finding")
    output: LooseText = Field(None, description="output of the finding")
    source: LooseText = Field(None, description="source of the finding")
    identity: Annotated[dict[str, Any], Loose] = Field({}, description="identity of the witness that the slice shows")
    struck: Annotated[StruckRecord | None, Loose] = Field(None, description="the batch that a fault struck")


class SharedStackRecord(Part):
    """How a run used a stack that serves several executions, one after the other."""

    served_before: LooseInt = Field(None, description="executions that the same services had served before")
    protocol_proxy: LooseBool = Field(
        None, description="connections also went through the protocol proxy, even if no fault reads frames"
    )


class _Stamp(BaseModel):
    """What every version of ``run.json`` has, whatever the rest of it is."""

    schema_: Any = Field(None, alias="schema", description="version of the tables' format")
    onceproof: Any = Field(None, description="version of onceproof that wrote the record")


class RunRecord(Part):
    """``run.json``. It grows during the run: a field that is not known yet has its default."""

    schema_: Annotated[int | None, a_whole] = Field(None, alias="schema", description="version of the tables' format")
    onceproof: LooseText = Field(None, description="version of onceproof that wrote the record")
    scenario: Annotated[StoredScenario, an_object] = Field(StoredScenario(), description="the scenario as it was run")
    scenario_path: MaybeText = Field(None, description="the scenario's file at the time of the run")
    stack_profile: LooseText = Field(None, description="what `--stack` named; how to reach that stack is not stored")
    seed: Annotated[int | None, a_whole] = Field(None, description="seed of generated input")
    wall_start: Annotated[float | None, must(is_time, "a number of seconds since 1970")] = Field(
        None, description="wall clock at 0 of the run's clock, seconds since 1970"
    )
    versions: Annotated[dict[str, str | BuiltComponent | None] | None, Loose] = Field(
        None, description="component -> version, for components built here also their SHA-256"
    )
    shared_stack: Annotated[SharedStackRecord | None, Loose] = Field(
        None, description="its services also serve other executions; null: they were its own"
    )
    tier: LooseText = Field(None, description="how the job was to be restarted: real or kept")
    machine: Annotated[dict[str, str] | None, Loose] = Field(None, description="the machine of the run, for people")
    fed: LooseBool = Field(None, description="all of the input was fed")
    drained: Bool = Field(
        False, description="recorded progress reached the known end of the input, and nothing planned was left"
    )
    drain_note: TextOrNull = Field(None, description="why the run did not drain")
    stuck: MaybeBool = Field(None, description="false: the run reached its deadline while the job still made progress")
    triggers: Annotated[dict[str, float] | None, Loose] = Field(
        None, description="query whose trigger was shortened -> its own interval in seconds"
    )
    modes: Annotated[dict[str, str] | None, Loose] = Field(
        None,
        description="query that does not log each batch before and after it -> its mode: async, continuous, realtime",
    )
    nudged: Bool = Field(False, description="the harness restarted the job after a period without progress")
    never_reads: Bool = Field(False, description="the job reads none of the topics that were fed")
    open_watermarks: Annotated[dict[str, Annotated[OpenWatermark | None, object_or_null]] | None, object_or_null] = (
        Field(None, description="query -> why no batch has acted on its last watermark")
    )
    job: Annotated[JobRecord | None, object_or_null] = Field(None, description="null: no job was run")
    outputs: Annotated[dict[str, OutputRecord | None] | None, Loose, object_or_null] = Field(
        None, description="output -> what was read back from it"
    )
    ends: Annotated[dict[str, dict[int, int]] | None, Loose] = Field(
        None, description="input topic -> partition -> its end offset"
    )
    decoded: Annotated[DecodedRecord | None, object_or_null] = Field(
        None, description="how formats and functions that decode values fared"
    )
    expectation: Annotated[ExpectationRecord | None, object_or_null] = Field(
        None, description="how an oracle that runs code fared"
    )
    imported: Bool = Field(
        False, description="made by `onceproof import`: no job was watched, and no fault was exercised"
    )
    observed: Bool = Field(False, description="the whole history is written; a run without it is never judged")
    interrupted: Bool = Field(False, description="the run was interrupted before it was observed to its end")
    error: TextOrNull = Field(None, description="the error that ended the run before it was observed to its end")
    seconds: Annotated[float, must(is_time, "a number of seconds")] = Field(0.0, description="duration of the run")
    harness_peak_rss_kib: LooseInt = Field(None, description="peak memory of the harness before judging")
    slice: Annotated[SliceRecord | None, an_object] = Field(None, description="for a slice: its run and its finding")

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The record of a stored run. It is there from the beginning of the run, long before the history.

        Raises `NotARun` if there is no record, and `HistoryError` if it is damaged, has values of the wrong type, or if
        there are links among the run's files (`onceproof.history.run_files`).
        """
        path = run_dir / FILE
        if not path.is_symlink() and not path.exists():
            what, hint = describe_path(run_dir)
            raise NotARun(f"{run_dir} is not a run: {what}", hint=hint)
        run_files.refuse_links(run_dir)
        try:
            document = json.loads(run_files.read_text(path))
        except (OSError, ValueError, RecursionError) as error:
            raise HistoryError(f"{path} cannot be read: {error}", hint=AGAIN) from error
        stamp = _Stamp.model_validate(document if isinstance(document, dict) else {})
        other = other_version(stamp.schema_, stamp.onceproof)
        if not isinstance(document, dict) or "scenario" not in document:
            raise HistoryError(f"{path} does not describe a run: {other or 'it has no scenario'}", hint=AGAIN)
        try:
            json.dumps(document, ensure_ascii=False).encode()
            return cls.model_validate(document)
        except UnicodeEncodeError:
            name, text = next(_unpaired(document, ""))
            raise HistoryError(
                f"{path}: {name} is {_shortened(text)}, which is not valid text: it holds half of a surrogate pair",
                hint=_FORMAT,
            ) from None
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            what = f"{name} is {_shortened(wrong['input'])}, but {wrong['msg']}"
            if other is not None:
                raise HistoryError(f"{path}: {other}; {what}", hint=JUDGE_THERE) from None
            raise HistoryError(f"{path}: {what}", hint=_FORMAT) from None

    def with_(self, fields: dict[str, Any], change: Callable[[str, Any], Any]) -> Self:
        """A record with these fields as well, each passed through ``change``.

        Raises `TypeError` for an unknown field, and `ValueError` for a value of the wrong type.
        """
        names = {field.alias or name for name, field in type(self).model_fields.items()}
        if unknown := fields.keys() - names:
            raise TypeError(f"a run record has no field {', '.join(sorted(unknown))}")
        new = type(self).model_validate(fields, context=_WRITING).to_json()
        return type(self).model_validate(self.to_json() | {name: change(name, value) for name, value in new.items()})


def _unpaired(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each text that UTF-8 cannot encode, keys included, with its name."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield name or "it", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _unpaired(key, f"a key of {name}" if name else "a key")
            yield from _unpaired(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unpaired(inner, f"{name}[{index}]")


def _shortened(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
