"""Reads and changes recorded progress for the command `sinks progress`, and turns it into text or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from onceproof.base.errors import EnvironmentProblem, OnceproofError, UsageError
from onceproof.base.masking import hiding
from onceproof.imports import conninfo_in
from onceproof.sinks.errors import SinkError
from onceproof.sinks.offsets import Progress
from onceproof.sinks.recorded import KafkaProgress, NoProgressTable, PostgresProgress, Recorded, UnknownPipeline

_FORMS = "write --set TOPIC/PARTITION=OFFSET, --set batch=NUMBER or --set query=ID"


@dataclass(frozen=True)
class Stores:
    """Where the command looks: the values of its options."""

    postgres_env: str | None
    table: str
    kafka: str | None
    topic: str | None
    kafka_config: Path | None


@dataclass(frozen=True)
class _Place:
    store: PostgresProgress | KafkaProgress
    name: str
    """``table onceproof_progress``"""
    json: dict[str, str]
    hidden: str


def show_or_change(stores: Stores, pipeline: str | None, settings: Sequence[str], *, apply: bool, as_json: bool) -> str:
    """The result of the command. Raises `UsageError` or another `OnceproofError`; nothing is changed then."""
    if settings:
        return _changed(stores, pipeline, _parsed(settings), apply, as_json)
    if apply:
        raise UsageError("--apply writes what --set names, and there is no --set", hint=_FORMS)
    found: list[tuple[_Place, list[Recorded]]] = []
    for place in _places(stores):
        with _readable_errors(place):
            found.append((place, place.store.read(pipeline)))
    if as_json:
        return json.dumps({"progress": [place.json | _as_json(one) for place, records in found for one in records]})
    return "\n\n".join(f"{place.name}\n{_table(records)}" for place, records in found)


def _changed(stores: Stores, pipeline: str | None, change: _Change, apply: bool, as_json: bool) -> str:
    places = _places(stores)
    if pipeline is None:
        raise UsageError("--set needs the pipeline whose progress is to be changed", hint="add --pipeline NAME")
    if len(places) > 1:
        raise UsageError("--set changes one store at a time", hint="give --postgres-env or --kafka, not both")
    (place,) = places
    with _readable_errors(place):
        if apply:
            before, after = place.store.change(pipeline, change)
        else:
            (before,) = place.store.read(pipeline)
            after = replace(before, progress=change(before.progress))
    if as_json:
        return json.dumps({**place.json, "before": _as_json(before), "after": _as_json(after), "applied": apply})
    return _difference(place, before, after, apply)


def _places(stores: Stores) -> list[_Place]:
    """Raises `UsageError` for options that do not fit together."""
    if (stores.kafka is None) != (stores.topic is None):
        given, missing = ("--kafka", "--topic NAME") if stores.topic is None else ("--topic", "--kafka ADDRESS")
        raise UsageError(f"{given} is given without {missing}", hint=f"add {missing}")
    found = []
    if (conninfo := conninfo_in(stores.postgres_env)) is not None:
        store = PostgresProgress(conninfo, stores.table)
        found.append(_Place(store, f"table {stores.table}", {"store": "postgres", "table": stores.table}, conninfo))
    if stores.kafka is not None and stores.topic is not None:
        config = _properties(stores.kafka_config)
        kafka = KafkaProgress(stores.kafka, stores.topic, config=config)
        secret = "\n".join(value for name, value in config.items() if "password" in name)
        found.append(_Place(kafka, f"topic {stores.topic}", {"store": "kafka", "topic": stores.topic}, secret))
    if not found:
        hint = "give --postgres-env VARIABLE, or --kafka ADDRESS --topic NAME"
        raise UsageError("the command does not know where the progress is recorded", hint=hint)
    return found


def _properties(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="name a file with lines of NAME=VALUE") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if not equals:
                # Without the line: it may be a password.
                raise UsageError(f"{path}:{number} is not NAME=VALUE", hint="write one setting of librdkafka per line")
            found[name.strip()] = value.strip()
    return found


@contextmanager
def _readable_errors(place: _Place) -> Iterator[None]:
    """Turns the errors of the sinks and of the services' clients into ours, without a password in them."""
    with hiding([place.hidden] if place.hidden else []):
        try:
            yield
        except (NoProgressTable, UnknownPipeline) as error:
            raise UsageError(error.message, hint=error.hint) from None
        except SinkError as error:
            raise OnceproofError(error.message, hint=error.hint) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise EnvironmentProblem(_first_line(error), hint="use a user that may read and update the table") from None
        except psycopg.errors.ReadOnlySqlTransaction as error:
            raise EnvironmentProblem(_first_line(error), hint="connect to the primary, not to a standby") from None
        except psycopg.errors.LockNotAvailable:
            raise EnvironmentProblem(
                f"a driver is writing a batch, and has locked its row in {place.name} for 10 s",
                hint="stop the pipeline, and repeat the command",
            ) from None
        except psycopg.Error as error:
            hint = "check the URI in the variable, and that the server accepts connections from here"
            raise EnvironmentProblem(
                f"{place.name} cannot be read or written: {_first_line(error)}", hint=hint
            ) from None
        except KafkaException as error:
            hint = "check the address, and the login in --kafka-config"
            raise EnvironmentProblem(
                f"{place.name} cannot be read or written: {error.args[0].str()}", hint=hint
            ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@dataclass(frozen=True)
class _Change:
    """The values of all ``--set``."""

    batch: int | None
    query: str | None
    offsets: dict[tuple[str, str], int]

    def __call__(self, recorded: Progress | None) -> Progress:
        """Raises `UsageError` if something is still missing for a pipeline without progress."""
        offsets = {topic: dict(ends) for topic, ends in (recorded.offsets if recorded else {}).items()}
        for (topic, partition), offset in self.offsets.items():
            offsets.setdefault(topic, {})[partition] = offset
        batch, query = self.batch, self.query
        if recorded is not None:
            batch = recorded.batch_id if batch is None else batch
            query = recorded.query_id if query is None else query
        if batch is None or query is None or not offsets:
            given = {"batch=NUMBER": batch, "query=ID": query, "TOPIC/PARTITION=OFFSET": offsets or None}
            missing = ", ".join(f"--set {form}" for form, value in given.items() if value is None)
            raise UsageError("the pipeline has no progress yet, so that all of it must be given", hint=f"add {missing}")
        return Progress(query, batch, offsets)


def _parsed(settings: Sequence[str]) -> _Change:
    batch: int | None = None
    query: str | None = None
    offsets: dict[tuple[str, str], int] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        topic, slash, partition = name.rpartition("/")
        if not equals or not value:
            raise UsageError(f"--set {setting!r} has no value", hint=_FORMS)
        if name == "batch":
            batch = _number(setting, value)
        elif name == "query":
            query = value
        elif slash and topic and partition.isascii() and partition.isdigit():
            offsets[topic, str(int(partition))] = _number(setting, value)
        else:
            raise UsageError(f"--set {setting!r}: {name!r} is not batch, query or TOPIC/PARTITION", hint=_FORMS)
    return _Change(batch, query, offsets)


def _number(setting: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and int(value) < 2**63):
        raise UsageError(f"--set {setting!r}: {value!r} is not a number from 0 to 2^63 - 1", hint=_FORMS)
    return int(value)


def _as_json(one: Recorded) -> dict[str, Any]:
    progress = one.progress
    return {
        "pipeline": one.pipeline,
        "epoch": one.epoch,
        "query_id": progress and progress.query_id,
        "batch_id": progress and progress.batch_id,
        "offsets": progress and progress.offsets,
    }


def _offsets(progress: Progress | None) -> dict[str, int]:
    """``flights/0`` -> offset, in the order of topics and partitions."""
    vector = progress.offsets if progress else {}
    return {
        f"{topic}/{partition}": ends[partition]
        for topic, ends in sorted(vector.items())
        for partition in sorted(ends, key=int)
    }


def _table(records: list[Recorded]) -> str:
    if not records:
        return "no pipeline"
    rows = [("PIPELINE", "EPOCH", "BATCH", "QUERY", "WRITTEN UP TO")]
    for one in records:
        ends = [f"{place}: {offset}" for place, offset in _offsets(one.progress).items()] or ["nothing yet"]
        batch, query = (one.progress.batch_id, one.progress.query_id) if one.progress else ("-", "-")
        rows.append((one.pipeline, str("-" if one.epoch is None else one.epoch), str(batch), query, ends[0]))
        rows += [("", "", "", "", end) for end in ends[1:]]
    return _columns(rows)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _difference(place: _Place, before: Recorded, after: Recorded, applied: bool) -> str:
    old, new = before.progress, after.progress
    old_ends, new_ends = _offsets(old), _offsets(new)
    rows = [("", "BEFORE", "AFTER" if applied else "WITH --apply")]
    if before.epoch is not None:
        rows.append(("epoch", str(before.epoch), str(after.epoch if applied else before.epoch + 1)))
    rows.append(("batch", str(old.batch_id if old else "-"), str(new.batch_id if new else "-")))
    rows.append(("query", old.query_id if old else "-", new.query_id if new else "-"))
    rows += [(end, str(old_ends.get(end, "-")), str(offset)) for end, offset in new_ends.items()]
    follows = [
        f"{end}: the records {new_ends[end]} to {offset - 1} count as not written, and are written again if they are replayed"
        if new_ends[end] < offset
        else f"{end}: the records {offset} to {new_ends[end] - 1} count as written, and are skipped"
        for end, offset in old_ends.items()
        if new_ends[end] != offset
    ]
    # A wrong name of a topic, or a partition that the pipeline has not read yet.
    follows += [
        f"{end}: nothing was recorded for it until now; its records before {offset} count as written, and are skipped"
        for end, offset in new_ends.items()
        if old is not None and end not in old_ends
    ]
    end = "written" if applied else "nothing was written: add --apply"
    return "\n".join([f"pipeline {before.pipeline} in {place.name}", _columns(rows), *follows, end])
