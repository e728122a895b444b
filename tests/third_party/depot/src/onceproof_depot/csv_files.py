"""Store ``csv``: a folder of CSV files with headers, as ``df.write.mode("append").option("header", True).csv(folder)`` leaves it."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import Field

from onceproof.history.run_record import OutputRecord
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, shown
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.values.foreign_files import as_json


class CsvOutput(OutputSpec):
    csv: str = Field(description="the output is this folder of CSV files; the job gets its path by {output.NAME}")

    @property
    def place(self) -> str:
        return self.csv


class CsvStore:
    """Implements `onceproof.stores.contract.Store`. A file is a commit, and files are ordered by time."""

    about = "a folder of CSV files with headers"
    field = "csv"
    Spec = CsvOutput
    words = Words("row", "folder", "file", "from file")

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", spec.place):
            yield Complaint(("csv",), f"{shown(spec.place)} cannot be the name of a folder", "letters, digits, _ and -")

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return str(stack.files / spec.place)

    def name(self, spec: OutputSpec) -> str:
        return f"CSV folder {spec.place}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        places = [path.name for path in stack.files.glob("*")] if outputs is None else [spec.place for spec in outputs]
        files = {place: _files(stack.files / place) for place in places}
        return {f"CSV folder {place}": f"{len(found)} files" for place, found in files.items() if found}

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        return {name: _read_back(run, name, run.stack.files / spec.place) for name, spec in run.outputs(self).items()}


def _read_back(run: ReadBack, name: str, folder: Path) -> OutputRecord:
    position = 0
    columns: dict[str, str] = {}
    for number, path in enumerate(_files(folder), 1):
        order, first = next(run.commits), position
        for row in _rows(path):
            columns |= dict.fromkeys(row, "csv")
            content = as_json(row)
            change = {"output": name, "op": "insert", "offset": position, "xid": number, "commit_order": order}
            run.writer.append("output", [{**change, "visibility": "committed", "content": content}])
            run.writer.append("snapshot", [{"output": name, "content": content}])
            position += 1
        time_us = path.stat().st_mtime_ns // 1_000
        commit = {"commit_order": order, "xid": number, "commit_time_us": time_us, "changes": position - first}
        run.writer.append("commits", [commit])
    return OutputRecord.model_validate({"columns": columns, "rows": position})


def _rows(path: Path) -> Iterator[dict[str, str | None]]:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {column: value or None for column, value in row.items()}  # Spark writes null as nothing


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!_.]*.csv"), key=lambda path: (path.stat().st_mtime_ns, path.name))


stores.register("csv")(CsvStore())
