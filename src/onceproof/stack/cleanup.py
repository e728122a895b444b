"""``onceproof cleanup``: end the processes and remove the folders that a killed harness left, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

from onceproof.base.errors import EnvironmentProblem, OnceproofError
from onceproof.base.words import times
from onceproof.stack.compose import project
from onceproof.stack.processes import journal, procfs, shared_memory
from onceproof.stack.processes.owner import SCRATCH_PREFIX, kill_marked, kill_sessions, remove_folder


def clean_up(dry_run: bool = False) -> list[str]:
    """Clean up after every journal whose harness is dead. Returns what was done (``dry_run``: would be done) as sentences.

    A process is killed only if it certainly belongs to the dead run: its session's leader has the pid *and* start time
    in the journal, or its environment has the run's mark. The journal is removed last, so an interrupted clean-up can be
    repeated. Raises `EnvironmentProblem` at the end if something could not be removed; that run's journal stays.
    """
    done: list[str] = []
    failed: list[str] = []
    for path in sorted(journal.live_folder().glob("*.json")):
        entry = journal.read(path)
        if entry is None:
            done.append(f"left {path} alone: it is not a journal that this version can read")
        elif not entry.is_of_this_host():
            done.append(f"left run {entry.run_id} alone: it was started on {entry.host}; run `onceproof cleanup` there")
        elif not entry.harness_is_alive():
            done += _end_processes(entry, dry_run)
            removed, not_removed = _remove_folders(entry, dry_run)
            if entry.daemon != "":
                try:
                    removed += project.clean_up(entry.run_id, entry.daemon, dry_run=dry_run)
                except OnceproofError as refused:
                    not_removed.append(f"could not remove the containers of run {entry.run_id}: {refused}")
            done += removed
            failed += not_removed
            if not dry_run and not not_removed:
                path.unlink(missing_ok=True)
    if failed:
        raise EnvironmentProblem(
            "\n  ".join([*failed, *done]), hint="fix the cause, then run `onceproof cleanup` again"
        )
    return done


def _end_processes(entry: journal.Entry, dry_run: bool) -> list[str]:
    verb = "would end" if dry_run else "ended"
    done = []
    reported: set[int] = set()
    for session in entry.sessions:
        members = _members(entry, session)
        if not members:
            continue
        if not dry_run:
            kill_sessions({session.sid}, session.name)
        reported |= {stat.pid for stat in members}
        done.append(
            f"{verb} {session.name} of run {entry.run_id}: {times(len(members), 'process')} (session {session.sid})"
        )
    marked = {stat.pid for stat in procfs.marked(journal.RUN_MARK, entry.run_id)}
    if not dry_run:
        kill_marked(entry.run_id)
    strays = sorted(marked - reported)
    if strays:
        pids = ", ".join(map(str, strays))
        done.append(f"{verb} {times(len(strays), 'process')} of run {entry.run_id} outside its sessions (pid {pids})")
    return done


def _remove_folders(entry: journal.Entry, dry_run: bool) -> tuple[list[str], list[str]]:
    """Remove the run's scratch folders; return what was removed and what could not be removed, as sentences."""
    done, failed = [], []
    verb = "would remove" if dry_run else "removed"
    for folder in filter(_is_scratch, map(Path, entry.folders)):
        done += [
            f"{verb} shared memory segment {segment.id} of run {entry.run_id}"
            for segment in shared_memory.unused_segments(folder)
        ]
        try:
            if not dry_run:
                remove_folder(folder)
        except OSError as error:
            failed.append(f"could not remove {folder}: {error}")
        else:
            done.append(f"{verb} {folder}")
    return done, failed


def _members(entry: journal.Entry, session: journal.StartedSession) -> list[procfs.Stat]:
    if entry.boot != procfs.boot_id():
        return []
    leader = procfs.stat(session.sid)
    # Without its leader, the session id may belong to another session by now; members are then found by the run's mark.
    if leader is None or leader.start_ticks != session.start_ticks:
        return []
    return procfs.family({session.sid})


def _is_scratch(folder: Path) -> bool:
    """Whether this is an existing folder of this user (not a link put in its place) with the name of a scratch folder."""
    return (
        folder.name.startswith(SCRATCH_PREFIX)
        and folder.is_dir()
        and not folder.is_symlink()
        and folder.stat().st_uid == os.getuid()
    )
