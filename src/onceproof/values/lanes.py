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
        values = positions.to_numpy()
        if not len(values):
            return None
        lanes = self._lane_of_each(names, len(values))
        order = None if (lanes == lanes[0]).all() else np.argsort(lanes, kind="stable")
        lane, value = (lanes, values) if order is None else (lanes[order], values[order])
        begins = np.flatnonzero(np.r_[True, lane[1:] != lane[:-1]])
        before = np.r_[np.int64(-1), value[:-1]]
        before[begins] = [self._last.get(int(code), -1) for code in lane[begins]]
        wrong = np.flatnonzero(value <= before)
        for begin, end in zip(begins, np.r_[begins[1:], len(lane)], strict=True):
            self._last[int(lane[begin])] = int(value[end - 1])
        if not len(wrong):
            return None
        rows = wrong if order is None else order[wrong]
        first = int(rows.argmin())
        return int(rows[first]), int(before[wrong[first]])

    def _lane_of_each(self, names: list[pa.ChunkedArray], rows: int) -> Numbers:
        """The number of each row's lane."""
        if not names:
            return np.zeros(rows, np.int64)
        inverse = np.zeros(rows, np.int64)
        for name in names:
            encoded = pc.dictionary_encode(name.combine_chunks(), null_encoding="encode")
            if isinstance(encoded, pa.ChunkedArray):
                encoded = encoded.combine_chunks()
            inverse = inverse * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy(zero_copy_only=False)
        _, one, inverse = np.unique(inverse, return_index=True, return_inverse=True)
        columns = [name.take(pa.array(one)).to_pylist() for name in names]
        codes = [self._codes.setdefault(lane, len(self._codes)) for lane in zip(*columns, strict=True)]
        return np.asarray(codes, np.int64)[inverse]
