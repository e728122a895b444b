"""The run record, ``run.json``: the scenario as it was run, and how the run went. One frozen value, read and written in one call.

What judging reads has its type checked: ``"drained": "false"`` would otherwise count as true. What is there for people
(`Loose`) is unknown where a value of another type is found. Keys of others are kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, PydanticUseDefault

from onceproof.base.errors import HistoryError, NotARun
from onceproof.history import run_files
from onceproof.history.not_a_run import what_it_is
from onceproof.scenario.model import ConsumersSpec, Scenario, kind_of_pipeline

FILE = "run.json"
#: Passed as context while a record is written: then every type is checked.
_WRITING = {"writing": True}
AGAIN = "copy the whole run directory again, or run the scenario again"
_FORMAT = "it breaks the format in docs/history.md: fix the program that wrote it, or copy the run again"


def _must(is_right: Callable[[Any], bool], wanted: str, *, null: bool = False) -> BeforeValidator:
    """A value that is not right is refused, with what it must be. Nothing is converted: text is no number."""
    words = f"{wanted} or null" if null else wanted

    def check(value: Any) -> Any:
        if not (is_right(value) or (null and value is None)):
            raise PydanticCustomError("wrong", "must be {wanted}", {"wanted": words})
        return value

    return BeforeValidator(check)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_time(value: Any) -> bool:
    """Seconds within what a clock of microseconds in 64 bits can say."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 2**43
    )


def _is_object(value: Any) -> bool:
    return isinstance(value, dict | BaseModel)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_object, value))


def _texts(value: Any) -> list[str]:
    """What may be a secret is hidden, whatever else is wrong."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _or_default(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return validate(value)
    except ValidationError:
        if info.context is not None:
            raise
        raise PydanticUseDefault from None


#: Nothing is decided by it, so a stored value of another type counts as unknown.
Loose = WrapValidator(_or_default)

_bool = _must(lambda value: isinstance(value, bool), "true or false")
_text = _must(lambda value: isinstance(value, str), "a string")
_text_or_null = _must(lambda value: isinstance(value, str), "a string", null=True)
_whole = _must(_is_whole, "a whole number")
_count = _must(lambda value: _is_whole(value) and value >= 0, "a whole number from 0 on")
_object = _must(_is_object, "an object")
_object_or_null = _must(_is_object, "an object", null=True)
_objects_or_null = _must(lambda value: value is None or _are_objects(value), "a list of objects")

Bool = Annotated[bool, _bool]
MaybeBool = Annotated[bool | None, _bool]
"""None: it is not in the record. Null is refused."""
MaybeText = Annotated[str | None, _text]
TextOrNull = Annotated[str | None, _text_or_null]


class Part(BaseModel):
    """A part of the record: frozen, and open for keys that other programs add."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def to_json(self) -> dict[str, Any]:
        """What was given, and nothing more: no default is written."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class StoredPipeline(Part):
    secrets: Annotated[list[str], BeforeValidator(_texts)] = Field(
        [], description="environment variables that the job was given"
    )
    consumers: Any = Field(None, description="plain consumers instead of a Spark job")

    @property
    def kind(self) -> str:
        """Which kind of pipeline this is (`onceproof.kinds`)."""
        return kind_of_pipeline({"consumers": self.consumers or None})

    def consumers_spec(self) -> ConsumersSpec:
        """Its consumers. Raises `ValueError` for what describes none."""
        return ConsumersSpec.model_validate(self.consumers)


class StoredScenario(Part):
    """The scenario as it was run, every default filled in. `parsed` makes a `Scenario` of it."""

    name: MaybeText = Field(None, description="that of the scenario's file")
    claim: Annotated[dict[str, Any] | None, _object] = Field(None, description="what the pipeline promises")
    chaos: Annotated[list[dict[str, Any]] | None, _objects_or_null] = Field(None, description="the faults")
    pipeline: Annotated[StoredPipeline, Loose] = Field(StoredPipeline(), description="the job under test")
    input: Any = Field(None, description="the topics that were fed")
    outputs: Any = Field(None, description="what the job writes")
    oracle: Any = Field(None, description="what the outputs must hold")
    expect: Any = Field({}, description="what `run --all` counts as right")

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        return cls.model_validate(scenario.to_json())

    def parsed(self, run_dir: Path, *, with_faults: bool = True) -> Scenario:
        """Raises `HistoryError`. Judging leaves the faults out: what they did is in the history, and their kind may be gone."""
        document = self.to_json() if with_faults else {**self.to_json(), "chaos": []}
        try:
            return Scenario.model_validate(document)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            raise HistoryError(f"the scenario in {run_dir / FILE} cannot be used: {why}") from error


class BuiltComponent(Part):
    version: str = Field(description="its version")
    sha256: str = Field(description="SHA-256 of what was built here")


class ExitRecord(Part):
    """One end of the job's process."""

    start: Annotated[int | None, Loose] = Field(None, description="which start of the job ended, from 0")
    code: Annotated[int | None, Loose] = Field(None, description="exit code")
    at: Annotated[float | None, Loose] = Field(None, description="seconds on the run's clock")
    killed: Annotated[bool | None, Loose] = Field(None, description="by the harness")
    consumer: Annotated[str | None, Loose] = Field(None, description="which of several consumers")


class FailureRecord(Part):
    causes: Annotated[list[str], Loose] = Field([], description="exceptions, the deepest first")
    foreign_address: Annotated[str | None, Loose] = Field(
        None, description="where the job tried to connect, if that is no service of the run"
    )
    log: Annotated[str | None, Loose] = Field(None, description="its log, below the run directory")


class JobRecord(Part):
    starts: Annotated[int, _count] = Field(1, description="how often the job was started")
    exits: Annotated[list[ExitRecord] | None, _objects_or_null] = Field(None, description="each end of its process")
    died_before_fault: Bool = Field(False, description="it is broken by itself")
    given_up: Annotated[bool, Loose] = Field(False, description="it was restarted too often without progress")
    traceback: TextOrNull = Field(None, description="the end of its log, where the run ended early")
    failure: Annotated[FailureRecord | None, _object_or_null] = Field(None, description="why it failed")
    log_tail: TextOrNull = Field(None, description="the last lines of its log")

    def last_words(self) -> str:
        """Why it failed: the cause first, then where the rest is, and what to do if that is known."""
        failure = self.failure
        if failure is None:  # of a run stored by an earlier version, or of consumers
            return self.traceback or ""
        lines = [
            *(failure.causes or (self.log_tail or "").splitlines()),
            f"full log: {failure.log} in the run directory",
        ]
        if failure.foreign_address is not None:
            lines.append(
                f"{failure.foreign_address} is not an address of this run: the services of a run have new ports each time, so "
                "give the job its addresses by templates in pipeline.command or pipeline.env ({kafka}, {postgres}, "
                "{postgres.jdbc})"
            )
        return "\n".join(lines)


class OpenWatermark(Part):
    """Why no batch of a query has acted on its last watermark."""

    batch: Annotated[int | None, Loose] = Field(None, description="the batch that moved it")
    watermark_ms: Annotated[int | None, Loose] = Field(None, description="before")
    next_watermark_ms: Annotated[int | None, Loose] = Field(None, description="after")
    reason: Annotated[str | None, Loose] = Field(None, description="none, restarted, due or open")
    note: Annotated[str, Loose] = Field("", description="a sentence on it")


class OutputRecord(Part):
    """What was read back of an output."""

    columns: Annotated[dict[str, str] | None, Loose] = Field(None, description="table: column -> Postgres type")
    note: Annotated[str | None, Loose] = Field(None, description="table: why there is none")
    rows: Annotated[int | None, Loose] = Field(None, description="table: its rows")
    committed: Annotated[int | None, Loose] = Field(None, description="topic: its records, by visibility")
    aborted: Annotated[int | None, Loose] = Field(None, description="topic")
    open: Annotated[int | None, Loose] = Field(None, description="topic")
    ends: Annotated[dict[int, int] | None, Loose] = Field(None, description="topic: partition -> where it ends")
    from_: Annotated[str | None, Loose] = Field(None, alias="from", description="import: the name of its file")


class ExpectationRecord(Part):
    """What became of an oracle that runs code. An oracle may add notes of its own."""

    kind: Annotated[str | None, Loose] = Field(None, description="the kind of oracle")
    failed: TextOrNull = Field(None, description="why it gave no answer")
    chunks: Annotated[list[int] | None, Loose] = Field(None, description="reference: the chunks of its fault-free runs")
    anchored: Annotated[bool, Loose] = Field(False, description="reference: those disagree, and its anchor decides")


class DecodeNote(Part):
    decode: Annotated[str | None, Loose] = Field(None, description="the function, as the scenario names it")
    undecodable: Annotated[int | None, _count] = Field(None, description="how many values it could not decode")
    first: Annotated[str | None, Loose] = Field(None, description="where the first of them is, and the error")


_Notes = Annotated[dict[str, Annotated[DecodeNote | None, _object_or_null]], _object]


class DecodedRecord(Part):
    """What became of functions that decode values."""

    failed: TextOrNull = Field(None, description="why none was decoded")
    inputs: _Notes = Field({}, description="input topic -> what was decoded of it")
    outputs: _Notes = Field({}, description="output -> what was decoded of it")


class StruckRecord(Part):
    """Of a slice whose oracle's answer is stored: which batch of the run a fault struck."""

    output: str = Field(description="of the lost effect")
    id: str = Field(description="its identity, as canonical JSON")
    query: str | None = Field(None, description="that writes the output")
    batch: int | None = Field(None, description="that lost it")
    found_by: str | None = Field(None, description="window or follows")
    fault: str | None = Field(None, description="that struck the batch")


class SliceRecord(Part):
    """Of a slice: which run and finding it is of."""

    of: Annotated[str | None, Loose] = Field(None, description="the run's directory")
    anomaly: Annotated[str | None, Loose] = Field(None, description="of the finding")
    output: Annotated[str | None, Loose] = Field(None, description="of the finding")
    source: Annotated[str | None, Loose] = Field(None, description="of the finding")
    identity: Annotated[dict[str, Any], Loose] = Field({}, description="of the witness that it shows")
    struck: Annotated[StruckRecord | None, Loose] = Field(None, description="the batch that a fault struck")


class RunRecord(Part):
    """``run.json``. It grows while the run goes on: what is not known yet has its default."""

    schema_: Annotated[int | None, _whole] = Field(None, alias="schema", description="version of the tables' format")
    onceproof: Annotated[str | None, Loose] = Field(None, description="the version that wrote it")
    scenario: Annotated[StoredScenario, _object] = Field(StoredScenario(), description="the scenario as it was run")
    scenario_path: MaybeText = Field(None, description="its file when it was run")
    seed: Annotated[int | None, _whole] = Field(None, description="of generated input")
    wall_start: Annotated[float | None, _must(_is_time, "a number of seconds since 1970")] = Field(
        None, description="wall clock at 0 of the run's own, seconds since 1970"
    )
    versions: Annotated[dict[str, str | BuiltComponent | None] | None, Loose] = Field(
        None, description="component -> version; of what was built here also the SHA-256"
    )
    fed: Annotated[bool | None, Loose] = Field(None, description="all of the input was fed")
    drained: Bool = Field(
        False, description="recorded progress reached the known end of the input, and nothing planned was left"
    )
    drain_note: TextOrNull = Field(None, description="why it did not drain")
    stuck: MaybeBool = Field(None, description="false: it ended by its deadline while it still moved")
    nudged: Bool = Field(False, description="the harness restarted the job after a period without progress")
    never_reads: Bool = Field(False, description="the job reads no topic that was fed")
    open_watermarks: Annotated[dict[str, Annotated[OpenWatermark | None, _object_or_null]] | None, _object_or_null] = (
        Field(None, description="query -> why no batch has acted on its last watermark")
    )
    job: Annotated[JobRecord | None, _object_or_null] = Field(None, description="null: no job was run")
    outputs: Annotated[dict[str, OutputRecord | None] | None, Loose, _object_or_null] = Field(
        None, description="output -> what was read back of it"
    )
    ends: Annotated[dict[str, dict[int, int]] | None, Loose] = Field(
        None, description="input topic -> partition -> where it ends"
    )
    decoded: Annotated[DecodedRecord | None, _object_or_null] = Field(
        None, description="what became of functions that decode values"
    )
    expectation: Annotated[ExpectationRecord | None, _object_or_null] = Field(
        None, description="what became of an oracle that runs code"
    )
    imported: Bool = Field(False, description="by `onceproof import`: no job was watched, and no fault was exercised")
    observed: Bool = Field(False, description="the whole history is written; a run without it is never judged")
    interrupted: Bool = Field(False, description="how a run ended that was not observed to its end")
    error: TextOrNull = Field(None, description="how a run ended that was not observed to its end")
    seconds: Annotated[float, _must(_is_time, "a number of seconds")] = Field(0.0, description="how long it took")
    harness_peak_rss_kib: Annotated[int | None, Loose] = Field(
        None, description="high-water mark of the harness's memory before judging"
    )
    slice: Annotated[SliceRecord | None, _object] = Field(None, description="of a slice: what it is a slice of")

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The record of a stored run, which is there from the run's beginning, long before its history is.

        Raises `NotARun` where there is none, and `HistoryError` for one that is damaged, has values of the wrong type, or has
        links among its files (`onceproof.history.run_files`).
        """
        path = run_dir / FILE
        if not path.is_symlink() and not path.exists():
            what, hint = what_it_is(run_dir)
            raise NotARun(f"{run_dir} is not a run: {what}", hint=hint)
        run_files.refuse_links(run_dir)
        try:
            document = json.loads(run_files.read_text(path))
        except (OSError, ValueError, RecursionError) as error:
            raise HistoryError(f"{path} cannot be read: {error}", hint=AGAIN) from error
        if not isinstance(document, dict) or "scenario" not in document:
            raise HistoryError(f"{path} does not describe a run: it names no scenario", hint=AGAIN)
        try:
            json.dumps(document, ensure_ascii=False).encode()
            return cls.model_validate(document)
        except UnicodeEncodeError:
            name, text = next(_unpaired(document, ""))
            said = f"{name} is {_shown(text)}, which holds half of a surrogate pair: that is no text"
            raise HistoryError(f"{path}: {said}", hint=_FORMAT) from None
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            raise HistoryError(
                f"{path}: {name} is {_shown(wrong['input'])}, and {wrong['msg']}", hint=_FORMAT
            ) from None

    def with_(self, fields: dict[str, Any], change: Callable[[str, Any], Any]) -> Self:
        """With these fields as well, each after ``change``. Raises `TypeError` for a name that is none of a record's fields, and
        `ValueError` for a value of the wrong type.
        """
        names = {field.alias or name for name, field in type(self).model_fields.items()}
        if unknown := fields.keys() - names:
            raise TypeError(f"a run record has no field {', '.join(sorted(unknown))}")
        new = type(self).model_validate(fields, context=_WRITING).to_json()
        return type(self).model_validate(self.to_json() | {name: change(name, value) for name, value in new.items()})


def _unpaired(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The texts that cannot be written as UTF-8, keys among them."""
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


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
