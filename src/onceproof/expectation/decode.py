"""Decodes the values of a run's topics by a format or a user's function, once, and stores the results. Also a program (``python -m``).

The program is a child process of the run, so that the user's code cannot break the run. `onceproof.oracle.contract.decoders`
describes what it stores.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceproof.base.errors import EnvironmentProblem, OnceproofError, WaitTimeout
from onceproof.base.user_code import load_function
from onceproof.base.waiting import wait_until
from onceproof.formats.codec import EVENT, ROW, ROW_AND_OPERATION, Decoded, Decoder, Settings
from onceproof.formats.feed import access_of
from onceproof.formats.registry import Access
from onceproof.formats.values import SHOWN, WHOLE
from onceproof.history.run_directory import RunDir
from onceproof.history.run_record import DecodedRecord
from onceproof.history.writer import PARQUET
from onceproof.oracle.contract.decoders import Decode, decoded_file, decoders, needs_code
from onceproof.pipeline.spark_conf import job_environment
from onceproof.scenario.formats import FORMATS, FormatFields
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.templates import fill
from onceproof.stack.processes.owner import Owner

_GROUP_ROWS = 4_096
_LAST_LINES = 12
#: Of a topic whose every value is damaged, the first few say why.
_MOST_PROBLEMS = 20


def decode_topics(scenario: Scenario, here: Path, directory: RunDir) -> None:
    """Decode inputs and outputs that name a format or a function. If this fails, ``run.json`` records it, and the run is inconclusive."""
    access = access_of(scenario, here)
    outputs = {n: o.decode for n, o in scenario.outputs.items() if o.topic is not None and needs_code(o.decode)}
    inputs = {i.topic: i.decode for i in scenario.input if needs_code(i.decode)}
    if not outputs and not inputs:
        return
    specs: dict[str, FormatFields] = dict(scenario.outputs)
    topics: dict[str, FormatFields] = {spec.topic: spec for spec in scenario.input}
    with Owner() as owner:
        request, answer = owner.scratch / "request.json", owner.scratch / "answer.json"
        parameters = {
            "run_dir": str(directory.path),
            "answer": str(answer),
            "outputs": {name: _wanted(specs[name], access, here, _shape(specs[name])) for name in outputs},
            "inputs": {topic: _wanted(topics[topic], access, here) for topic in inputs},
            "topics": {name: scenario.outputs[name].place for name in outputs},
        }
        request.write_text(json.dumps(parameters), encoding="utf-8")
        variables = [] if access is None else access.variables()
        failed = _run(owner, request, directory.logs / "decode.log", scenario.limits.deadline_s, variables)
        notes = {"outputs": {}, "inputs": {}} if failed else json.loads(answer.read_text(encoding="utf-8"))
    for kind, named in (("outputs", outputs), ("inputs", inputs)):
        for name, note in notes[kind].items():
            note["decode"] = named[name]  # as the scenario writes it, independent of its folder
    directory.update(decoded=DecodedRecord(failed=failed, **notes))


def _shape(spec: FormatFields) -> str:
    """How an output's change events become rows."""
    return ROW if isinstance(spec, OutputSpec) and spec.kind == "upsert" else ROW_AND_OPERATION


def _wanted(spec: FormatFields, access: Access | None, here: Path, shape: str = EVENT) -> dict[str, Any]:
    """The request for one topic: a function, or the settings of a format."""
    if spec.decode not in FORMATS:
        return {"function": fill(spec.decode, {"here": str(here)})}
    return {"format": asdict(Settings.of(spec, spec.decode, access, here, shape))}


def _run(owner: Owner, request: Path, log: Path, limit_s: float, variables: Sequence[str]) -> str | None:
    """Run the program, with these variables of the environment. Returns what went wrong, or None."""
    environment = job_environment(
        class_path=(), archive=None, scratch=owner.scratch, passfile=None, failpoints=None, own={}, secrets=variables
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
        named = {name: _loaded(wanted) for name, wanted in request["outputs"].items()}
        notes["outputs"] = _decode_outputs(run_dir / "history" / "output.parquet", named, request["topics"])
    for topic, wanted in request["inputs"].items():
        notes["inputs"][topic] = _decode_input(run_dir, topic, _loaded(wanted))
    Path(request["answer"]).write_text(json.dumps(notes), encoding="utf-8")


def _loaded(wanted: Mapping[str, Any]) -> Decode | Decoder:
    if "function" in wanted:
        return load_decoder(wanted["function"])
    settings = dict(wanted["format"])
    registry = settings.pop("registry")
    return Decoder(Settings(**settings, registry=None if registry is None else Access(**registry)))


def load_decoder(name: str) -> Decode:
    """Load a function by its name, or the one that a package registers under entry point ``onceproof.decoders``."""
    return load_function(name) if ":" in name else decoders.get(name)


class _Decoding:
    """Decodes the values of one topic, and counts those that could not be decoded: committed ones, as no reader sees the others."""

    def __init__(self, decode: Decode | Decoder, topic: str) -> None:
        self._decode = decode
        self._topic = topic
        self.undecodable = 0
        self.first: str | None = None
        self.problems: list[dict[str, Any]] = []

    def document(self, value: bytes | None, partition: int, offset: int, visibility: str) -> Decoded | None:
        """One value as a JSON object; None if there is no value or it cannot be decoded.

        Raises `EnvironmentProblem` if the registry does not answer: nothing can be said of any value then.
        """
        if value is None:
            return None
        try:
            if isinstance(self._decode, Decoder):
                return self._decode.decode(value)
            return Decoded(as_document(self._decode(value)))
        except EnvironmentProblem:
            raise
        except Exception as error:  # the user's code may raise anything, and so may a library for damaged bytes
            if visibility == "committed":
                self._failed(f"{type(error).__name__}: {error}", partition, offset)
            return None

    def _failed(self, cause: str, partition: int, offset: int) -> None:
        self.undecodable += 1
        is_format = isinstance(self._decode, Decoder)
        if self.first is None:
            self.first = f"{f'{self._topic}/' if is_format else ''}{partition}@{offset}: {cause}"
        if is_format and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append({"topic": self._topic, "partition": partition, "offset": offset, "cause": cause[:500]})

    def note(self) -> dict[str, Any]:
        counted: dict[str, Any] = {"undecodable": self.undecodable, "first": self.first}
        if isinstance(self._decode, Decoder):
            counted["problems"] = self.problems
            counted["types"] = {
                json.dumps(path): kind for path, kind in self._decode.types.items() if kind not in (WHOLE, SHOWN)
            }
        return counted


def _decode_outputs(
    file: Path, named: Mapping[str, Decode | Decoder], topics: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Rewrite table ``output``: ``content`` becomes the decoded value, ``raw`` the original bytes."""
    decodings = {name: _Decoding(decode, topics[name]) for name, decode in named.items()}

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        names = batch["output"].to_pylist()
        if named.keys().isdisjoint(names):
            return batch
        columns = [batch[column].to_pylist() for column in ("partition", "offset", "visibility", "content", "raw")]
        contents, raws = columns[3], columns[4]
        for row, (name, partition, offset, visibility, content, raw) in enumerate(zip(names, *columns, strict=True)):
            if name in named:
                raws[row] = raw if content is None else content.encode()
                found = decodings[name].document(raws[row], partition, offset, visibility)
                contents[row] = None if found is None else found.document
                if found is not None and found.document is None:
                    raws[row] = None  # a change that deletes its row leaves what a tombstone leaves: nothing
        for column, given in (("content", contents), ("raw", raws)):
            at = batch.schema.get_field_index(column)
            batch = batch.set_column(at, batch.schema.field(at), pa.array(given, batch.schema.field(at).type))
        return batch

    _copy(file, file, decoded)
    return {name: decoding.note() for name, decoding in decodings.items()}


def _decode_input(run_dir: Path, topic: str, decode: Decode | Decoder) -> dict[str, Any]:
    """Write the topic's rows of table ``input``, each with its decoded value."""
    decoding = _Decoding(decode, topic)
    target = decoded_file(run_dir, topic)
    target.parent.mkdir(exist_ok=True)

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.filter(pc.equal(batch["topic"], topic))
        names = ("value", "partition", "offset", "visibility")
        documents = []
        for value in zip(*(rows[name].to_pylist() for name in names), strict=True):
            found = decoding.document(*value)
            documents.append(None if found is None else found.document)
        return rows.append_column("document", pa.array(documents, pa.string()))

    _copy(run_dir / "history" / "input.parquet", target, decoded)
    return decoding.note()


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
    except OnceproofError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
