"""Removes what runs created on an external stack: at the end of a run, or with ``onceproof cleanup --stack NAME``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.stack.external import journal, kafka, postgres
from onceproof.stack.external.journal import Created
from onceproof.stack.external.names import identity
from onceproof.stack.external.profile import StackProfile


def remove(objects: Iterable[Created], profile: StackProfile) -> list[tuple[Created, str | None]]:
    """Remove the objects, the last created first. Each with why it could not be removed, or None."""
    return [(made, _problem(made, profile)) for made in reversed([*objects])]


def _problem(made: Created, profile: StackProfile) -> str | None:
    if not _is_named_by(identity(), made):
        return "its name is not one of this installation"
    try:
        if made.kind == "topic":
            kafka.remove_topic(made.name, profile)
        elif profile.postgres is None:
            return f"[stack.{profile.name}] has no postgres any more"
        else:
            postgres.removed(made, profile)
    except KafkaException as refused:
        return str(refused.args[0].str())
    except (psycopg.Error, WaitTimeout) as refused:
        return " ".join(str(refused).split())
    return None


def _is_named_by(identity: str, made: Created) -> bool:
    """Whatever a journal says: nothing without this installation's prefix is ever deleted."""
    return made.name.startswith((f"onceproof-{identity}-", f"onceproof_{identity}_"))


def clean_up(
    profile: StackProfile, *, dry_run: bool = False, journals: Iterable[tuple[Path, journal.Entry]] | None = None
) -> list[str]:
    """Remove what killed runs left on this stack. Returns what was done (``dry_run``: would be done) as sentences.

    ``journals``: of these runs only; None: of every killed run that used the stack of this name.

    Raises `EnvironmentProblem` that names what could not be removed; that stays in its journal.
    """
    done: list[str] = []
    failed: list[str] = []
    for path, entry in journal.abandoned(profile.name) if journals is None else journals:
        if (entry.kafka, entry.postgres) != addresses(profile):
            failed.append(
                f"run {entry.run} used Kafka {entry.kafka} and Postgres {entry.postgres or '(none)'}, "
                f"not what [stack.{profile.name}] names now: {path}"
            )
        elif dry_run:
            done += [f"would remove {made} of run {entry.run}" for made in entry.objects]
        else:
            outcome = remove(entry.objects, profile)
            done += [f"removed {made} of run {entry.run}" for made, why in outcome if why is None]
            left = [made for made, why in outcome if why is not None]
            failed += [f"could not remove {made} of run {entry.run}: {why}" for made, why in outcome if why]
            journal.keep(path, replace(entry, objects=tuple(reversed(left))))
    if failed:
        raise EnvironmentProblem(
            "\n  ".join([*failed, *done]),
            hint=f"fix the cause, then run `onceproof cleanup --stack {profile.name}` again",
        )
    return done


def addresses(profile: StackProfile) -> tuple[str, str]:
    """What a journal records of a profile's services: no user, no password."""
    if profile.postgres is None:
        return profile.kafka.bootstrap, ""
    host, port = postgres.address(profile.postgres)
    return profile.kafka.bootstrap, f"{host}:{port}/{profile.postgres.parts()['dbname']}"
