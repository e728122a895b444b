"""``onceproof cleanup``: end and remove what a killed harness left behind, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from onceproof.stack import journal, procfs
from onceproof.stack.processes import SCRATCH_PREFIX, kill_marked, kill_sessions


def clean_up(dry_run: bool = False) -> list[str]:
    """Go through every journal whose harness is dead. Returns what was done (``dry_run``: would be done) as sentences.

    A process is killed only if it is surely one of the dead run's: in a session whose leader has the noted pid *and*
    start time, or with the run's mark in its environment. The journal goes last, so a clean-up cut short can be repeated.
    """
    done: list[str] = []
    for path in sorted(journal.live_folder().glob("*.json")):
        entry = journal.read(path)
        if entry is None:
            done.append(f"left {path} alone: it is not a journal that this version can read")
        elif not entry.is_of_this_host():
            done.append(f"left run {entry.run_id} alone: it was started on {entry.host}; clean up there")
        elif not entry.harness_is_alive():
            done += _end_processes(entry, dry_run) + _remove_folders(entry, dry_run)
            if not dry_run:
                path.unlink(missing_ok=True)
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


def _remove_folders(entry: journal.Entry, dry_run: bool) -> list[str]:
    done = []
    for folder in filter(_is_scratch, map(Path, entry.folders)):
        if not dry_run:
            shutil.rmtree(folder)
        done.append(f"{'would remove' if dry_run else 'removed'} {folder}")
    return done


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
