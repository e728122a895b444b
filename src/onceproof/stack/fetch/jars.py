"""Fetches Java components: exactly the jars of the pinned coordinates."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

from onceproof.base.words import times
from onceproof.stack.fetch.progress import Progress

#: Parallel fetches. Jars are small and each takes two requests (jar and checksum), so latency matters, not bandwidth.
_AT_ONCE = 6


def fetcher(name: str, coordinates: Sequence[str]) -> Callable[[Path, Progress], None]:
    """A function that puts the files of these coordinates (`onceproof.stack.fetch.maven.artifact`) into a folder."""

    def fetch(folder: Path, progress: Progress) -> None:
        from onceproof.stack.fetch import maven  # imports jgo, which a run that fetches nothing does without

        doing = progress.doing(f"fetching {name} ({times(len(coordinates), 'file')})", steps=len(coordinates))
        fetching = maven.context(folder / "repository", progress)
        with doing as step, ThreadPool(_AT_ONCE) as pool:
            for path in pool.imap_unordered(lambda coordinate: maven.download(fetching, coordinate), coordinates):
                path.replace(folder / path.name)
                step()
            shutil.rmtree(folder / "repository")

    return fetch
