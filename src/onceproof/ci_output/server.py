"""Finds out which CI server runs this, and writes the results as that server shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem
from onceproof.ci_output import github, gitlab
from onceproof.ci_output.result import CiResult


def publish(
    results: Sequence[CiResult], env: Mapping[str, str], say: Callable[[str], None], *, here: Path | None = None
) -> None:
    """Write the results for the server that ``env`` names; for an unknown one, nothing: the log has them already.

    GitHub: annotations through ``say``, which must print lines as they are, and the job's summary. GitLab: a code quality
    report in the folder ``here`` (default: the current one), which keeps what earlier commands of the job reported. Raises `EnvironmentProblem` if a file cannot be written.
    """
    here = Path.cwd() if here is None else here
    if env.get("GITHUB_ACTIONS") == "true":
        for line in github.annotation_lines(results, Path(env.get("GITHUB_WORKSPACE") or here)):
            say(line)
        if file := env.get("GITHUB_STEP_SUMMARY"):
            _append(Path(file), results)
    elif env.get("GITLAB_CI") == "true":
        root = Path(env.get("CI_PROJECT_DIR") or here)
        try:
            written = here / gitlab.FILE
            before = written.read_text(encoding="utf-8", errors="replace") if written.exists() else ""
            written.write_text(gitlab.code_quality(results, root, before), encoding="utf-8")
        except OSError as error:
            raise EnvironmentProblem(f"cannot write {here / gitlab.FILE}: {error.strerror}") from None


def _append(file: Path, results: Sequence[CiResult]) -> None:
    """Append the summary to what earlier commands of the same step wrote."""
    try:
        written = file.stat().st_size if file.exists() else 0
        with file.open("a", encoding="utf-8") as out:
            out.write(github.summary(results, max(github.MOST_BYTES - written, 0)))
    except OSError as error:
        raise EnvironmentProblem(f"cannot write GITHUB_STEP_SUMMARY {file}: {error.strerror}") from None
