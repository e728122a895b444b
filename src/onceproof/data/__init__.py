"""Data sets: what the input topics are fed with. One file a data set, registered here by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pydantic import BaseModel

from onceproof.base.registry import Registry


@dataclass(frozen=True)
class Record:
    """One record to send. ``timestamp_ms`` is its event time."""

    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Dataset(Protocol):
    about: ClassVar[str]
    Options: ClassVar[type[BaseModel]]
    """Validated ``options:`` of the scenario's input."""

    def __init__(self, options: Any, *, seed: int) -> None: ...

    def rows(self) -> int:
        """How many records there are in all."""

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in order, streamed: never all in memory."""

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        """Static tables that belong to it: name -> one line of description."""

    @classmethod
    def table(cls, name: str) -> pa.Table: ...


datasets: Registry[type[Dataset]] = Registry("dataset", "onceproof.data", "onceproof.datasets")


def open_dataset(name: str, options: Mapping[str, Any], *, seed: int) -> Dataset:
    """The data set of that name, with its ``options:`` as the scenario has them. Raises `pydantic.ValidationError`."""
    dataset = datasets.get(name)
    return dataset(dataset.Options.model_validate(options), seed=seed)
