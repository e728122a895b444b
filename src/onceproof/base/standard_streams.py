"""Standard output and standard error of the program: a write that fails never ends it, and is not forgotten."""

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
    """A file descriptor whose writes never raise. After one that failed, the others go nowhere."""

    def __init__(self, number: int, failure: OSError | None) -> None:
        super().__init__(number, "wb", closefd=False)
        self._refuses = failure
        self.failure: OSError | None = None
        """Why something that was written is lost."""

    def write(self, data: object, /) -> int:
        content = memoryview(data)  # type: ignore[arg-type]
        while self._refuses is None:
            try:
                written = super().write(content)
            except OSError as failure:
                self._refuses = failure
                break
            if written is not None:
                return written
            select.select([], [self], [])  # set to non-blocking by another process that shares it
        self.failure = self._refuses
        return content.nbytes


class StandardStreams:
    """Puts guarded streams in place of ``sys.stdout`` and ``sys.stderr``, for the rest of the process.

    They write any text: what their encoding does not have is written as an escape.
    """

    def __init__(self) -> None:
        closed = [_hold(number) for number in range(3)]
        self._output = _Guarded(1, closed[1])
        sys.stdout = _text(self._output, sys.stdout)
        sys.stderr = _text(_Guarded(2, closed[2]), sys.stderr)

    def problem(self) -> str | None:
        """Why the result did not reach standard output; None if it did, or if its reader has left (``| head``)."""
        sys.stdout.flush()
        failure = self._output.failure
        if failure is None or isinstance(failure, BrokenPipeError):
            return None
        return f"the result could not be written to standard output: {failure.strerror}"


def _hold(number: int) -> OSError | None:
    """Open a standard file that is closed, so that no other file gets its number; the error that it would have given."""
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
        return OSError(errno.EBADF, f"{_NAMES[number]} is closed")
    return None


def _text(raw: _Guarded, before: TextIO | None) -> TextIO:
    encoding = before.encoding if before is not None else "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors=READABLE, line_buffering=raw.isatty() or raw.fileno() == 2
    )


def kept(run_dir: Path) -> None:
    """Note that the verdict that is about to be shown is also in this run directory."""
    _kept.append(run_dir)


def where_kept() -> list[Path]:
    return list(_kept)


_kept: list[Path] = []
