"""Remembers which identities settled windows expected, so that a row that comes again later can be named.

They are in files, 24 bytes per expected row, so the memory of the process does not grow. Files older than ``remember_s`` are deleted:
a row that comes again after that is still found, because nothing explains it, but not called a duplicate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_CAUSE = np.dtype([("topic", "<i4"), ("partition", "<i4"), ("offset", "<i8")])


@dataclass(frozen=True)
class Known:
    """An expected row of a settled window."""

    window: int
    lead_in: bool
    cause: str
    """``topic/partition@offset``"""


@dataclass
class _Kept:
    window: int
    at: float
    lead_in: bool
    files: dict[str, Path]
    """Output -> file of its sorted identities; that of their causes is next to it."""


@dataclass
class Settled:
    """The identities of the windows of the last ``remember_s`` seconds. ``at`` is in seconds of a monotonic clock."""

    folder: Path
    remember_s: float
    forgotten: int = 0
    """How many windows have been forgotten."""
    _kept: deque[_Kept] = field(default_factory=deque)
    _topics: list[str] = field(default_factory=list)

    def add(
        self, window: int, at: float, output: str, hashes: np.ndarray, causes: list[np.ndarray], *, lead_in: bool
    ) -> None:
        """Remember the identities of an output. ``causes``: topic, partition and offset of each."""
        if not self._kept or self._kept[-1].window != window:
            self._kept.append(_Kept(window, at, lead_in, {}))
        files = self._kept[-1].files
        path = files.setdefault(output, self.folder / f"{window}-{len(files)}.npy")
        order = np.argsort(hashes, kind="stable")
        named = np.empty(len(order), _CAUSE)
        for column, values in zip(("partition", "offset"), causes[1:], strict=True):
            named[column] = values[order]
        names, codes = np.unique(causes[0].astype(str), return_inverse=True)
        named["topic"] = np.array([self._code(str(name)) for name in names], "<i4")[codes[order]] if len(order) else 0
        np.save(path, hashes[order].astype("<u8"))
        np.save(_causes(path), named)

    def find(self, output: str, identity: int) -> Known | None:
        """The latest expected row of this identity's digest, or None."""
        for kept in reversed(self._kept):
            if output in kept.files:
                hashes = np.load(kept.files[output], mmap_mode="r")
                at = int(np.searchsorted(hashes, np.uint64(identity)))
                if at < len(hashes) and int(hashes[at]) == identity:
                    row = np.load(_causes(kept.files[output]), mmap_mode="r")[at]
                    cause = f"{self._topics[int(row['topic'])]}/{int(row['partition'])}@{int(row['offset'])}"
                    return Known(kept.window, kept.lead_in, cause)
        return None

    def forget(self, now: float) -> None:
        """Delete the files of windows that were settled more than ``remember_s`` ago."""
        while self._kept and now - self._kept[0].at > self.remember_s:
            for path in self._kept.popleft().files.values():
                path.unlink(missing_ok=True)
                _causes(path).unlink(missing_ok=True)
            self.forgotten += 1

    def _code(self, topic: str) -> int:
        if topic not in self._topics:
            self._topics.append(topic)
        return self._topics.index(topic)


def _causes(path: Path) -> Path:
    return path.with_suffix(".causes.npy")
