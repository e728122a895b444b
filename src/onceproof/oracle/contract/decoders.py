"""Decoders: how a Kafka value becomes columns. Judging knows the built-in ones; a function is run when the run has ended.

==================  ====================================================================================
``decode``          columns
==================  ====================================================================================
``json``            the fields of the JSON object that the value is
``string``          one column ``value``: the value as text
``bytes``           one column ``value``: the bytes
``module:function``  those of the dict that the function makes of the bytes; also ``{here}/file.py:function``
a name              likewise: the function that a package registers under entry point ``onceproof.decoders``
==================  ====================================================================================

What a function makes of a value is stored, so that judging runs no code (`onceproof.expectation.decode`): of an output in column
``content`` of table ``output``, its bytes in ``raw``; of an input topic in column ``document`` of
``history/decoded/TOPIC.parquet`` (the name percent-encoded), which holds all columns of the topic's rows of table ``input``.
``run.json`` has ``decoded``: ``failed`` (a text or null), ``outputs`` and ``inputs``, each name -> ``decode``, ``undecodable`` (how
many values) and ``first`` (where the first of them stands, and the error).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote as percent_encoded

from onceproof.base.errors import NotEvaluated
from onceproof.base.registry import suggest
from onceproof.base.user_code import name_problem

if TYPE_CHECKING:
    from onceproof.history.database import Connection
    from onceproof.scenario.model import InputSpec

BUILT_IN = ("json", "string", "bytes")
GROUP = "onceproof.decoders"


def problem(decode: str) -> tuple[str, str | None] | None:
    """What makes this text no decoder, as message and hint. No function is loaded."""
    if decode in BUILT_IN or ":" in decode:
        why = None if decode in BUILT_IN else name_problem(decode)
        return None if why is None else (f"decode: {why}", None)
    known = [*BUILT_IN, *sorted(entry.name for entry in entry_points(group=GROUP))]
    if decode in known:
        return None
    return f"decode: there is no decoder {decode!r}", f"{suggest(decode, known)} (a function is named module:function)"


def needs_code(decode: str) -> bool:
    return decode not in BUILT_IN


def decoded_file(run_dir: Path, topic: str) -> Path:
    return run_dir / "history" / "decoded" / f"{percent_encoded(topic, safe='')}.parquet"


def decoded_input(records: Connection, spec: InputSpec) -> Path:
    """The file with the decoded values of an input topic. Raises `NotEvaluated` where there is none."""
    _, why = note(records.run, "inputs", spec.topic, spec.decode)
    path = decoded_file(records.history.run_dir, spec.topic)
    if why is None and not path.is_file():
        why = f"its decoded values are missing: there is no {path.name}"
    if why is not None:
        raise NotEvaluated(f"input: {spec.topic}: decode: {why}")
    return path


def note(run: Mapping[str, Any], kind: str, name: str, decode: str) -> tuple[dict[str, Any], str | None]:
    """What ``run.json`` says of it, and what is wrong with that."""
    said: Any = run.get("decoded")
    if not isinstance(said, dict):
        return {}, f"its values were never decoded with {decode}: run the scenario again"
    if said.get("failed"):
        return {}, str(said["failed"])
    found = said.get(kind, {}).get(name)
    if found is None or found.get("decode") != decode:
        return {}, f"its values were not decoded with {decode}: run the scenario again"
    return found, None
