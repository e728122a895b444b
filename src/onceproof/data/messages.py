"""A handful of messages, each with the key that the scenario gives it: what a schedule of consumers is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from onceproof.data import Record, datasets

_EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z, as of the numbers


class MessagesOptions(BaseModel):
    """What ``options:`` of an input with this data set may say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[str] = Field(
        ["a"] * 5, min_length=1, description="the key of each message, in order: as many as there are"
    )


@datasets.register("messages")
class Messages:
    """Message n, from 1: ``{"id": n, "key": ...}``, one second after the one before it."""

    about: ClassVar[str] = "a few numbered messages with the keys that the scenario gives them"
    Options: ClassVar[type[BaseModel]] = MessagesOptions

    def __init__(self, options: MessagesOptions, *, seed: int) -> None:
        self._keys = options.keys

    def rows(self) -> int:
        return len(self._keys)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        for number, key in list(enumerate(self._keys, start=1))[start:stop]:
            value = json.dumps({"id": number, "key": key}, ensure_ascii=False, separators=(",", ":"))
            yield Record(key.encode(), value.encode(), _EPOCH_MS + 1000 * number)

    @classmethod
    def tables(cls) -> Mapping[str, str]:
        return {}

    @classmethod
    def table(cls, name: str) -> pa.Table:
        raise KeyError(f"messages has no static table {name!r}")
