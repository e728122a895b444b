"""Fetches Java components from a Maven repository through jgo: exactly the pinned coordinates, without resolving any."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

import requests
import tenacity
from jgo.config import GlobalSettings
from jgo.maven import MavenContext, PythonResolver
from jgo.maven._core import DEFAULT_REMOTE_REPOS, Artifact

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.fetch.progress import Progress

#: Parallel fetches. Jars are small and each takes two requests (jar and checksum), so latency matters, not bandwidth.
_AT_ONCE = 6

#: Seconds without a byte after which an attempt fails; there are three attempts.
_SILENCE_S = 20


def fetcher(name: str, coordinates: Sequence[str]) -> Callable[[Path, Progress], None]:
    """A function that puts the jars of these ``group:artifact:version`` coordinates into a folder."""

    def fetch(folder: Path, progress: Progress) -> None:
        doing = progress.doing(f"fetching {name} ({len(coordinates)} jars)", steps=len(coordinates))
        maven = _maven(folder / "repository", progress)
        with doing as step, ThreadPool(_AT_ONCE) as pool:
            for path in pool.imap_unordered(lambda coordinate: _download(maven, coordinate), coordinates):
                path.replace(folder / path.name)
                step()
            shutil.rmtree(folder / "repository")

    return fetch


def _maven(repository: Path, progress: Progress) -> MavenContext:
    @contextlib.contextmanager
    def watch(_file: str, _size: int) -> Iterator[Callable[[int], None]]:
        yield lambda _bytes: progress.check()

    # A mirror that the user has configured for jgo is used too; the pinned hashes show whether its files are right.
    repositories = {**DEFAULT_REMOTE_REPOS, **GlobalSettings.load().repositories}
    return MavenContext(
        resolver=PythonResolver(progress_callback=watch),
        repo_cache=repository,
        local_repos=[],
        remote_repos=repositories,
        timeout=_SILENCE_S,
    )


def _download(maven: MavenContext, coordinate: str) -> Path:
    artifact: Artifact = maven.create_dependency(coordinate).artifact
    try:
        return _with_retries(artifact)
    except (requests.RequestException, RuntimeError) as error:
        raise EnvironmentProblem(
            f"cannot fetch {coordinate}: {error}",
            hint="check the network; to use a mirror of Maven Central, write central = ADDRESS into the [repositories] section "
            "of ~/.config/jgo.conf",
        ) from error


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
