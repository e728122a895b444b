"""Checks that positions rise from row to row within each of many lanes, in memory that grows only with the number of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]


class Lanes:
    """Checks the rows of a table piece by piece, in file order. A lane is a set of rows that must have rising positions."""

    def __init__(self) -> None:
        self._codes: dict[tuple[Any, ...], int] = {}
        """The columns that name a lane -> its number."""
        self._last: dict[int, int] = {}
        """Number of a lane -> its last position."""

    def fall(self, names: list[pa.ChunkedArray], positions: pa.ChunkedArray) -> tuple[int, int] | None:
        """The first row (within this piece) whose position is not above the previous one in its lane, and that position.

        ``names`` are the columns that name a lane; a null is a name like any other. Returns None if all positions rise.
        """
        values = _numbers(positions)
        if not len(values):
            return None
        if all(map(_is_constant, names)):
            return self._fall_of_one(tuple(name[0].as_py() for name in names), values)
        lanes = self._lane_of_each(names, len(values))
        order = np.argsort(lanes, kind="stable")
        lane, value = lanes[order], values[order]
        begins = np.flatnonzero(np.r_[True, lane[1:] != lane[:-1]])
        before = np.r_[np.int64(-1), value[:-1]]
        before[begins] = [self._last.get(int(code), -1) for code in lane[begins]]
        wrong = np.flatnonzero(value <= before)
        for begin, end in zip(begins, np.r_[begins[1:], len(lane)], strict=True):
            self._last[int(lane[begin])] = int(value[end - 1])
        if not len(wrong):
            return None
        rows = order[wrong]
        first = int(rows.argmin())
        return int(rows[first]), int(before[wrong[first]])

    def _fall_of_one(self, lane: tuple[Any, ...], values: Numbers) -> tuple[int, int] | None:
        """The same if all rows are in one lane, as is usual: a history is written lane by lane."""
        code = self._codes.setdefault(lane, len(self._codes))
        before = np.r_[np.int64(self._last.get(code, -1)), values[:-1]]
        self._last[code] = int(values[-1])
        wrong = np.flatnonzero(values <= before)
        return (int(wrong[0]), int(before[wrong[0]])) if len(wrong) else None

    def _lane_of_each(self, names: list[pa.ChunkedArray], rows: int) -> Numbers:
        """The number of each row's lane."""
        inverse = np.zeros(rows, np.int64)
        for name in names:
            encoded = pc.dictionary_encode(name.combine_chunks(), null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            inverse = inverse * max(len(encoded.dictionary), 1) + np.asarray(np.from_dlpack(encoded.indices), np.int64)
        _, one, inverse = np.unique(inverse, return_index=True, return_inverse=True)
        columns = [[name[int(row)].as_py() for row in one] for name in names]
        codes = [self._codes.setdefault(lane, len(self._codes)) for lane in zip(*columns, strict=True)]
        return np.asarray(codes, np.int64)[inverse]


def _numbers(column: pa.ChunkedArray) -> Numbers:
    """The numbers of a column without nulls. Not by ``to_numpy``, which imports pandas: half a second for no use."""
    chunks = [np.asarray(np.from_dlpack(chunk), np.int64) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.zeros(0, np.int64), *chunks])


def _is_constant(column: pa.ChunkedArray) -> bool:
    """Whether all values are equal, without nulls; False also if this takes more than a look."""
    if column.null_count:
        return False
    if pa.types.is_dictionary(column.type):
        return column.num_chunks == 1 and len(column.chunk(0).dictionary) == 1
    if not pa.types.is_integer(column.type):
        return False
    bounds = pc.min_max(column)
    return bool(bounds["min"] == bounds["max"])
