"""Files as a store: a folder of Parquet or JSON files that Spark writes, read back with or without the file sink's log."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from pydantic import Field

from onceproof.base.errors import HistoryError, UsageError
from onceproof.base.words import are, times
from onceproof.history.run_record import OutputRecord
from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.stores.files.folder import LOG, Write, data_files, has_log, logged, unlogged
from onceproof.stores.folder import FolderStore
from onceproof.values import foreign_files

_NULL = "__HIVE_DEFAULT_PARTITION__"


class FilesOutput(OutputSpec):
    files: str = Field(description="the output is this folder of files; the job gets its path by {output.NAME}")
    format: Literal["parquet", "json"] = Field("parquet", description="json: an object per line")
    reader: Literal["spark", "listing"] = Field(
        "spark",
        description="how readers read the folder: spark reads the files in the file sink's log (_spark_metadata) if "
        "there is one; listing reads every file",
    )

    @property
    def place(self) -> str:
        return self.files


class FilesStore(FolderStore):
    """Implements `onceproof.stores.contract.Store`. Its outputs have rows in the history, like tables."""

    about = "a folder of Parquet or JSON files that Spark writes"
    field = "files"
    Spec = FilesOutput
    words = Words("row", "folder", "write", "from write")
    log = LOG

    def name(self, spec: OutputSpec) -> str:
        return f"folder {spec.place}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        if outputs is None:
            folders = sorted(stack.files.iterdir()) if stack.files.is_dir() else []
        else:
            folders = [stack.files / spec.place for spec in outputs]
        return {f"folder {folder.name}": _held(folder) for folder in folders if folder.is_dir()}

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        return {
            name: _collect(run, name, spec) for name, spec in run.outputs(self).items() if isinstance(spec, FilesOutput)
        }


def _held(folder: Path) -> str:
    files = times(len(data_files(folder)), "file")
    return f"{files}, {times(len(logged(folder)), 'entry')} in its log" if has_log(folder) else files


def _collect(run: ReadBack, name: str, spec: FilesOutput) -> OutputRecord:
    folder = run.stack.files / spec.place
    if not folder.is_dir():
        return OutputRecord.model_validate(
            {"columns": None, "note": f"there is no folder {spec.place!r}: the job never wrote to it", "rows": 0}
        )
    files = data_files(folder)
    by_log = spec.reader == "spark" and has_log(folder)
    writes = logged(folder) if by_log else unlogged(files)
    visible = [path for write in writes for path in write.files]
    gone = [path for path in visible if not path.is_file()]
    position = rows = 0
    columns: dict[str, str] = {}
    for write in writes:
        order = next(run.commits)
        changes = 0
        for row in _rows(folder, write, spec, set(gone)):
            columns |= dict.fromkeys(row, spec.format)
            change = {"xid": write.number, "commit_order": order, "visibility": "committed"}
            _append(run, name, row, position, change)
            run.writer.append("snapshot", [{"output": name, "content": foreign_files.as_json(row)}])
            position, changes = position + 1, changes + 1
        commit = {"commit_order": order, "xid": write.number, "commit_time_us": write.time_us, "changes": changes}
        run.writer.append("commits", [commit])
        rows += changes
    notes = []
    if gone:
        notes.append(
            f"the log lists {times(len(gone), 'file')} that {are(len(gone))} missing, the first is {gone[0].name}"
        )
    if unlisted := [path for path in files if path not in set(visible)]:
        aborted, unreadable = 0, 0
        for path in unlisted:
            try:
                for row in _rows(folder, Write(0, 0, (path,)), spec, set()):
                    _append(run, name, row, position, {"visibility": "aborted"})
                    position, aborted = position + 1, aborted + 1
            except HistoryError:  # half written by a killed task, so no reader could read it
                unreadable += 1
        notes.append(
            f"folder {spec.place} holds {times(len(unlisted), 'file')} that its log does not list ({times(aborted, 'row')}"
            f"{f', {unreadable} unreadable' if unreadable else ''}): a reader that ignores the log reads them (reader: listing)"
        )
    for note in notes:
        run.timeline.emit("warning", message=note)
    return OutputRecord.model_validate(
        {
            "columns": columns,
            "note": "; ".join(notes) or None,
            "rows": rows,
            "files": {str(w.number): _names(w) for w in writes},
        }
    )


def _names(write: Write) -> list[str]:
    return [path.name for path in write.files]


def _append(run: ReadBack, name: str, row: dict[str, Any], position: int, change: dict[str, Any]) -> None:
    content = foreign_files.as_json(row)
    run.writer.append("output", [{"output": name, "op": "insert", "offset": position, "content": content, **change}])


def _rows(folder: Path, write: Write, spec: FilesOutput, gone: set[Path]) -> Iterator[dict[str, Any]]:
    """Every row as column -> text or None, including columns from the names of folders (``day=2013-01-03``)."""
    for path in write.files:
        if path in gone:
            continue
        folder_columns: dict[str, str | None] = {}
        for part in path.relative_to(folder).parts[:-1]:
            column, _, value = part.partition("=")
            folder_columns[unquote(column)] = None if value == _NULL else unquote(value)
        try:
            for _, row in foreign_files.rows(path, ending={"json": ".jsonl", "parquet": ".parquet"}[spec.format]):
                yield {column: foreign_files.as_text(value) for column, value in row.items()} | folder_columns
        except UsageError as error:
            raise HistoryError(f"output folder {spec.place!r} cannot be read back: {error}") from error


stores.register("files")(FilesStore())
