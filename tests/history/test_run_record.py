"""The run record: a value of the wrong type is refused with its name, and a path that is not a run is reported as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from onceproof.base.errors import HistoryError, NotARun
from onceproof.cli.app import app
from onceproof.history import run_record
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import (
    BuiltComponent,
    DecodedRecord,
    DecodeNote,
    ExitRecord,
    ExpectationRecord,
    FailureRecord,
    JobRecord,
    OpenWatermark,
    OutputRecord,
    RunRecord,
    SliceRecord,
    StoredScenario,
    StruckRecord,
)
from onceproof.history.writer import HistoryWriter
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find

WRONG: list[tuple[str, Any, str]] = [
    ("drained", "false", 'drained is "false", but must be true or false'),
    ("drained", 0, "drained is 0, but must be true or false"),
    ("observed", "true", 'observed is "true", but must be true or false'),
    ("observed", 1, "observed is 1, but must be true or false"),
    ("stuck", "false", 'stuck is "false"'),
    ("imported", "no", 'imported is "no"'),
    ("interrupted", [], "interrupted is [], but must be true or false"),
    ("nudged", 1, "nudged is 1, but must be true or false"),
    ("never_reads", "x", 'never_reads is "x"'),
    ("drain_note", 5, "drain_note is 5, but must be a string or null"),
    ("error", {}, "error is {}, but must be a string or null"),
    ("seed", "7", 'seed is "7", but must be a whole number'),
    ("seed", 1.5, "seed is 1.5, but must be a whole number"),
    ("seed", True, "seed is true, but must be a whole number"),
    ("seed", 10**400, "seed is 1000000"),
    ("seconds", "long", 'seconds is "long", but must be a number of seconds'),
    ("wall_start", "noon", 'wall_start is "noon", but must be a number of seconds since 1970'),
    ("wall_start", float("nan"), "wall_start is NaN"),
    ("wall_start", 1e300, "wall_start is 1e+300"),
    ("schema", "2", 'schema is "2", but must be a whole number'),
    ("job", [], "job is [], but must be an object or null"),
    ("job", {"starts": "two"}, 'job.starts is "two", but must be a whole number from 0 on'),
    ("job", {"died_before_fault": "no"}, 'job.died_before_fault is "no", but must be true or false'),
    ("job", {"traceback": 3}, "job.traceback is 3, but must be a string or null"),
    ("job", {"log_tail": ["a"]}, 'job.log_tail is ["a"]'),
    ("job", {"failure": "died"}, 'job.failure is "died", but must be an object or null'),
    ("job", {"exits": 1}, "job.exits is 1, but must be a list of objects"),
    ("open_watermarks", ["q"], 'open_watermarks is ["q"], but must be an object or null'),
    ("open_watermarks", {"q": 5}, "open_watermarks.q is 5, but must be an object or null"),
    ("expectation", "none", 'expectation is "none", but must be an object or null'),
    ("expectation", {"failed": True}, "expectation.failed is true"),
    ("decoded", 1, "decoded is 1, but must be an object or null"),
    ("decoded", {"inputs": []}, "decoded.inputs is [], but must be an object"),
    ("decoded", {"outputs": {"out": 5}}, "decoded.outputs.out is 5, but must be an object or null"),
    ("decoded", {"outputs": {"out": {"undecodable": "1"}}}, 'decoded.outputs.out.undecodable is "1"'),
    ("slice", "x", 'slice is "x", but must be an object'),
    ("scenario", ["x"], 'scenario is ["x"], but must be an object'),
    ("scenario", {"name": 5}, "scenario.name is 5, but must be a string"),
    ("scenario", {"chaos": 3}, "scenario.chaos is 3, but must be a list of objects"),
    ("scenario", {"chaos": ["crash"]}, 'scenario.chaos is ["crash"], but must be a list of objects'),
    ("scenario", {"claim": "held"}, 'scenario.claim is "held", but must be an object'),
    (
        "drain_note",
        "half \ud800",
        'drain_note is "half \\ud800", which is not valid text: it holds half of a surrogate pair',
    ),
    ("fed", {"\udfff": 1}, "a key of fed is"),
    ("outputs", {"a": ["x", "\ud83d"]}, "outputs.a[1] is"),
]


def run_with(tmp_path: Path, **fields: Any) -> Path:
    """A complete, empty history with these fields in its record."""
    scenario = {
        "name": "small",
        "input": [{"topic": "in", "dataset": "numbers"}],
        "pipeline": {"command": ["job"]},
        "outputs": {"out": {"topic": "out", "identity": ["i"]}},
        "oracle": {"kind": "sql", "queries": {"out": 'SELECT i FROM "in"'}},
        "claim": {},
    }
    run = tmp_path / "run"
    with HistoryWriter(run):
        pass
    whole = {"observed": True, "drained": True, "scenario": scenario}
    document = {**whole, **fields}
    if isinstance(fields.get("scenario"), dict):
        document["scenario"] = {**scenario, **fields["scenario"]}
    (run / "run.json").write_text(json.dumps(document))
    return run


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_value_of_the_wrong_type_is_refused(tmp_path: Path, field: str, value: Any, message: str) -> None:
    run = run_with(tmp_path, **{field: value})
    done = CliRunner().invoke(app, ["check", str(run)])
    assert done.exit_code == 4, done.output
    assert message in done.output.replace("\n", "")
    assert str(run / "run.json") in done.output
    assert "onceproof itself failed" not in done.output
    assert not (run / "verdict.json").exists()


def test_types_are_checked_even_if_the_run_was_not_observed(tmp_path: Path) -> None:
    run = run_with(tmp_path, observed=False, seconds="x")
    with pytest.raises(HistoryError, match="seconds"):
        RunRecord.read(run)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"scenario": ' + "[" * 100_000, '{"seed": ' + "9" * 5_000 + "}"]
)
def test_a_record_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    run = run_with(tmp_path)
    (run / "run.json").write_text(text)
    with pytest.raises(HistoryError, match=r"run\.json cannot be read"):
        RunRecord.read(run)


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    mine = {"drained": "false"}
    assert RunRecord.read(run_with(tmp_path, mine=mine)).to_json()["mine"] == mine


def test_a_record_is_read_back_unchanged(tmp_path: Path) -> None:
    directory = RunDir.create(tmp_path, "demo")
    directory.update(
        scenario=StoredScenario.of(load(find("effectively-once"))),
        wall_start=1.5,
        versions={"java": "17", "toxiproxy": BuiltComponent(version="2", sha256="ab")},
        open_watermarks={"q": OpenWatermark(batch=3, reason="none", note="it did not come")},
        job=JobRecord(starts=2, exits=[ExitRecord(start=0, code=1, at=2.5)], failure=FailureRecord(causes=["Boom"])),
        outputs={"rows": OutputRecord(columns={"id": "bigint"}, rows=3), "gone": None},
        ends={"in": {0: 7}},
        decoded=DecodedRecord(failed=None, inputs={"in": DecodeNote(decode="m:f", undecodable=0)}),
        expectation=ExpectationRecord(kind="batch", failed=None),
        slice=SliceRecord(of="run", struck=StruckRecord(output="rows", id="{}", batch=2)),
    )
    directory.update(drained=True)
    read = RunRecord.read(directory.path)
    assert (
        read == directory.run and read.drained and read.job is not None and read.job.failure_text().startswith("Boom")
    )
    stored = json.loads((directory.path / "run.json").read_text())
    assert stored == json.loads(json.dumps(read.to_json())) and "nudged" not in stored


def test_unknown_fields_and_wrong_types_are_not_written(tmp_path: Path) -> None:
    directory = RunDir.create(tmp_path, "demo")
    with pytest.raises(TypeError, match="no field draind"):
        directory.update(draind=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="drained\n  must be true or false"):
        directory.update(drained="false")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fed"):
        directory.update(fed="perhaps")  # type: ignore[arg-type]
    assert (
        RunRecord.model_validate_json((directory.path / "run.json").read_text())
        == directory.run
        == RunRecord(interrupted=False)
    )


def test_fields_for_people_may_have_any_type(tmp_path: Path) -> None:
    odd = {"fed": "perhaps", "versions": 3, "ends": [], "onceproof": 1, "harness_peak_rss_kib": "much"}
    read = RunRecord.read(run_with(tmp_path, **odd, outputs={"out": {"rows": "few"}}))
    assert (read.fed, read.versions, read.ends, read.onceproof, read.harness_peak_rss_kib) == (None,) * 5
    assert read.outputs == {"out": OutputRecord()}


def test_every_field_has_a_description() -> None:
    parts = [part for part in vars(run_record).values() if isinstance(part, type) and issubclass(part, BaseModel)]
    assert len(parts) > 10
    assert [(part, name) for part in parts for name, field in part.model_fields.items() if not field.description] == []


def not_a_run(tmp_path: Path, what: str) -> Path:
    """A path that is not a run."""
    folder = tmp_path / "thing"
    if what == "yaml":
        (tmp_path / "job.yaml").write_text("input: []")
        return tmp_path / "job.yaml"
    if what == "record":
        return run_with(tmp_path) / "run.json"
    if what == "history":
        return run_with(tmp_path) / "history"
    if what == "parquet":
        (tmp_path / "x.parquet").write_bytes(b"PAR1")
        return tmp_path / "x.parquet"
    folder.mkdir()
    for name in {
        "qualification": ["qualification.json", "scenario.yaml"],
        "parquet folder": ["part-0.parquet"],
        "checkpoint": ["offsets", "commits", "metadata"],
        "other": ["README", "src"],
    }.get(what, []):
        (folder / name).write_text("")
    if what == "runs":
        run_with(folder)
    return folder


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("empty", "it is an empty folder"),
        ("yaml", "it is a YAML file"),
        ("parquet", "it is a data file"),
        ("record", "it is a file of a run"),
        ("history", "it is a folder inside the run"),
        ("qualification", "it is the directory of a qualification"),
        ("parquet folder", "it is a folder of data files"),
        ("checkpoint", "it is the checkpoint of a Spark query"),
        ("runs", "it is a folder that holds 1 run"),
        ("other", "there is no run.json in it; it holds README, src"),
    ],
)
@pytest.mark.parametrize("command", ["check", "replay", "picture"])
def test_a_path_that_is_not_a_run_is_wrong_usage(tmp_path: Path, what: str, message: str, command: str) -> None:
    path = not_a_run(tmp_path, what)
    done = CliRunner().invoke(app, [command, str(path)])
    assert done.exit_code == 2, done.output
    assert f"{path} is not a run: {message}" in done.output


def test_propose_and_shrink_report_it_too(tmp_path: Path) -> None:
    folder = not_a_run(tmp_path, "empty")
    with pytest.raises(NotARun):
        RunRecord.read(folder)
    for arguments in (["shrink", str(folder)], ["propose", str(folder), str(folder)]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2, done.output
