"""Does what Spark does with a streaming format, in one process: plans a batch, calls a task, and commits in another copy of the writer."""

from __future__ import annotations

import importlib
import pickle
import tempfile
import uuid
from pathlib import Path
from typing import Any


class AsSpark:
    """One start of a query that writes by the format whose class is ``kind`` of ``package``."""

    def __init__(self, package: str, kind: str, options: dict[str, str]) -> None:
        self._writing = getattr(importlib.import_module(f"{package}.tasks.formats"), kind)
        self._options = options
        self.run = str(uuid.uuid4())

    def write(self, rows: Any, batch_id: int) -> bool:
        """Returns whether the batch was written, as the commit of the writer does."""
        message = self.task(rows, batch_id)
        return bool(self.writer(rows.column_names, batch_id).commit([message], batch_id))

    def task(self, rows: Any, batch_id: int) -> Any:
        """An attempt at a task. Returns its message."""
        planned = pickle.loads(pickle.dumps(self.writer(rows.column_names, batch_id)))
        made = planned.write(rows.to_batches(max_chunksize=1024), batch_id, self.run)
        return pickle.loads(pickle.dumps(made))

    def writer(self, columns: list[str], batch_id: int) -> Any:
        """As it is made to plan a batch, and again to commit or to abort it: later batches are not planned yet."""
        options = dict(self._options)
        if "checkpointLocation" in options:
            options["checkpointLocation"] = str(as_planned(Path(options["checkpointLocation"]), batch_id))
        return self._writing(options, columns)


def as_planned(checkpoint: Path, batch_id: int) -> Path:
    """The checkpoint without the later batches that a test has planned already."""
    made = Path(tempfile.mkdtemp(dir=checkpoint.parent))
    for name in ("metadata", "sources", "state"):
        (made / name).symlink_to(checkpoint / name)
    (made / "offsets").mkdir()
    for number in range(batch_id + 1):
        (made / "offsets" / str(number)).symlink_to(checkpoint / "offsets" / str(number))
    return made
