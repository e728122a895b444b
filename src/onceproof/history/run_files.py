"""Reads and writes files of a run directory that may come from another person, and touches nothing outside of it.

Its sender may have planted links: ``history/input.parquet`` may point to a file of yours, or ``slices`` to a folder of yours.
So only plain files below plain folders are read (`refuse_links`), and a file that is written replaces whatever has its name and
never follows a link (`write_text`, `fresh_folder`).

The directory itself may be a link (``onceproof-runs/latest``). It must not change while it is read.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import EVENTS
from onceproof.base.visible import READABLE

_FILES = ("run.json", EVENTS)
#: ``history`` is checked as a whole tree, ``logs`` only as a folder, because logs are written into it and not read.
_TREE, _LOGS = "history", "logs"
_HINT = "a run must consist of plain files in plain folders: copy the run together with the files it links to"


def refuse_links(run_dir: Path) -> None:
    """Raises `HistoryError` for a link, a device or a pipe where a run has a file or a folder."""
    for name in _FILES:
        _must_be(run_dir / name, stat.S_ISREG, "a file")
    for name in (_TREE, _LOGS):
        _must_be(run_dir / name, stat.S_ISDIR, "a folder")
    for parent, folders, files in os.walk(run_dir / _TREE):
        for name in folders:
            _must_be(Path(parent, name), stat.S_ISDIR, "a folder")
        for name in files:
            _must_be(Path(parent, name), stat.S_ISREG, "a file")


def read_text(path: Path) -> str:
    """The text of a plain file. Raises `OSError` for a link or anything but a file, `ValueError` if it is not UTF-8."""
    with open_text(path) as file:
        return file.read()


def open_text(path: Path, *, errors: str = "strict", newline: str | None = None) -> TextIO:
    """A plain file, open for reading. ``errors`` and ``newline`` as for `open`. Raises `OSError` for a link or anything but a file."""
    # O_NONBLOCK: opening a pipe that nobody writes to would never return.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(handle, encoding="utf-8", errors=errors, newline=newline)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(f"it is {_kind(path)}, not a file")
    return file


def open_below(folder: Path, *names: str) -> BinaryIO:
    """The plain file ``folder/name/name/...``, open for reading. Raises `OSError` if it is none, or if any name is a link's.

    The names come from others: each must be that of one file or folder, so that none leads out of ``folder``.
    """
    with _folder_below(folder, names[:-1]) as parent:
        _must_be_name(names[-1])
        handle = os.open(names[-1], os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "it is not a file", names[-1])
    return os.fdopen(handle, "rb")


def check_folder_below(folder: Path, *names: str) -> None:
    """Raises `OSError` unless ``folder/name/name/...`` is a folder, and none of the names is a link's."""
    with _folder_below(folder, names):
        return


@contextmanager
def _folder_below(folder: Path, names: Sequence[str]) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
    handle = os.open(folder, flags)
    try:
        for name in names:
            _must_be_name(name)
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _must_be_name(name: str) -> None:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FileNotFoundError(errno.ENOENT, "it is not the name of a file", name)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` in one step: a reader never sees half of it, and a link at ``path`` is replaced, not followed.

    Half of a surrogate pair, which UTF-8 cannot encode, becomes an escape. Only the owner can read the file.
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
    """Remove a folder with its content, or a file or link with that name. Links are not followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def fresh_folder(path: Path) -> Path:
    """Make an empty folder that replaces whatever is at ``path``. Missing parent folders are made as well."""
    remove(path)
    path.mkdir(parents=True)
    return path


def _must_be(path: Path, is_right: Callable[[int], bool], wanted: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return  # a caller that needs the file reports that it is missing
    except OSError as error:
        raise HistoryError(f"cannot inspect {path}: {error.strerror}") from error
    if not is_right(mode):
        raise HistoryError(f"{path} is {_kind(path)}, but a run must have {wanted} there", hint=_HINT)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return f"a symbolic link to {path.readlink()}"
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFREG: "a file", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
