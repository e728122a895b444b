"""The records of an input as they are fed: those of its data set, in the input's format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from onceproof.base.errors import UsageError
from onceproof.data import Record, Records, open_dataset
from onceproof.formats.codec import Encoder, Settings
from onceproof.formats.registry import Access, schema_path
from onceproof.scenario.formats import FORMATS
from onceproof.scenario.model import InputSpec, Scenario


class Encoded:
    """A data set whose JSON values are encoded. Implements `onceproof.data.Records`."""

    def __init__(self, dataset: Records, encoder: Encoder, topic: str) -> None:
        self._dataset = dataset
        self._encoder = encoder
        self._topic = topic

    def rows(self) -> int:
        return self._dataset.rows()

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Raises `UsageError` for a record that does not fit its schema."""
        for number, record in enumerate(self._dataset.records(start, stop), start + 1):
            try:
                value = self._encoder.encode(number, record.value, record.timestamp_ms)
            except (ValueError, ArithmeticError, TypeError) as error:
                raise UsageError(
                    f"record {number} of input {self._topic} cannot be encoded: {error}",
                    hint="correct the data set's record, or the schema for it",
                ) from None
            yield replace(record, value=value)


def access_of(scenario: Scenario, here: Path) -> Access | None:
    """How to reach the scenario's registry; None if it has none."""
    registry = scenario.stack.registry
    return None if registry is None else Access.of(registry, here)


def encoder_of(scenario: Scenario, spec: InputSpec, here: Path) -> Encoder | None:
    """What encodes the values of an input; None: they are fed as they are. Raises `UsageError`, `EnvironmentProblem`."""
    if spec.encode is None:
        return None
    schemas = {number: str(schema_path(file, here)) for number, file in spec.schemas.items()}
    return Encoder(Settings.of(spec, spec.encode, access_of(scenario, here), here), schemas, spec.topic)


def fed_records(scenario: Scenario, spec: InputSpec, here: Path) -> Records:
    """The records to feed. Registers their schemas, if there is a registry. Raises as `encoder_of`."""
    dataset: Records = open_dataset(spec.dataset, spec.options, seed=scenario.seed)
    encoder = encoder_of(scenario, spec, here)
    if encoder is None:
        return dataset
    encoder.register()
    return Encoded(dataset, encoder, spec.topic)


def check_registry(scenario: Scenario, here: Path) -> None:
    """Raise `UsageError` or `EnvironmentProblem` now, before anything starts, if the registry cannot be used."""
    access = access_of(scenario, here)
    named = [*(spec.decode for spec in scenario.input), *(output.decode for output in scenario.outputs.values())]
    if access is not None and any(decode in FORMATS for decode in named):
        access.open().check()
