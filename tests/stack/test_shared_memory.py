"""The segment that a killed Postgres leaves is found by its data folder; other segments are not touched."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.stack.processes import shared_memory

#: A program that creates a segment and ends, so that no process is attached to it. With one more argument it stays attached.
MAKE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
key = int(sys.argv[1])
number = libc.shmget(ctypes.c_int(key), 56, 0o1000 | 0o2000 | 0o600)
assert number >= 0, os.strerror(ctypes.get_errno())
if sys.argv[2:]:
    libc.shmat.restype = ctypes.c_void_p
    assert libc.shmat(number, None, 0) != ctypes.c_void_p(-1).value
print(os.getpid(), number, flush=True)
sys.stdin.read() if sys.argv[2:] else None
"""


@pytest.fixture
def made() -> Iterator[list[int]]:
    ids: list[int] = []
    yield ids
    for number in ids:
        ctypes.CDLL(None).shmctl(number, 0, None)


def make(made: list[int], key: int) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", MAKE, str(key)], capture_output=True, text=True, check=True)
    pid, number = map(int, done.stdout.split())
    made.append(number)
    return pid, number


def write_pidfile(folder: Path, pid: int, key: int, number: int) -> None:
    data = folder / "postgres"
    data.mkdir(exist_ok=True)
    lines = [str(pid), str(data), "1700000000", "5432", "", "127.0.0.1", f"{key % 2**64:9} {number:9}", "ready   "]
    (data / "postmaster.pid").write_text("\n".join(lines) + "\n")


def is_there(number: int) -> bool:
    return any(one.id == number for one in shared_memory._segments())


@pytest.mark.parametrize("sign", [1, -1])
def test_a_segment_without_attached_processes_is_removed(tmp_path: Path, made: list[int], sign: int) -> None:
    key = sign * (1_000_000 + os.getpid())
    pid, number = make(made, key)
    write_pidfile(tmp_path, pid, key, number)
    assert [one.id for one in shared_memory.unused_segments(tmp_path)] == [number]
    shared_memory.remove(tmp_path)
    assert not is_there(number)
    shared_memory.remove(tmp_path)


@pytest.mark.parametrize(("key", "pid"), [(1, 0), (0, 1)])
def test_a_segment_with_another_key_or_creator_stays(tmp_path: Path, made: list[int], key: int, pid: int) -> None:
    creator, number = make(made, 2_000_000 + os.getpid())
    write_pidfile(tmp_path, creator + pid, 2_000_000 + os.getpid() + key, number)
    shared_memory.remove(tmp_path)
    assert is_there(number)


def test_a_segment_with_an_attached_process_stays(tmp_path: Path, made: list[int]) -> None:
    key = 3_000_000 + os.getpid()
    holder = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(key), "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pid, number = map(int, holder.stdout.readline().split())
    made.append(number)
    write_pidfile(tmp_path, pid, key, number)
    shared_memory.remove(tmp_path)
    assert is_there(number)
    holder.communicate()
    shared_memory.remove(tmp_path)
    assert not is_there(number)


@pytest.mark.parametrize("text", ["", "1\n2\n", "x\n" * 8, "1\n\n\n\n\n\nnot numbers\n"])
def test_an_incomplete_pidfile_names_no_segment(tmp_path: Path, text: str) -> None:
    (tmp_path / "postmaster.pid").write_text(text)
    assert shared_memory.unused_segments(tmp_path) == []
