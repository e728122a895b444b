"""The errors that onceproof raises on purpose; each class has the exit code that the command line returns for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Ending(BaseException):
    """Why a command ends early.

    ``hint`` says what to do. ``exit_code`` is the exit code of the command line. ``run_dir`` is set once a run has a
    directory, which contains the observations until then and the services' logs.
    """

    exit_code = 4
    run_dir: Path | None = None

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class OnceproofError(Ending, Exception):
    """A problem that a person can fix."""


class Interrupted(Ending):
    """The user ended the command: Ctrl-C, SIGTERM, SIGHUP or SIGQUIT (`onceproof.base.signals`).

    Not an `Exception`: code that handles failures, in onceproof or in a library, must not take this for one.
    """

    exit_code = 130


@dataclass(frozen=True)
class Place:
    """Where a value is in a file. ``line`` and ``column`` count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One problem of a scenario: the place, what is wrong with the user's value, and the fix."""

    place: Place
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        tail = "" if self.hint is None else "\n    " + self.hint.replace("\n", "\n    ")
        return f"{self.place}: {self.message}{tail}"


class UsageError(OnceproofError):
    """The user asked for something impossible: an unknown name, a wrong type, a batch that cannot exist."""

    exit_code = 2


#: A message shows at most this many problems, and the number of the others.
_SHOWN_PROBLEMS = 50


class ScenarioError(UsageError):
    """A scenario file that is not valid. ``problems`` has all of them; the message shows the first 50."""

    def __init__(self, problems: list[Problem]) -> None:
        lines = [str(problem) for problem in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > _SHOWN_PROBLEMS:
            lines.append(f"... and {len(problems) - _SHOWN_PROBLEMS} more problems")
        super().__init__("\n".join(lines))
        self.problems = problems


class EnvironmentProblem(OnceproofError):
    """This machine lacks something that onceproof needs (no Java, no free port, a full disk)."""


class ServiceFailed(EnvironmentProblem):
    """A service of the stack did not start, or died although no fault killed it. The message has its last log lines."""

    def __init__(self, message: str, *, hint: str | None = None, log_tail: str = "") -> None:
        body = f"{message}\n  last log lines:\n{_indent(log_tail)}" if log_tail else message
        super().__init__(body, hint=hint)


class WaitTimeout(OnceproofError):
    """`onceproof.base.waiting.wait_until` reached its deadline."""


class HistoryError(OnceproofError):
    """A stored run cannot be judged: it is missing, damaged or of another version."""


class NotARun(HistoryError):
    """The path of a run leads to something else: a file, an empty folder, a qualification."""

    exit_code = 2


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


class NotEvaluated(Exception):
    """The history lacks data that this checker needs, named in the message. A claim that needs the checker is inconclusive."""
