"""A few messages with keys from the scenario, as input for schedules of consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from pydantic import BaseModel, Field

from onceproof.data import EPOCH_MS, DatasetOptions, Record, WithoutTables, datasets


class MessagesOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    keys: list[str] = Field(
        ["a"] * 5, min_length=1, description="the key of each message, in order; their number is the number of messages"
    )


@datasets.register("messages")
class Messages(WithoutTables):
    """Message n, from 1: ``{"id": n, "key": ...}``, one second after the previous one."""

    about: ClassVar[str] = "a few numbered messages with keys from the scenario"
    Options: ClassVar[type[BaseModel]] = MessagesOptions
    _options: MessagesOptions

    def rows(self) -> int:
        return len(self._options.keys)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        for number, key in list(enumerate(self._options.keys, start=1))[start:stop]:
            value = json.dumps({"id": number, "key": key}, ensure_ascii=False, separators=(",", ":"))
            yield Record(key.encode(), value.encode(), EPOCH_MS + 1000 * number)
