"""Data sets: the records that are fed into input topics. One file per data set, registered here by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from onceproof.base.registry import Registry
from onceproof.scenario.model import InputSpec

#: 2024-01-01T00:00:00Z, for data sets without times of their own: event times must not depend on the time of the run.
EPOCH_MS = 1_704_067_200_000
# Made once: json.dumps makes an encoder for each call with non-default settings.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Record:
    """One record to send. ``timestamp_ms`` is its event time."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Records(Protocol):
    """What a feed needs of a data set."""

    def rows(self) -> int:
        """The number of records."""

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in order, as a stream that is never completely in memory."""


class Dataset(Records, Protocol):
    about: ClassVar[str]
    Options: ClassVar[type[BaseModel]]
    """Validated ``options:`` of the scenario's input."""

    def __init__(self, options: Any, *, seed: int) -> None: ...

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        """The data set's static tables: name -> a one-line description."""

    @classmethod
    def table(cls, name: str) -> pa.Table: ...


class DatasetOptions(BaseModel):
    """Base of the ``options:`` of an input, which depend on its data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WithoutTables:
    """Base of data sets that have no static tables."""

    def __init__(self, options: Any, *, seed: int) -> None:
        self._options = options
        self._seed = seed

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        return {}

    @classmethod
    def table(cls, name: str) -> pa.Table:
        raise KeyError(f"the data set has no static table {name!r}")


def as_json(value: Any) -> bytes:
    """The value of a record: JSON without spaces."""
    return _ENCODER.encode(value).encode()


def as_iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def as_ms(iso: str) -> int:
    """A moment in ISO 8601 as milliseconds since 1970."""
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


datasets: Registry[type[Dataset]] = Registry("dataset", "onceproof.data", "onceproof.datasets")
datasets.requires(Dataset, Options=BaseModel)


def open_dataset(name: str, options: Mapping[str, Any], *, seed: int) -> Dataset:
    """The data set of that name, with the ``options:`` from the scenario. Raises `pydantic.ValidationError`."""
    dataset = datasets.get(name)
    return dataset(dataset.Options.model_validate(options), seed=seed)


def dataset_of(spec: InputSpec, seed: int) -> Dataset:
    """The data set of an input."""
    return open_dataset(spec.dataset, spec.options, seed=seed)


def rows_of(spec: InputSpec, seed: int) -> int:
    """How many records an input will have: its ``rows``, or all of its data set."""
    return spec.rows or dataset_of(spec, seed).rows()
