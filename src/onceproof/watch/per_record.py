"""Which scenarios can be watched: every row follows from one input record, and is written once.

A window is judged alone, so a row must not depend on records of other windows. `problem` finds what does, before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceproof.base.errors import UsageError
from onceproof.oracle.contract.query import combines_rows, selected, several_records
from onceproof.oracle.identity import expressions
from onceproof.scenario.model import Scenario

_LATER = "to judge it when the job has finished: onceproof import, then onceproof check"
#: Decodings that need no code of the user or of a schema registry.
_PLAIN = ("json", "string", "bytes")


def refuse_unwatchable(scenario: Scenario) -> None:
    """Raise `UsageError` with the reason if this scenario cannot be judged while the job runs."""
    for why in problems(scenario):
        raise UsageError(f"watch cannot judge this scenario: {why}", hint=_LATER)


def problems(scenario: Scenario) -> Iterator[str]:
    """Each reason why the scenario cannot be judged window by window."""
    if scenario.pipeline.on_queues:
        yield "its consumers read queues, and a queue has no offsets to read again"
    for spec in scenario.input:
        if spec.decode not in _PLAIN:
            yield f"input {spec.topic}: decode: {spec.decode} runs code for each value; {', '.join(_PLAIN)} do not"
    for name, output in scenario.outputs.items():
        where = f"output {name}"
        if output.topic is None:
            why = "a table, a file or a service does not say how far it is: rows may become visible in another order than they were written"
            yield f"{where} is not a Kafka topic, and {why}"
        elif output.is_side_output:
            yield f"{where} holds dead letters or must stay empty, and no record of the input is due in it"
        elif output.kind != "append":
            yield f"{where} is of kind {output.kind}: a later record replaces an earlier one, so no window is ever final"
        elif output.decode not in _PLAIN:
            yield f"{where}: decode: {output.decode} runs code for each value; {', '.join(_PLAIN)} do not"
    yield from _of_oracle(scenario)


def unjudged(scenario: Scenario) -> Iterator[str]:
    """What the claim promises and a watch does not judge: the final verdict cannot be held then."""
    for name in scenario.outputs:
        claim = scenario.claim_of(name)
        for promise in ("order", "atomic"):
            if (level := getattr(claim, promise)) != "none":
                yield f"claim {promise}: {level} of output {name} is not judged by watch, which compares rows only"


def _of_oracle(scenario: Scenario) -> Iterator[str]:
    oracle: Any = scenario.oracle
    if oracle.kind == "identity":
        for output in oracle.columns:
            for _, text, _ in expressions(oracle, output):
                if (what := combines_rows(f"SELECT (\n{text}\n)")) is not None:
                    yield f"the oracle's expression {' '.join(text.split())!r} for output {output} {what}"
    elif oracle.kind == "sql":
        if oracle.windows:
            yield "the oracle has windows: which records are late depends on the batches of the job"
        topics = [scenario.known_as(item.topic) for item in scenario.input]
        for output, query in oracle.queries.items():
            what = several_records(query, topics) or _no_cause(query)
            if what is not None:
                yield f"the oracle's query for output {output} {what}"
    else:
        yield f"the oracle {oracle.kind} is asked about all of the input at once; identity, and sql with one SELECT, are not"


def _no_cause(query: str) -> str | None:
    """Why the input record of a row is not known; None if it is."""
    names = selected(query)
    if names is None or {"_partition", "_offset"} <= names:
        return None
    return "does not select _partition and _offset, so it is not known which record causes a row"
