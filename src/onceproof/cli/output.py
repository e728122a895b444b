"""Where the command line writes: results to stdout; messages to stdout too, or to stderr if a program reads stdout."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import typer
from rich.console import Console

from onceproof.base import signals as interrupts
from onceproof.base.errors import EnvironmentProblem, Interrupted, OnceproofError
from onceproof.base.signals import interruptible
from onceproof.base.visible import visible


class Output:
    """The output of one command.

    With ``as_json``, stdout gets one JSON object. With one of the ``reports`` that names no file, stdout gets that report
    (``json`` is the same object). In both cases messages for people go to stderr.
    """

    def __init__(self, as_json: bool, reports: Sequence[str] | None = None) -> None:
        named = [name for name in reports or () if "=" not in name]
        self.printed = list(dict.fromkeys(["json"] * as_json + named))
        """The reports that stdout gets. `onceproof.cli.run.report_files` refuses more than one."""
        self.as_json = "json" in self.printed
        self.has_result = False
        """Whether the JSON object was printed."""
        self._people = sys.stderr if self.printed else sys.stdout

    def console(self) -> Console:
        """The console for live progress. Honours NO_COLOR and dumb terminals, as rich does. Print only `visible` text to it."""
        return Console(file=self._people, highlight=False, emoji=False)

    def look(self, piped_width: int = 100) -> tuple[bool, int]:
        """Whether what people see has colours, and its width in columns: of a terminal at most 120, else ``piped_width``."""
        console = self.console()
        color = console.is_terminal and console.color_system is not None and not console.no_color
        return color, min(console.width, 120) if console.is_terminal else piped_width

    def say(self, text: str, *, styled: bool = False) -> None:
        """Print ``text`` for people. If it is ``styled`` with colours, all else in it must be `visible` already."""
        _write(self._people, text if styled else visible(text))

    def complain(self, text: str) -> None:
        """Print an error for people."""
        _write(sys.stderr, visible(text))

    def command(self, line: str) -> None:
        """Print a command for a CI server, which finds it in either stream."""
        _write(self._people, line)

    def result(self, text: str) -> None:
        """Print the command's result to stdout: the JSON object, or the text."""
        self.has_result = True
        _write(sys.stdout, visible(text))


@contextmanager
def failing_well(as_json: bool = False, reports: Sequence[str] | None = None) -> Iterator[Output]:
    """The `Output` of one command. Turns our errors, and signals, into a message and an exit code, with ``--json`` also into an object."""
    output = Output(as_json, reports)
    try:
        with interruptible():
            try:
                yield output
            except typer.Exit as done:
                if done.exit_code != Interrupted.exit_code:
                    interrupts.check()
                raise
            interrupts.check()
    except KeyboardInterrupt:
        _fail(output, Interrupted("interrupted"))
    except (OnceproofError, Interrupted) as error:
        _fail(output, error)
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as crash:  # Python's own exit code would be 1, which means violated
        _fail(output, crashed(crash))


def crashed(crash: Exception) -> OnceproofError:
    """The error for a bug in onceproof: its traceback, without the values of variables, which may be secrets."""
    trace = "".join(traceback.format_exception(crash))
    return OnceproofError(f"onceproof itself failed\n{trace.rstrip()}", hint="please report this, with the lines above")


def _fail(output: Output, error: OnceproofError | Interrupted) -> None:
    is_interrupted = isinstance(error, Interrupted)
    output.complain(str(error) if is_interrupted else f"error: {error}")
    if output.as_json and not output.has_result:
        verdict = "interrupted" if is_interrupted else "error"
        document = {"verdict": verdict, "error": error.message, "hint": error.hint, "exit": error.exit_code}
        output.result(json.dumps(document))
    raise typer.Exit(error.exit_code) from None


def _write(stream: TextIO, text: str) -> None:
    stream.write(text if text.endswith("\n") else f"{text}\n")
    stream.flush()


def write_file(path: Path, text: str) -> None:
    """Write a report to a file that the user named. Raises `EnvironmentProblem`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write {path}: {error.strerror}", hint="choose another file for this report"
        ) from None
