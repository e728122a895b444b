"""Decodes the values of a run's topics with a user's function, once, and stores the results. Also a program (``python -m``).

The program is a child process of the run, so that the user's code cannot break the run. `onceproof.oracle.contract.decoders`
describes what it stores.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceproof.base.errors import WaitTimeout
from onceproof.base.user_code import load_function
from onceproof.base.waiting import wait_until
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import DecodedRecord
from onceproof.history.writer import PARQUET
from onceproof.oracle.contract.decoders import GROUP, decoded_file, needs_code
from onceproof.pipeline.spark_conf import job_environment
from onceproof.scenario.model import Scenario
from onceproof.scenario.templates import fill
from onceproof.stack.processes.owner import Owner

_GROUP_ROWS = 4_096
_LAST_LINES = 12

Decode = Callable[[bytes], Any]


def decode_topics(scenario: Scenario, here: Path, directory: RunDir) -> None:
    """Decode inputs and outputs that name a function. If this fails, ``run.json`` records it, and the run is inconclusive."""
    values = {"here": str(here)}
    outputs = {n: o.decode for n, o in scenario.outputs.items() if o.topic is not None and needs_code(o.decode)}
    inputs = {i.topic: i.decode for i in scenario.input if needs_code(i.decode)}
    if not outputs and not inputs:
        return
    with Owner() as owner:
        request, answer = owner.scratch / "request.json", owner.scratch / "answer.json"
        parameters = {
            "run_dir": str(directory.path),
            "answer": str(answer),
            "outputs": {name: fill(decode, values) for name, decode in outputs.items()},
            "inputs": {topic: fill(decode, values) for topic, decode in inputs.items()},
        }
        request.write_text(json.dumps(parameters), encoding="utf-8")
        failed = _run(owner, request, directory.logs / "decode.log", scenario.limits.deadline_s)
        notes = {"outputs": {}, "inputs": {}} if failed else json.loads(answer.read_text(encoding="utf-8"))
    for kind, named in (("outputs", outputs), ("inputs", inputs)):
        for name, note in notes[kind].items():
            note["decode"] = named[name]  # as the scenario writes it, independent of its folder
    directory.update(decoded=DecodedRecord(failed=failed, **notes))


def _run(owner: Owner, request: Path, log: Path, limit_s: float) -> str | None:
    """Run the program. Returns what went wrong, or None."""
    environment = job_environment(
        class_path=(), archive=None, scratch=owner.scratch, passfile=None, failpoints=None, own={}, secrets=[]
    )
    argv = [sys.executable, "-m", "onceproof.expectation.decode", str(request)]
    program = owner.start("decode", argv, log=log, env=environment, cwd=owner.scratch)
    try:
        wait_until("the values to be decoded", lambda: not program.is_running(), deadline_s=limit_s)
    except WaitTimeout:
        program.kill()
        return f"it did not end within {limit_s:g} s (limits.deadline_s)"
    tail = program.log_tail(_LAST_LINES).rstrip()
    return None if program.returncode == 0 else f"it ended with exit code {program.returncode}\n{tail}"


def main(request_file: Path) -> None:
    request = json.loads(request_file.read_text(encoding="utf-8"))
    run_dir = Path(request["run_dir"])
    notes: dict[str, dict[str, Any]] = {"outputs": {}, "inputs": {}}
    if request["outputs"]:
        notes["outputs"] = _decode_outputs(run_dir / "history" / "output.parquet", _load_all(request["outputs"]))
    for topic, decode in _load_all(request["inputs"]).items():
        notes["inputs"][topic] = _decode_input(run_dir, topic, decode)
    Path(request["answer"]).write_text(json.dumps(notes), encoding="utf-8")


def _load_all(named: Mapping[str, str]) -> dict[str, Decode]:
    return {name: load_decoder(decode) for name, decode in named.items()}


def load_decoder(name: str) -> Decode:
    """Load a function by its name, or the one that a package registers under entry point ``onceproof.decoders``."""
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            found: Decode = entry.load()
            return found
    return load_function(name)


class _Decoder:
    """Decodes values, and counts those that could not be decoded."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self.undecodable = 0
        self.first: str | None = None

    def document(self, value: bytes | None, place: str) -> str | None:
        """The JSON object of one value; None if there is no value or it cannot be decoded."""
        if value is None:
            return None
        try:
            return as_document(self._decode(value))
        except Exception as error:  # the user's code may raise anything
            self.undecodable += 1
            if self.first is None:
                self.first = f"{place}: {type(error).__name__}: {error}"
            return None

    def note(self) -> dict[str, Any]:
        return {"undecodable": self.undecodable, "first": self.first}


def _decode_outputs(file: Path, functions: Mapping[str, Decode]) -> dict[str, Any]:
    """Rewrite table ``output``: ``content`` becomes the function's result, ``raw`` the original bytes."""
    committed = {name: _Decoder(decode) for name, decode in functions.items()}
    # Aborted and open records are not counted: no reader sees them.
    uncommitted = {name: _Decoder(decode) for name, decode in functions.items()}

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch["output"].to_pylist()
        if functions.keys().isdisjoint(names):
            return batch
        columns = [batch[column].to_pylist() for column in ("partition", "offset", "visibility", "content", "raw")]
        contents, raws = columns[3], columns[4]
        for row, (name, partition, offset, visibility, content, raw) in enumerate(zip(names, *columns, strict=True)):
            if name in functions:
                decoder = (committed if visibility == "committed" else uncommitted)[name]
                raws[row] = raw if content is None else content.encode()
                contents[row] = decoder.document(raws[row], f"{partition}@{offset}")
        for column, given in (("content", contents), ("raw", raws)):
            at = batch.schema.get_field_index(column)
            batch = batch.set_column(at, batch.schema.field(at), pa.array(given, batch.schema.field(at).type))
        return batch

    _copy(file, file, decoded)
    return {name: decoder.note() for name, decoder in committed.items()}


def _decode_input(run_dir: Path, topic: str, decode: Decode) -> dict[str, Any]:
    """Write the topic's rows of table ``input``, with the function's result for each value."""
    decoder = _Decoder(decode)
    target = decoded_file(run_dir, topic)
    target.parent.mkdir(exist_ok=True)

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.filter(pc.equal(batch["topic"], topic))
        places = zip(*(rows[column].to_pylist() for column in ("value", "partition", "offset")), strict=True)
        documents = [decoder.document(value, f"{partition}@{offset}") for value, partition, offset in places]
        return rows.append_column("document", pa.array(documents, pa.string()))

    _copy(run_dir / "history" / "input.parquet", target, decoded)
    return decoder.note()


def _copy(source: Path, target: Path, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    """Copy a table batch by batch, in bounded memory. The target appears atomically: a reader never sees part of it."""
    part = target.with_name(target.name + ".part")
    with pq.ParquetFile(source) as stored:
        schema = change(pa.RecordBatch.from_pylist([], stored.schema_arrow)).schema
        with pq.ParquetWriter(part, schema, **PARQUET) as writer:
            for batch in stored.iter_batches(_GROUP_ROWS):
                writer.write_batch(change(batch).cast(schema))
    part.replace(target)


def as_document(value: Any) -> str:
    """A decoder's result as a JSON object. Raises `TypeError` if it is not a dict, or has no JSON form."""
    if not isinstance(value, Mapping):
        raise TypeError(f"the decoder returned a {type(value).__name__}; it must return a dict: column -> value")
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """The value in the form that is compared: times, and numbers that JSON lacks, as text; bytes as base64."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal) or hasattr(value, "isoformat") or type(value).__name__ == "UUID":
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    return value


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
