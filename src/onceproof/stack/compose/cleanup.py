"""Removes what killed runs left in the containers of `onceproof up`: ``onceproof cleanup --stack compose``."""

from __future__ import annotations

from onceproof.stack.compose.profile import NAME
from onceproof.stack.compose.project import Project, of_runs
from onceproof.stack.compose.stack import profile_of
from onceproof.stack.external import cleanup, journal


def clean_up(*, dry_run: bool = False) -> list[str]:
    """What was done, as sentences; see `onceproof.stack.external.cleanup.clean_up`.

    A journal whose containers are gone is removed: what it lists was in them. Raises `EnvironmentProblem`, also if no daemon
    answers.
    """
    by_hand = Project()
    profile = profile_of(by_hand) if by_hand.containers() else None
    done, here = [], []
    for path, entry in journal.abandoned(NAME):
        if profile is not None and (entry.kafka, entry.postgres) == cleanup.addresses(profile):
            here.append((path, entry))
            continue
        if any(",".join(project.addresses()) == entry.kafka for project in of_runs()):
            done.append(f"left the containers of run {entry.run}: `onceproof cleanup` removes them")
            continue
        done.append(f"run {entry.run} left nothing: its containers, with Kafka at {entry.kafka}, are gone")
        if not dry_run:
            path.unlink(missing_ok=True)
    return done if profile is None else done + cleanup.clean_up(profile, dry_run=dry_run, journals=here)
