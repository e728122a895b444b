"""``onceproof cleanup``: end and remove what a killed harness left behind, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.processes import journal, procfs, shared_memory
from onceproof.stack.processes.owner import SCRATCH_PREFIX, kill_marked, kill_sessions, remove_folder


def clean_up(dry_run: bool = False) -> list[str]:
    """Go through every journal whose harness is dead. Returns what was done (``dry_run``: would be done) as sentences.

    A process is killed only if it is surely one of the dead run's: in a session whose leader has the noted pid *and*
    start time, or with the run's mark in its environment. The journal goes last, so a clean-up cut short can be repeated.
    Raises `EnvironmentProblem` at the end if something could not be removed; the journal of that run stays.
    """
    done: list[str] = []
    failed: list[str] = []
    for path in sorted(journal.live_folder().glob("*.json")):
        entry = journal.read(path)
        if entry is None:
            done.append(f"left {path} alone: it is not a journal that this version can read")
        elif not entry.is_of_this_host():
            done.append(f"left run {entry.run_id} alone: it was started on {entry.host}; clean up there")
        elif not entry.harness_is_alive():
            done += _end_processes(entry, dry_run)
            removed, refused = _remove_folders(entry, dry_run)
            done += removed
            failed += refused
            if not dry_run and not refused:
                path.unlink(missing_ok=True)
    if failed:
        raise EnvironmentProblem(
            "\n  ".join([*failed, *done]), hint="remove what is in the way, then: onceproof cleanup"
        )
    return done


def _end_processes(entry: journal.Entry, dry_run: bool) -> list[str]:
    verb = "would end" if dry_run else "ended"
    done = []
    told: set[int] = set()
    for session in entry.sessions:
        members = _members(entry, session)
        if not members:
            continue
        if not dry_run:
            kill_sessions({session.sid}, session.name)
        told |= {stat.pid for stat in members}
        done.append(f"{verb} {session.name} of run {entry.run_id}: {_count(len(members))} (session {session.sid})")
    marked = [stat.pid for stat in procfs.marked(journal.RUN_MARK, entry.run_id)]
    if not dry_run:
        kill_marked(entry.run_id)
    strays = sorted(set(marked) - told)
    if strays:
        done.append(f"{verb} {_count(len(strays))} of run {entry.run_id} outside its sessions: {strays}")
    return done


def _remove_folders(entry: journal.Entry, dry_run: bool) -> tuple[list[str], list[str]]:
    """What was removed, and what could not be, as sentences."""
    done, failed = [], []
    verb = "would remove" if dry_run else "removed"
    for folder in filter(_is_scratch, map(Path, entry.folders)):
        done += [
            f"{verb} shared memory segment {one.id} of run {entry.run_id}" for one in shared_memory.left_by(folder)
        ]
        try:
            if not dry_run:
                remove_folder(folder)
        except OSError as refused:
            failed.append(f"could not remove {folder}: {refused}")
        else:
            done.append(f"{verb} {folder}")
    return done, failed


def _members(entry: journal.Entry, session: journal.Session) -> list[procfs.Stat]:
    if entry.boot != procfs.boot_id():
        return []
    leader = procfs.stat(session.sid)
    # With its leader gone, a session's number may be somebody else's by now; members are then known by the mark.
    if leader is None or leader.start_ticks != session.start_ticks:
        return []
    return procfs.family({session.sid})


def _is_scratch(folder: Path) -> bool:
    """There, a real folder of ours (not a link put in its place), and named as scratch folders are."""
    return (
        folder.name.startswith(SCRATCH_PREFIX)
        and folder.is_dir()
        and not folder.is_symlink()
        and folder.stat().st_uid == os.getuid()
    )


def _count(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
