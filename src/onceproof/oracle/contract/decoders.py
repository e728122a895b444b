"""Decoders: how a Kafka value becomes columns. The judge has the built-in ones; formats and functions run when the run has ended.

==================  ====================================================================================
``decode``          columns
==================  ====================================================================================
``json``            the fields of the JSON object
``string``          one column ``value``: the value as text
``bytes``           one column ``value``: the bytes
a format            the fields of the record: ``avro``, ``protobuf``, ``json-schema``, ``debezium`` (`onceproof.formats`)
``module:function``  those of the dict that the function makes of the bytes; also ``{here}/file.py:function``
a name              the same, with the function that a package registers under entry point ``onceproof.decoders`` (`decoders`)
==================  ====================================================================================

What a format or a function makes of a value is stored, so that the judge runs no code (`onceproof.expectation.decode`). For an output it is in
column ``content`` of table ``output``, with the bytes in ``raw``. For an input topic it is in column ``document`` of
``history/decoded/TOPIC.parquet`` (the name percent-encoded), which holds all columns of the topic's rows of table ``input``.
``run.json`` has ``decoded``: ``failed`` (a text or null), ``outputs`` and ``inputs``, each name -> ``decode``, ``undecodable`` (number
of values) and ``first`` (the place of the first of them, and the error); for a format also ``problems``, the first of them with topic,
partition, offset and cause, and ``types``, DuckDB's types of fields whose type JSON does not show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote as percent_encoded

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import Registry, suggest
from onceproof.base.user_code import name_problem
from onceproof.history.run_record import DecodedRecord, DecodeNote
from onceproof.scenario.formats import FORMATS

if TYPE_CHECKING:
    from onceproof.history.database import Connection
    from onceproof.scenario.model import InputSpec

_BUILT_IN = {
    "json": "the fields of the JSON object",
    "string": "one column, value: the value as text",
    "bytes": "one column, value: the bytes",
}
BUILT_IN = tuple(_BUILT_IN)


class Decode(Protocol):
    """A function that decodes one value."""

    def __call__(self, value: bytes, /) -> Any:
        """The columns: a mapping of names to values. Raises any `Exception` for a value that cannot be decoded."""


#: The functions of other packages. An entry point names the function itself, so its module need not import onceproof.
decoders: Registry[Decode] = Registry("decoder", None, "onceproof.decoders", Decode, reserved=(*BUILT_IN, *FORMATS))


def listed() -> list[tuple[str, str]]:
    """Every name that ``decode`` may have, with a description: for a function the first line of its docstring."""
    theirs = [(name, (function.__doc__ or "").strip().partition("\n")[0]) for name, function in decoders.items()]
    return [*_BUILT_IN.items(), *FORMATS.items(), *theirs]


def problem(decode: str) -> tuple[str, str | None] | None:
    """Return why this text does not name a decoder, as message and hint; None if it does.

    A function of another package is loaded, so that a broken package is an error now. ``module:function`` is not loaded.
    """
    if decode in (*BUILT_IN, *FORMATS) or ":" in decode:
        why = None if ":" not in decode else name_problem(decode)
        return None if why is None else (f"decode: {why}", None)
    known = [name for name, _ in listed()]
    if decode in known:
        return None
    return f"decode: there is no decoder {decode!r}", f"{suggest(decode, known)} (a function is named module:function)"


def needs_code(decode: str) -> bool:
    """Whether it is a format or a function, which runs when the run has ended, and not one of the judge's own."""
    return decode not in BUILT_IN


def decoded_file(run_dir: Path, topic: str) -> Path:
    return run_dir / "history" / "decoded" / f"{percent_encoded(topic, safe='')}.parquet"


def decoded_input(records: Connection, spec: InputSpec) -> Path:
    """Return the file with the decoded values of an input topic. Raises `NotEvaluated` if there is none."""
    path = decoded_file(records.history.run_dir, spec.topic)
    decoded = records.run.decoded
    try:
        note(decoded, decoded.inputs if decoded is not None else {}, spec.topic, spec.decode)
        if not path.is_file():
            raise NotEvaluated(f"its decoded values are missing: there is no {path.name}")
    except NotEvaluated as gap:
        raise NotEvaluated(f"input: {spec.topic}: decode: {gap}") from None
    return path


def types_of(decoded: DecodedRecord | None, spec: InputSpec) -> dict[tuple[str | None, ...], str]:
    """Path of a field -> DuckDB's type, for fields whose type a schema says and JSON does not show."""
    found = decoded.inputs.get(spec.topic) if decoded is not None else None
    return {} if found is None else {tuple(json.loads(path)): kind for path, kind in found.types.items()}


def note(decoded: DecodedRecord | None, notes: Mapping[str, DecodeNote | None], name: str, decode: str) -> DecodeNote:
    """Return the note in ``run.json`` on these values. Raises `NotEvaluated` if they were not decoded with ``decode``."""
    if decoded is None:
        raise NotEvaluated(f"its values were never decoded with {decode}: run the scenario again")
    if decoded.failed:
        raise NotEvaluated(decoded.failed)
    found = notes.get(name)
    if found is None or found.decode != decode or found.undecodable is None:
        raise NotEvaluated(f"its values were not decoded with {decode}: run the scenario again")
    return found
