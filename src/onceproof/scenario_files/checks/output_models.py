"""What can be wrong with an output's model although each of its values is fine alone: nothing left to compare, a claim it cannot show."""

from __future__ import annotations

from collections.abc import Iterator

from onceproof.base.registry import suggest
from onceproof.oracle.contract import decoders
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, Loc


def complaints(scenario: Scenario) -> Iterator[Complaint]:
    for name, output in scenario.outputs.items():
        loc: Loc = ("outputs", name)
        yield from _columns(loc, output)
        yield from _decoded(loc, output)
        yield from _kafka_only(loc, output)
        yield from _several_inputs(scenario, loc, output)
        yield from _aside(scenario, loc, output)
        yield from _claim(scenario, loc, name, output)


def _columns(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    ignored, named = set(output.ignore), set(output.identity)
    for column in sorted(ignored & named):
        yield Complaint((*loc, "ignore"), f"column {column!r} cannot both name an effect and be ignored")
    for column in sorted(ignored & set(output.compare or [])):
        yield Complaint((*loc, "ignore"), f"column {column!r} cannot both be compared and be ignored")
    if output.compare is not None and not set(output.compare) - ignored:
        message = "nothing is left to compare: each column under compare is ignored" if output.compare else None
        hint = "leave compare out to compare all columns that are not ignored"
        yield Complaint((*loc, "compare"), message or "nothing is left to compare: compare is empty", hint)
    for column in output.tolerance:
        where = (*loc, "tolerance", column)
        if column in named:
            yield Complaint(where, f"column {column!r} names an effect: a name is equal or it is not", at_key=True)
        elif column in ignored or (output.compare is not None and column not in output.compare):
            yield Complaint(where, f"column {column!r} is not compared at all", "remove its tolerance", at_key=True)


def _decoded(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if output.has_rows and output.decode != "json":
        yield Complaint((*loc, "decode"), "a table's rows need no decoding", "decode is for Kafka values")
    elif output.decode in ("string", "bytes") and output.identity != ["value"]:
        message = f"decode: {output.decode} gives one column, 'value', and identity names {', '.join(output.identity)}"
        yield Complaint((*loc, "identity"), message, "write identity: [value], or decode with module:function")
    elif problem := decoders.problem(output.decode):
        yield Complaint((*loc, "decode"), *problem)


def _kafka_only(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if output.has_rows and output.placement == "key":
        yield Complaint((*loc, "placement"), "a table has no partitions: placement is for Kafka topics")
    if output.has_rows and output.headers == "compare":
        yield Complaint((*loc, "headers"), "a table's rows have no headers: they are of Kafka records")
    if output.has_rows and output.compare_key is not None:
        yield Complaint((*loc, "compare_key"), "a table's rows have no Kafka key: compare_key is for topics")


def _several_inputs(scenario: Scenario, loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if len(scenario.input) < 2:
        return
    for field, carries in (("source", output.source), ("progress", output.progress)):
        if carries is not None and carries.topic is None:
            topics = ", ".join(spec.topic for spec in scenario.input)
            message = f"there are several input topics ({topics}): which column distinguishes them?"
            yield Complaint((*loc, field), message, "add topic: <column>", at_key=True)


def _aside(scenario: Scenario, loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    main = output.dead_letter_of
    if main is None:
        return
    where = (*loc, "dead_letter_of")
    if output.expected == "empty":
        yield Complaint(where, "an output that must stay empty holds no dead letters", "remove one of the two")
    elif main not in scenario.asked():
        known = list(scenario.asked())
        what = "is one of dead letters, or must stay empty" if main in scenario.outputs else "does not exist"
        yield Complaint(where, f"output {main!r} {what}", suggest(main, known))
    elif (kind := scenario.outputs[main].kind) != "append":
        message = f"output {main!r} is of kind {kind}: only rows that are appended can be in one place or the other"
        yield Complaint(where, message, "dead letters are for kind: append")
    elif output.source is None and len(output.identity) != len(theirs := scenario.outputs[main].identity):
        message = f"the identity of {main!r} has the columns {', '.join(theirs)}, and this one has {', '.join(output.identity)}"
        yield Complaint(
            (*loc, "identity"), message, "name the columns that hold them, in the same order; or give a source"
        )
    compared = {
        "compare": bool(output.compare),
        "tolerance": bool(output.tolerance),
        "compare_key": output.compare_key is True,
        "headers": output.headers == "compare",
    }
    for field in (field for field, wanted in compared.items() if wanted):
        message = "of a dead letter nothing but its identity is compared: the oracle knows nothing of the rest"
        yield Complaint((*loc, field), message, f"remove {field}", at_key=True)


def _claim(scenario: Scenario, loc: Loc, name: str, output: OutputSpec) -> Iterator[Complaint]:
    claim = scenario.claim_of(name)
    where: Loc = (*loc, "claim") if output.claim is not None else ("claim",)
    if output.kind == "upsert" and claim.order != "none":
        message = f"order: {claim.order} cannot be seen in output {name!r}: an upsert keeps the last state of each identity only"
        hint = f"declare it as changelog, or give it a claim of its own: outputs: {name}: claim: {{order: none}}"
        yield Complaint((*where, "order"), message, hint)
    if output.kind == "changelog" and claim.order == "none":
        message = f"order: none for output {name!r}, which is a changelog: its last state would count for no more than its first"
        hint = f"claim order: per-key, for all or for this one: outputs: {name}: claim: {{order: per-key}}"
        yield Complaint((*loc, "kind"), message, hint)
