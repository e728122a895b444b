"""One root for every error that onceproof raises on purpose; the leaves carry the exit code that the command line returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Ending(BaseException):
    """Why a command ends early.

    ``hint`` says what to do. ``exit_code`` is what the command line returns for it. ``run_dir`` is set once a run has a
    directory: what was observed until then, and the services' logs, are in it.
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
    """Something went wrong that a person can fix."""


class Interrupted(Ending):
    """The user ended it: Ctrl-C, SIGTERM, SIGHUP or SIGQUIT (`onceproof.base.signals`).

    Not an `Exception`: code that handles failures, its own or somebody else's, must not take this for one.
    """

    exit_code = 130


@dataclass(frozen=True)
class Place:
    """Where in a file a value stands. ``line`` and ``column`` count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a scenario: the place, what is wrong with the user's own value, and the mend."""

    place: Place
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        tail = "" if self.hint is None else "\n    " + self.hint.replace("\n", "\n    ")
        return f"{self.place}: {self.message}{tail}"


class UsageError(OnceproofError):
    """The user asked for something that cannot be: unknown name, wrong type, impossible batch."""

    exit_code = 2


#: More problems than these are only counted in the message.
_SHOWN_PROBLEMS = 50


class ScenarioError(UsageError):
    """A scenario file that does not validate; carries every problem found, of which its message shows the first 50."""

    def __init__(self, problems: list[Problem]) -> None:
        lines = [str(problem) for problem in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > _SHOWN_PROBLEMS:
            lines.append(f"... and {len(problems) - _SHOWN_PROBLEMS} more problems")
        super().__init__("\n".join(lines))
        self.problems = problems


class EnvironmentProblem(OnceproofError):
    """This machine lacks something, or holds something in the way (no Java, no free port, a full disk)."""


class ServiceFailed(EnvironmentProblem):
    """A service of the stack did not come up, or died without being told to; carries its last log lines."""

    def __init__(self, message: str, *, hint: str | None = None, log_tail: str = "") -> None:
        body = f"{message}\n  last log lines:\n{_indent(log_tail)}" if log_tail else message
        super().__init__(body, hint=hint)


class WaitTimeout(OnceproofError):
    """A named wait passed its deadline."""


class HistoryError(OnceproofError):
    """A stored run that cannot be judged: missing, damaged or of another version."""


class NotARun(HistoryError):
    """What was named as a run is something else: a file, an empty folder, a qualification."""

    exit_code = 2


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())


class NotEvaluated(Exception):
    """The history lacks what this checker needs. The message says what; the claim that needs it becomes inconclusive."""
