"""A few messages with keys from the scenario, as input for schedules of consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from onceproof.data import Record, WithoutTables, datasets

_EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z, as in numbers.py


class MessagesOptions(BaseModel):
    """The ``options:`` of an input with this data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: list[str] = Field(
        ["a"] * 5, min_length=1, description="the key of each message, in order; their number is the number of messages"
    )


@datasets.register("messages")
class Messages(WithoutTables):
    """Message n, from 1: ``{"id": n, "key": ...}``, one second after the previous one."""

    about: ClassVar[str] = "a few numbered messages with keys from the scenario"
    Options: ClassVar[type[BaseModel]] = MessagesOptions

    def __init__(self, options: MessagesOptions, *, seed: int) -> None:
        self._keys = options.keys

    def rows(self) -> int:
        return len(self._keys)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        for number, key in list(enumerate(self._keys, start=1))[start:stop]:
            value = json.dumps({"id": number, "key": key}, ensure_ascii=False, separators=(",", ":"))
            yield Record(key.encode(), value.encode(), _EPOCH_MS + 1000 * number)
