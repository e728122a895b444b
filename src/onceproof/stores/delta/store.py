"""Delta Lake as a store: a table in a folder, read back from its log. Each version is a commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from onceproof.base.errors import HistoryError, UsageError
from onceproof.history.run_record import OutputRecord
from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.stores.delta.log import LOG, DataFile, numbers, versions
from onceproof.stores.folder import FolderStore
from onceproof.values import foreign_files


class DeltaOutput(OutputSpec):
    delta: str = Field(description="the output is this Delta table; the job gets its path by {output.NAME}")

    @property
    def place(self) -> str:
        return self.delta


class DeltaStore(FolderStore):
    """Implements `onceproof.stores.contract.Store` and `NeedsJars`. Its outputs have rows in the history."""

    about = "a Delta Lake table"
    field = "delta"
    Spec = DeltaOutput
    words = Words("row", "table", "version", "added by version")

    def jars(self) -> tuple[Path, ...]:
        from onceproof.stack.fetch.components import ensure_jars  # judging needs nothing of what fetches

        return ensure_jars("delta")

    def name(self, spec: OutputSpec) -> str:
        return f"delta table {spec.place}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        if outputs is None:
            tables = [path.parent for path in sorted(stack.files.glob(f"*/{LOG}"))]
        else:
            tables = [stack.files / spec.place for spec in outputs]
        return {f"delta table {table.name}": f"version {max(found)}" for table in tables if (found := numbers(table))}

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        return {name: _collect(run, name, spec) for name, spec in run.outputs(self).items()}


def _collect(run: ReadBack, name: str, spec: OutputSpec) -> OutputRecord:
    table = run.stack.files / spec.place
    if not numbers(table):
        return OutputRecord.model_validate(
            {"columns": None, "note": f"there is no Delta table {spec.place!r}: the job never created it", "rows": 0}
        )
    position = 0
    txn: dict[str, int] = {}
    active: dict[str, DataFile] = {}
    for version in versions(table, active):
        order = next(run.commits)
        before = position
        where = {"output": name, "xid": version.number, "commit_order": order, "visibility": "committed"}
        changes = (("delete", "before", version.removes), ("insert", "content", version.adds))
        for op, column, files in changes:
            for row in _rows(files):
                change = {**where, "op": op, "offset": position, column: foreign_files.as_json(row)}
                run.writer.append("output", [change])
                position += 1
        commit = {"commit_order": order, "xid": version.number, "commit_time_us": version.time_us}
        run.writer.append("commits", [{**commit, "changes": position - before}])
        txn |= version.txn
    rows = 0
    columns: dict[str, str] = {}
    for row in _rows(active.values()):
        columns |= dict.fromkeys(row, "parquet")
        run.writer.append("snapshot", [{"output": name, "content": foreign_files.as_json(row)}])
        rows += 1
    return OutputRecord.model_validate({"columns": columns, "note": None, "rows": rows, "txn": txn})


def _rows(files: Iterable[DataFile]) -> Iterator[dict[str, Any]]:
    """Every row as column -> text or None."""
    for file in files:
        try:
            for _, row in foreign_files.rows(file.path):
                yield {column: foreign_files.as_text(value) for column, value in row.items()} | file.partition
        except UsageError as error:
            raise HistoryError(f"a Delta table cannot be read back: {error}") from error


stores.register("delta")(DeltaStore())
