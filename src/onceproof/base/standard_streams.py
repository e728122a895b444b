"""Standard output and standard error of the program: a failed write does not end it, but is reported at the end."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from pathlib import Path
from typing import TextIO

from onceproof.base.visible import READABLE

_NAMES = ("standard input", "standard output", "standard error")


class _Guarded(io.FileIO):
    """A file descriptor whose writes never raise. After a failed write, all later writes are dropped."""

    def __init__(self, number: int, failure: OSError | None) -> None:
        super().__init__(number, "wb", closefd=False)
        self._broken_by = failure
        self.failure: OSError | None = None
        """Why output was lost; None if none was."""

    def write(self, data: object, /) -> int:
        content = memoryview(data)  # type: ignore[arg-type]
        while self._broken_by is None:
            try:
                written = super().write(content)
            except OSError as failure:
                self._broken_by = failure
                break
            if written is not None:
                return written
            select.select([], [self], [])  # another process that shares the descriptor has set it to non-blocking
        self.failure = self._broken_by
        return content.nbytes


class StandardStreams:
    """Replaces ``sys.stdout`` and ``sys.stderr`` by guarded streams, for the rest of the process.

    They write any text: characters that their encoding lacks are written as escapes.
    """

    def __init__(self) -> None:
        closed = [_reserve(number) for number in range(3)]
        self._output = _Guarded(1, closed[1])
        sys.stdout = _text_stream(self._output, sys.stdout)
        sys.stderr = _text_stream(_Guarded(2, closed[2]), sys.stderr)

    def problem(self) -> str | None:
        """Why the result was not written to standard output; None if it was, or if its reader has ended (``| head``)."""
        sys.stdout.flush()
        failure = self._output.failure
        if failure is None or isinstance(failure, BrokenPipeError):
            return None
        return f"the result could not be written to standard output: {failure.strerror}"


def _reserve(number: int) -> OSError | None:
    """Open a closed standard file, so that no other file gets its number; return the error that a write would have raised."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
        return OSError(errno.EBADF, f"{_NAMES[number]} is closed")
    return None


def _text_stream(raw: _Guarded, before: TextIO | None) -> TextIO:
    encoding = before.encoding if before is not None else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors=READABLE, line_buffering=raw.isatty() or raw.fileno() == 2
    )


def kept(run_dir: Path) -> None:
    """Remember the run directory of a verdict that is about to be printed, in case it cannot be."""
    _kept.append(run_dir)


def where_kept() -> list[Path]:
    """The run directories of the printed verdicts."""
    return list(_kept)


_kept: list[Path] = []
