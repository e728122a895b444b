"""Any number of generated records: a key, a per-key sequence number, a payload of a chosen size."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from typing import ClassVar

from pydantic import BaseModel, Field, PositiveInt

from onceproof.data import EPOCH_MS, DatasetOptions, Record, WithoutTables, as_json, datasets


class NumbersOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    rows: PositiveInt = Field(100_000, description="number of records")
    keys: PositiveInt = Field(1_000, description="number of keys")
    payload_bytes: int = Field(100, ge=0, description="length of each payload in bytes")


@datasets.register("numbers")
class Numbers(WithoutTables):
    """Record i: ``{"id": i, "key": ..., "seq": n, "payload": ...}``, keyed by ``key``, 1 ms after record i-1.

    Each round of ``keys`` records holds every key once, in a different order. So the sequence number of a key is the
    number of the round, and any range of records can be made without earlier ones.
    """

    about: ClassVar[str] = "seeded records: key, per-key sequence number, payload of a chosen size"
    Options: ClassVar[type[BaseModel]] = NumbersOptions
    _options: NumbersOptions

    def __init__(self, options: NumbersOptions, *, seed: int) -> None:
        super().__init__(options, seed=seed)
        chooser = random.Random(seed)  # noqa: S311 - variety, not secrecy
        strides = [n for n in range(1, min(options.keys, 1000) + 1) if math.gcd(n, options.keys) == 1]
        self._stride = chooser.choice(strides)

    def rows(self) -> int:
        return self._options.rows

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records [start, stop) in order."""
        for i in range(start, min(stop, self._options.rows)):
            yield self._record(i)

    def _record(self, i: int) -> Record:
        turn, place = divmod(i, self._options.keys)
        digest = hashlib.blake2b(f"{self._seed}/{turn}".encode(), digest_size=8).digest()
        # A stride that is coprime to the number of keys visits each of them exactly once per round.
        number = (place * self._stride + int.from_bytes(digest)) % self._options.keys
        key = f"k{number:08d}"
        value = {"id": i, "key": key, "seq": turn, "payload": self._payload(i)}
        return Record(key.encode(), as_json(value), EPOCH_MS + i)

    def _payload(self, i: int) -> str:
        text = hashlib.blake2b(f"{self._seed}:{i}".encode(), digest_size=32).hexdigest()
        return (text * (self._options.payload_bytes // len(text) + 1))[: self._options.payload_bytes]
