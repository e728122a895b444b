"""A local copy of a checkpoint that is in an object store, for everything that reads a checkpoint's files.

The copy is brought up to date whenever a driver reports a log write, whenever code asks about a file, and several times a
second besides, because some files (``sources/0/0``) are written without a report. It is written as Spark writes a local
checkpoint, so that the watcher sees each log entry appear under its name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError

from onceproof.base.errors import EnvironmentProblem

if TYPE_CHECKING:
    from obstore.store import S3Store

_EVERY_S = 0.2
_LOGS = ("offsets", "commits")


class CheckpointMirror:
    """Copies the objects below ``prefix`` of ``bucket`` into ``folder``. ``address`` is how a driver names the prefix.

    Of files below ``state/`` only the names are copied: they may be large, and only their existence matters. Objects that
    disappear are removed from the copy too.
    """

    def __init__(
        self, bucket: S3Store, prefix: str, address: str, folder: Path, *, on_failure: Callable[[BaseException], object]
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._address = address
        self._folder = folder
        self._on_failure = on_failure
        self._known: dict[str, tuple[object, ...]] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="checkpoint-mirror", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop following the store. Idempotent."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def local(self, address: str) -> Path | None:
        """The copy's path of a file that a driver names ``address``; None if it is not below the mirrored prefix."""
        if address == self._address:
            return self._folder
        below = address.removeprefix(f"{self._address}/")
        return None if below == address else self._folder / below

    def refresh(self) -> None:
        """Bring the copy up to date: afterwards it holds what the store held when the call began, or newer.

        Raises `EnvironmentProblem` if the store does not answer.
        """
        with self._lock:
            try:
                self._copy()
            except BaseError as failure:
                raise EnvironmentProblem(
                    f"the checkpoint in the object store cannot be read: {failure}",
                    hint="logs/object-store.log in the run directory says what the store did",
                ) from failure

    def _copy(self) -> None:
        listed = [meta for page in obstore.list(self._bucket, prefix=self._prefix) for meta in page]
        found = {
            meta["path"].removeprefix(f"{self._prefix}/"): (meta["e_tag"], meta["size"], meta["last_modified"])
            for meta in listed
            if not _is_folder(meta["path"], meta["size"])
        }
        for gone in self._known.keys() - found.keys():
            (self._folder / gone).unlink(missing_ok=True)
            self._remove_empty(self._folder / gone)
            del self._known[gone]
        for name in sorted(found, key=_in_order):
            if self._known.get(name) != found[name]:
                self._fetch(name)
                self._known[name] = found[name]

    def _fetch(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = Path(name).parts
        # A query's folder may itself be named "state".
        is_log = parts[-2:-1] in (("offsets",), ("commits",)) or parts[-3:-2] == ("sources",) or parts[-1] == "metadata"
        if "state" in parts and not is_log:
            path.touch()
            return
        with suppress(FileNotFoundError):  # removed since it was listed
            content = bytes(obstore.get(self._bucket, f"{self._prefix}/{name}").bytes())
            part = path.with_name(f".{path.name}.part")
            part.write_bytes(content)
            part.replace(path)

    def _remove_empty(self, path: Path) -> None:
        for above in path.parents:
            if above == self._folder:
                return
            try:
                above.rmdir()
            except OSError:  # it holds other files
                return

    def _poll(self) -> None:
        try:
            while not self._ending.wait(_EVERY_S):
                self.refresh()
        # The watcher raises it: a copy that is not refreshed must not look like a quiet job.
        except BaseException as failure:
            self._on_failure(failure)


def _is_folder(key: str, size: int) -> bool:
    """Whether the object only marks a folder (s3a writes an empty one), or is a temporary file. An empty log entry is a file."""
    folder, _, name = key.rpartition("/")
    return name.startswith(".") or (size == 0 and folder.rpartition("/")[2] not in _LOGS)


def _in_order(name: str) -> tuple[int, int, str]:
    """Log entries last, by batch: what the watcher reads with an entry must be there before it."""
    path = Path(name)
    if path.parent.name not in _LOGS or not path.name.isdigit():
        return 0, 0, name
    return 1, 2 * int(path.name) + _LOGS.index(path.parent.name), name
