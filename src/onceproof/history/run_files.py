"""Reads and writes files of a run directory that may come from somebody else: nothing outside of it is touched.

Whoever sends a run directory may have planted links in it: ``history/input.parquet`` that points to a file of yours, or
``slices`` that points to a folder of yours. What is read must be a plain file below plain folders (`refuse_links`); what is
written replaces whatever has its name, and never follows it (`write_text`, `fresh_folder`).

The directory itself may be named by a link (``onceproof-runs/latest``), and must not change while it is read.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from onceproof.base.errors import HistoryError
from onceproof.base.visible import READABLE

_FILES = ("run.json", "events.jsonl")
#: Read as a whole tree; ``logs`` only as the folder in which logs are written.
_TREE, _LOGS = "history", "logs"
_HINT = "a run's files are plain files in plain folders: copy the run with what it links to, or ask for a whole one"


def refuse_links(run_dir: Path) -> None:
    """Raises `HistoryError` for a link, a device or a pipe where a run has a file or a folder."""
    for name in _FILES:
        _must_be(run_dir / name, stat.S_ISREG, "a file")
    for name in (_TREE, _LOGS):
        _must_be(run_dir / name, stat.S_ISDIR, "a folder")
    for path, is_folder in _below(run_dir / _TREE):
        if is_folder:
            _must_be(path, stat.S_ISDIR, "a folder")
        else:
            _must_be(path, stat.S_ISREG, "a file")


def read_text(path: Path) -> str:
    """The text of a plain file. Raises `OSError` for a link and for what is no file, and `ValueError` for what is no UTF-8."""
    # O_NONBLOCK: opening a pipe that nobody writes to would never return.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"it is {_kind(path)}, not a file")
        return file.read()


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one step: a reader never sees half of it, and a link that has its name is replaced, not followed.

    What UTF-8 cannot say (half of a surrogate pair) becomes an escape. Only the owner can read the file.
    """
    handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors=READABLE) as file:
            file.write(text)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, or what has its name instead. No link is followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def fresh_folder(path: Path) -> Path:
    """An empty folder, in the place of whatever has its name. Folders above it are made where they are missing."""
    remove(path)
    path.mkdir(parents=True)
    return path


def _below(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Everything in a tree, each with whether it seems to be a folder. Links are not followed."""
    for parent, folders, files in os.walk(folder):
        yield from ((Path(parent, name), True) for name in folders)
        yield from ((Path(parent, name), False) for name in files)


def _must_be(path: Path, is_right: Callable[[int], bool], wanted: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return  # whoever needs it says so
    except OSError as error:
        raise HistoryError(f"{path} cannot be looked at: {error.strerror}") from error
    if not is_right(mode):
        raise HistoryError(f"{path} is {_kind(path)}, and a run has {wanted} there: it is not read", hint=_HINT)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"a symbolic link to {path.readlink()}"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
