"""The journal of what a run creates on an external stack: an object is listed before it is created.

One file per run in the folder ``external`` of the state folder, removed once everything in it is removed. After a run that was
killed, ``onceproof cleanup --stack NAME`` reads it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.processes.journal import OfHarness, live_folder, store, this_harness

Kind = Literal["topic", "role", "schema", "publication", "slot"]


@dataclass(frozen=True)
class Created:
    """One object on an external service."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        service = "Kafka" if self.kind == "topic" else "Postgres"
        return f"{self.kind} {self.name} ({service})"


@dataclass(frozen=True, kw_only=True)
class Entry(OfHarness):
    """The content of one journal."""

    run: str
    stack: str
    """The profile's name."""
    kafka: str
    """Bootstrap addresses, so that a changed profile does not lead the cleanup to another cluster."""
    postgres: str
    """``host:port/database``; empty if the stack has no Postgres."""
    objects: tuple[Created, ...] = ()


def folder() -> Path:
    return live_folder().parent / "external"


class ObjectJournal:
    """The journal of this process's run. Each change is on disk when the call returns. Thread-safe."""

    def __init__(self, run: str, stack: str, kafka: str, postgres: str) -> None:
        self.path = folder() / f"{run}.json"
        self.entry = Entry(run=run, stack=stack, kafka=kafka, postgres=postgres, **this_harness())
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self.entry)
        except OSError as refused:
            raise EnvironmentProblem(
                f"cannot write the journal of created topics and tables, {self.path}: {refused.strerror or refused}",
                hint="set ONCEPROOF_STATE_DIR to a folder that you can write to",
            ) from refused

    def will_create(self, made: Created) -> None:
        """List an object that does not exist yet."""
        with self._lock:
            self._write(replace(self.entry, objects=(*self.entry.objects, made)))

    def forget(self, made: Created) -> None:
        """The object was removed, or it turned out to belong to another user."""
        with self._lock:
            self._write(replace(self.entry, objects=tuple(each for each in self.entry.objects if each != made)))

    def remove(self) -> None:
        """Remove the file, if nothing is left in it."""
        with self._lock:
            if not self.entry.objects:
                self.path.unlink(missing_ok=True)

    def _write(self, entry: Entry) -> None:
        store(self.path, entry)
        self.entry = entry


def keep(path: Path, entry: Entry) -> None:
    """Store what is left of a journal; remove the file if nothing is."""
    if entry.objects:
        store(path, entry)
    else:
        path.unlink(missing_ok=True)


def read(path: Path) -> Entry | None:
    """Read a journal; None if the file is not one."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Entry(**{**raw, "objects": tuple(Created(**each) for each in raw["objects"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def abandoned(stack: str) -> Iterator[tuple[Path, Entry]]:
    """The journals of this stack whose harness is dead. That of another host cannot be known to be."""
    for path in sorted(folder().glob("*.json")):
        entry = read(path)
        if entry is not None and entry.stack == stack and entry.is_of_this_host() and not entry.harness_is_alive():
            yield path, entry
