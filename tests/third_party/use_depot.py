"""Uses onceproof in a process of its own, for `test_third_party`: ``use_depot.py FOLDER`` prints one JSON object.

FOLDER/requests.json has ``commands``, a list of argument lists, and ``scenario``, the scenario whose run is made, or null.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from typer.testing import CliRunner

import onceproof
from onceproof.base.timeline import Timeline
from onceproof.cli.app import app
from onceproof.data import open_dataset
from onceproof.expectation.decode import decode_topics
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import StoredScenario
from onceproof.history.schema import VERSION
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.model import Scenario
from onceproof.stores.contract import ReadBack, store_of


def make_run(scenario: Scenario, folder: Path) -> None:
    """The run directory FOLDER/run, as a run would leave it whose job has written what is below FOLDER/files."""
    directory = RunDir(folder / "run")
    directory.logs.mkdir(parents=True)
    timeline = Timeline(directory.events)
    (spec,) = scenario.input
    (output,) = scenario.outputs.values()
    dataset = open_dataset(spec.dataset, spec.options, seed=scenario.seed)
    with HistoryWriter(directory.path) as writer:
        for offset, record in enumerate(dataset.records(0, dataset.rows())):
            where = {"topic": spec.topic, "partition": 0, "offset": offset}
            writer.append("sent", [{**where, "seq": offset, "status": "acked"}])
            row = {**where, "key": record.key, "value": record.value, "timestamp_ms": record.timestamp_ms}
            writer.append("input", [{**row, "visibility": "committed"}])
        progress = {"query": "q", "batch": 1, "topic": spec.topic, "partition": 0, "end_offset": dataset.rows()}
        writer.append("progress", [progress])
        stack = cast(Any, SimpleNamespace(files=folder / "files"))
        outputs = store_of(output).read_back(ReadBack(scenario, stack, writer, timeline))
    timeline.close()
    directory.update(schema=VERSION, scenario=StoredScenario.of(scenario), seed=scenario.seed, outputs=outputs)
    directory.update(drained=True, drain_note=None, observed=True, job=None)
    decode_topics(scenario, folder, directory)


def main(folder: Path) -> None:
    wanted = json.loads((folder / "requests.json").read_text(encoding="utf-8"))
    if wanted["scenario"] is not None:
        make_run(onceproof.load(wanted["scenario"]).scenario, folder)
    answers = []
    for arguments in wanted["commands"]:
        done = CliRunner().invoke(app, arguments, prog_name="onceproof")
        answers.append([done.exit_code, done.output])
    kinds = [name for name in dir(onceproof) if "Session" in name]
    sys.stdout.write(json.dumps({"commands": answers, "kinds": kinds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
