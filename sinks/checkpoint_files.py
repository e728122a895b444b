"""Reads the files of a checkpoint where they are: in a local folder, or on any file system that the driver's Spark can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from .errors import CheckpointUnreadable


class CheckpointFiles(Protocol):
    """The files of one checkpoint, by their names below it."""

    def text(self, name: str) -> str:
        """The content. Raises `CheckpointUnreadable`."""

    def exists(self, name: str) -> bool: ...

    def path(self, name: str) -> str:
        """The file's whole name, for messages."""


def files_of(location: str | Path) -> CheckpointFiles:
    """The files at a ``checkpointLocation``: a path, a ``file:`` URI, or an address with another scheme (``s3a://...``)."""
    parts = urlsplit(str(location))
    if parts.scheme not in ("", "file"):
        return _OnHadoop(str(location))
    return _InFolder(Path(unquote(parts.path) if parts.scheme else str(location)))


class _InFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, name: str) -> str:
        path = self._folder / name
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise CheckpointUnreadable(f"cannot read {path}: {error.strerror}", hint=_SAME_FOLDER) from error

    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    def path(self, name: str) -> str:
        return str(self._folder / name)


class _OnHadoop:
    """Through the driver's JVM, with its Hadoop settings: the file system and the credentials that Spark itself uses."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def text(self, name: str) -> str:
        with self._opened(name) as (files, path):
            stream = files.open(path)
            try:
                return bytes(stream.readAllBytes()).decode("utf-8")
            finally:
                stream.close()

    def exists(self, name: str) -> bool:
        with self._opened(name) as (files, path):
            return bool(files.exists(path))

    def path(self, name: str) -> str:
        return f"{self._address}/{name}"

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The file system, and the file's path on it. Raises `CheckpointUnreadable` for every error of them."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark import SparkContext

        context = SparkContext._active_spark_context
        if context is None or context._jvm is None:
            raise CheckpointUnreadable(
                f"cannot read {self.path(name)}: only Spark's driver can, and none runs in this process",
                hint="use the sink in the process that starts the query, without Spark Connect",
            )
        try:
            path = context._jvm.org.apache.hadoop.fs.Path(self.path(name))
            yield path.getFileSystem(context._jsc.hadoopConfiguration()), path
        except Py4JJavaError as error:
            why = error.java_exception.toString()
            raise CheckpointUnreadable(f"cannot read {self.path(name)}: {why}", hint=_REACHABLE) from error


_REACHABLE = (
    "give the sink the query's checkpointLocation, and check the address, the credentials and that the store is up"
)
_SAME_FOLDER = "give the sink the same folder as the query's checkpointLocation"
