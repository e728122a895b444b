"""Fetches artifacts from a Maven repository through jgo, without resolving any. Imported only if something is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
import tenacity
from jgo.config import GlobalSettings
from jgo.maven import MavenContext, PythonResolver
from jgo.maven._core import DEFAULT_REMOTE_REPOS, Artifact

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.progress import Progress

#: Seconds without a byte after which an attempt fails; there are three attempts.
_SILENCE_S = 20


def context(folder: Path, progress: Progress) -> MavenContext:
    """What fetches artifacts into ``folder``, from Maven Central or the user's mirror of it."""

    @contextlib.contextmanager
    def watch(_file: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield lambda _bytes: progress.check()

    # A mirror that the user has configured for jgo is used too; the pinned hashes show whether its files are right.
    repositories = {**DEFAULT_REMOTE_REPOS, **GlobalSettings.load().repositories}
    return MavenContext(
        resolver=PythonResolver(progress_callback=watch),
        repo_cache=folder,
        local_repos=[],
        remote_repos=repositories,
        timeout=_SILENCE_S,
    )


def download(maven: MavenContext, coordinate: str) -> Path:
    """The file of this coordinate, fetched in up to three attempts. Raises `EnvironmentProblem`."""
    try:
        return _with_retries(artifact(maven, coordinate))
    except (requests.RequestException, RuntimeError) as error:
        raise EnvironmentProblem(
            f"cannot fetch {coordinate}: {error}",
            hint="check the network; to use a mirror of Maven Central, write central = ADDRESS into the [repositories] section "
            "of ~/.config/jgo.conf",
        ) from error


def artifact(maven: MavenContext, coordinate: str) -> Artifact:
    """The artifact ``group:artifact:version``, a jar, or ``group:artifact:version:classifier:packaging``."""
    group, name, version, *kind = coordinate.split(":")
    return maven.project(group, name).at_version(version).artifact(*kind)


@tenacity.retry(
    # jgo raises RuntimeError for every answer but 200, including an overloaded mirror's 503.
    retry=tenacity.retry_if_exception_type((requests.RequestException, RuntimeError)),
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_exponential(multiplier=0.5, max=4),
    reraise=True,
)
def _with_retries(artifact: Artifact) -> Path:
    # jgo does not resume, and requires that the file does not exist; a file from an earlier attempt is incomplete.
    partial = artifact.cached_path
    if partial is not None:
        partial.unlink(missing_ok=True)
    return Path(artifact.resolve())
