"""Where the command line writes: stdout for the result, stderr for people when stdout belongs to a program."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

import typer
from rich.console import Console

from onceproof.errors import Interrupted, OnceproofError


class Output:
    """One command's output. With ``as_json``, stdout carries one JSON object and people read stderr."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._people = sys.stderr if as_json else sys.stdout

    def console(self) -> Console:
        """For live progress. Honours NO_COLOR and dumb terminals, as rich does."""
        return _Console(file=self._people, highlight=False, emoji=False)

    def say(self, text: str) -> None:
        """To people."""
        _write(self._people, text)

    def complain(self, text: str) -> None:
        _write(sys.stderr, text)

    def result(self, text: str) -> None:
        """To whoever reads stdout: the JSON object, or the text that was asked for."""
        _write(sys.stdout, text)


@contextmanager
def failing_well(output: Output) -> Iterator[None]:
    """Errors of ours become a message, under ``--json`` also an object, and their exit code."""
    try:
        with _sigterm_as_ctrl_c():
            yield
    except KeyboardInterrupt:
        _fail(output, Interrupted("interrupted"))
    except OnceproofError as error:
        _fail(output, error)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as crash:  # Python would exit with 1, which means violated
        _fail(output, crashed(crash))


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """A run has handlers of its own; this one covers what comes before and after it, where Python would just die."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def crashed(crash: Exception) -> OnceproofError:
    """A bug of ours as an error: the traceback, without the values of variables, which may hold secrets."""
    trace = "".join(traceback.format_exception(crash))
    return OnceproofError(f"onceproof itself failed\n{trace.rstrip()}", hint="please report this, with the lines above")


def _fail(output: Output, error: OnceproofError) -> None:
    output.complain(f"error: {error}")
    if output.as_json:
        verdict = "interrupted" if isinstance(error, Interrupted) else "error"
        document = {"verdict": verdict, "error": error.message, "hint": error.hint, "exit": error.exit_code}
        output.result(json.dumps(document))
    raise typer.Exit(error.exit_code) from None


def _write(stream: TextIO, text: str) -> None:
    """A reader that went away (``| head``) changes neither the run nor its exit code."""
    try:
        stream.write(text if text.endswith("\n") else f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        _to_nowhere(stream)


def _to_nowhere(stream: TextIO) -> None:
    """Further writes, also the interpreter's flush at exit, go to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """rich's own would exit with 1, which means violated."""
        _to_nowhere(self.file)  # type: ignore[arg-type]
