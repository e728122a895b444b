"""`onceproof import`: makes a run directory that `check` judges, from a user's own files or from a live topic and table.

It has less than a run that onceproof observed: no batches, no recorded progress, no faults, no commit stream of Postgres.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaException
from psycopg.conninfo import conninfo_to_dict

from onceproof.base.errors import HistoryError, UsageError
from onceproof.base.masking import hiding, of_environment
from onceproof.base.registry import suggest
from onceproof.base.signals import uninterrupted
from onceproof.base.timeline import Timeline
from onceproof.base.version import __version__
from onceproof.expectation.ask import ask_oracle
from onceproof.expectation.decode import decode_topics
from onceproof.formats.feed import check_registry
from onceproof.history.execution import Execution
from onceproof.history.run_directory import RunDir, private_files
from onceproof.history.run_record import OutputRecord, StoredScenario
from onceproof.history.schema import TABLES, VERSION
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.scenario_files.load import load_to_judge
from onceproof.stack.kafka.clients import client_config
from onceproof.stores.contract import store_of
from onceproof.stores.kafka.read_back import collect_topics
from onceproof.stores.kafka.rows import as_text
from onceproof.stores.postgres.read_back import collect_snapshots
from onceproof.values import foreign_columns, foreign_files


@dataclass(frozen=True)
class Sources:
    """Where a history is imported from. Topics and tables without a file are read from the live services."""

    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Input topic -> file."""
    outputs: Mapping[str, Path] = field(default_factory=dict)
    """Output -> file."""
    tables: Mapping[str, Path] = field(default_factory=dict)
    """Name of a static table that the oracle reads -> Parquet file."""
    kafka: str | None = None
    """Bootstrap addresses."""
    postgres_env: str | None = None
    """Name of the environment variable that holds the libpq URI: it carries a password."""


@dataclass(frozen=True)
class _RemoteCluster:
    """A `onceproof.stores.kafka.read_back.Cluster` whose log files are not on this machine."""

    bootstrap: str

    def harness_client(self) -> dict[str, Any]:
        return client_config(self.bootstrap)

    def await_markers(self) -> None:
        """Does nothing: nobody has written for long."""

    def log_folders(self, _topic: str) -> Mapping[int, Path]:
        return {}

    def update_log(self, _topic: str, _partition: int, _folder: Path) -> None:
        """Does nothing: there are no folders."""


def import_history(scenario_path: Path, sources: Sources, *, runs_dir: Path, drained: bool = True) -> Path:
    """Create the run directory and return its path. ``drained``: the job has processed all of the input.

    Raises `UsageError` for a source that cannot be imported (a file, its line, a name), `ScenarioError`, and `HistoryError`
    for a service that cannot be read. After an error no incomplete run directory is left.
    """
    scenario = load_to_judge(scenario_path)
    if scenario.oracle.kind == "reference":
        hint = "an imported history needs an oracle that uses only the input: sql, identity, python or batch"
        raise UsageError("oracle reference runs the pipeline again, and an import runs no pipeline", hint=hint)
    _check_names(scenario, sources)
    check_registry(scenario, scenario_path.resolve().parent)
    conninfo = conninfo_in(sources.postgres_env)
    hidden = [*of_environment(scenario.pipeline.secrets), *filter(None, [conninfo])]
    with private_files(), hiding(hidden), _directory(runs_dir) as directory:
        timeline = Timeline(directory.events)
        try:
            timeline.emit("phase", name="import")
            directory.update(
                schema=VERSION,
                onceproof=__version__,
                scenario=StoredScenario.of(scenario),
                scenario_path=str(scenario_path),
                seed=scenario.seed,
                imported=True,
                wall_start=timeline.wall_start,
                drained=drained,
                drain_note=None if drained else "imported as not drained",
                job=None,
            )
            _static_tables(sources.tables, directory)
            with HistoryWriter(directory.path) as writer:
                found = _from_files(scenario, sources, writer)
                found |= _from_services(scenario, sources, conninfo, writer, timeline)
            directory.update(outputs=found)
            decode_topics(scenario, scenario_path.resolve().parent, directory)
            directory.update(observed=True)
            ask_oracle(Execution(scenario, scenario_path, directory, timeline), _refuse_to_run)
            timeline.emit("phase", name="stop")
        finally:
            timeline.close()
        return directory.settle(runs_dir, scenario.name).path


@contextmanager
def _directory(runs_dir: Path) -> Iterator[RunDir]:
    """A hidden run directory, which is removed if the block fails."""
    directory = RunDir.below(runs_dir / f".importing-{secrets.token_hex(4)}")
    try:
        yield directory
    except BaseException:
        with uninterrupted("removing what was imported so far"):
            shutil.rmtree(directory.path, ignore_errors=True)
            with suppress(OSError):
                runs_dir.rmdir()  # only if it is empty, as when it was created for this import
        raise


def _check_names(scenario: Scenario, sources: Sources) -> None:
    topics = [spec.topic for spec in scenario.input]
    for given, known, noun in (
        (sources.inputs, topics, "input topic"),
        (sources.outputs, list(scenario.outputs), "output"),
    ):
        for name in given:
            if name not in known:
                raise UsageError(f"the scenario has no {noun} {name!r}; {suggest(name, known)}")
    for topic in topics:
        if topic not in sources.inputs and sources.kafka is None:
            hint = f"give --input {topic}=FILE, or --kafka ADDRESS to read it"
            raise UsageError(f"no source for input topic {topic!r}", hint=hint)
    for name, spec in scenario.outputs.items():
        if name in sources.outputs:
            continue
        ways = {"topic": ("--kafka ADDRESS", sources.kafka), "table": ("--postgres-env VARIABLE", sources.postgres_env)}
        way, live = ways.get(store_of(spec).field, (None, None))
        if live is None:
            hint = f"give --output {name}=FILE{f', or {way} to read it' if way is not None else ''}"
            raise UsageError(f"no source for output {name!r}", hint=hint)


def conninfo_in(variable: str | None) -> str | None:
    """How to connect to Postgres, from this environment variable. Raises `UsageError`, without the value."""
    if variable is None:
        return None
    value = os.environ.get(variable)
    if not value:
        hint = f"export {variable}=postgresql://user:password@host/database; give the variable's name, not the URI"
        raise UsageError(f"environment variable {variable!r} is not set", hint=hint if "://" not in variable else None)
    try:
        conninfo_to_dict(value)
    except psycopg.ProgrammingError:  # its message quotes the text that it could not parse, perhaps the password
        raise UsageError(f"the value of {variable} is not a libpq URI or connection string") from None
    return value


def _static_tables(tables: Mapping[str, Path], directory: RunDir) -> None:
    for name, path in tables.items():
        if Path(name).name != name:
            raise UsageError(f"{name!r} cannot be the name of a table")
        if not path.is_file():
            raise UsageError(f"file {str(path)!r} of table {name!r} does not exist")
        try:
            foreign_files.check_names(path, pq.read_schema(path))
            shutil.copyfile(path, directory.tables / f"{name}.parquet")
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{path} is not a Parquet file: {error}") from None


def _from_files(scenario: Scenario, sources: Sources, writer: HistoryWriter) -> dict[str, OutputRecord | None]:
    for topic, path in sources.inputs.items():
        for records in _pieces(path):
            writer.append("input", _input_rows(topic, records))
    found: dict[str, OutputRecord | None] = {}
    for name, path in sources.outputs.items():
        table = scenario.outputs[name].has_rows
        if table:
            for rows in _table_pieces(path):
                writer.append("snapshot", _table_rows(name, rows))
        else:
            for records in _pieces(path):
                writer.append("output", _output_rows(name, records))
        found[name] = OutputRecord.model_validate({"from": path.name})
    return found


def _pieces(path: Path) -> Iterator[foreign_columns.Piece]:
    """The records of a file: those of a Parquet file column by column, where that is possible."""
    return foreign_columns.records(path) if foreign_files.is_parquet(path) else iter([foreign_files.records(path)])


def _table_pieces(path: Path) -> Iterator[pa.StringArray | Iterator[foreign_files.Row]]:
    if foreign_files.is_parquet(path):
        return foreign_columns.documents(path, as_texts=True)
    return iter([foreign_files.rows(path)])


Rows = Iterator[dict[str, Any]]


def _input_rows(topic: str, records: foreign_columns.Piece) -> pa.RecordBatch | Rows:
    if isinstance(records, pa.Table):
        return _batch("input", records.num_rows, topic=pa.repeat(topic, records.num_rows), **_columns(records))
    return ({"topic": topic, "visibility": "committed", **record} for record in records)


def _output_rows(name: str, records: foreign_columns.Piece) -> pa.RecordBatch | Rows:
    if isinstance(records, pa.Table):
        columns, count = _columns(records), records.num_rows
        texts = foreign_columns.as_strings(columns["value"])
        if texts is not None:
            del columns["value"]
            same = {"output": pa.repeat(name, count), "op": pa.repeat("insert", count)}
            return _batch("output", count, content=texts, **same, **columns)
        records = iter(records.to_pylist())
    return _output_records(name, records)


def _output_records(name: str, records: Rows) -> Rows:
    for record in records:
        content, raw = as_text(record.pop("value"))
        yield {"output": name, "op": "insert", "visibility": "committed", "content": content, "raw": raw, **record}


def _table_rows(name: str, rows: pa.StringArray | Iterator[foreign_files.Row]) -> pa.RecordBatch | Rows:
    """The rows of a table, each value as text."""
    if isinstance(rows, pa.Array):
        return _batch("snapshot", len(rows), output=pa.repeat(name, len(rows)), content=rows)
    return (
        {"output": name, "content": foreign_files.as_json({k: foreign_files.as_text(v) for k, v in row.items()})}
        for _, row in rows
    )


def _columns(records: pa.Table) -> dict[str, pa.Array]:
    return {name: pa.concat_arrays(records[name].chunks) for name in records.column_names}


def _batch(table: str, count: int, **columns: pa.Array) -> pa.RecordBatch:
    """A record batch of a history's table; columns that are not given are null."""
    schema = TABLES[table]
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _from_services(
    scenario: Scenario, sources: Sources, conninfo: str | None, writer: HistoryWriter, timeline: Timeline
) -> dict[str, OutputRecord | None]:
    live = {name: spec for name, spec in scenario.outputs.items() if name not in sources.outputs}
    found: dict[str, OutputRecord | None] = {}
    if sources.kafka is not None:
        inputs = [spec.topic for spec in scenario.input if spec.topic not in sources.inputs]
        topics = {name: spec.topic for name, spec in live.items() if spec.topic is not None}
        try:
            _, counts = collect_topics(_RemoteCluster(sources.kafka), inputs, topics, writer, timeline)
        except KafkaException as error:
            raise HistoryError(f"Kafka at {sources.kafka} cannot be read: {error.args[0].str()}") from error
        found |= {name: OutputRecord(columns=None, **asdict(count)) for name, count in counts.items()}
    if conninfo is not None:
        tables = {name: spec.table for name, spec in live.items() if spec.table is not None}
        found |= {
            name: OutputRecord(**asdict(table)) for name, table in collect_snapshots(conninfo, tables, writer).items()
        }
    return found


def _refuse_to_run(_execution: Execution) -> None:
    raise HistoryError("an import runs no pipeline")
