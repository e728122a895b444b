"""Checks the settings of an output against each other: for example nothing left to compare, or a claim that it cannot show."""

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
        yield from _dead_letters(scenario, loc, output)
        yield from _claim(scenario, loc, name, output)


def _columns(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    ignored, named = set(output.ignore), set(output.identity)
    for column in sorted(ignored & named):
        yield Complaint((*loc, "ignore"), f"column {column!r} cannot be both in identity and in ignore")
    for column in sorted(ignored & set(output.compare or [])):
        yield Complaint((*loc, "ignore"), f"column {column!r} cannot be both in compare and in ignore")
    if output.compare is not None and not set(output.compare) - ignored:
        message = "nothing is left to compare: every column under compare is ignored" if output.compare else None
        hint = "leave compare out to compare all columns that are not ignored"
        yield Complaint((*loc, "compare"), message or "nothing is left to compare: compare is empty", hint)
    for column in output.tolerance:
        where = (*loc, "tolerance", column)
        if column in named:
            yield Complaint(where, f"column {column!r} is in identity, which allows no tolerance", at_key=True)
        elif column in ignored or (output.compare is not None and column not in output.compare):
            yield Complaint(where, f"column {column!r} is not compared", "remove its tolerance", at_key=True)


def _decoded(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if output.has_rows and output.decode != "json":
        yield Complaint((*loc, "decode"), "rows need no decoding: decode is only for Kafka values", "remove decode")
    elif output.decode in ("string", "bytes") and output.identity != ["value"]:
        message = (
            f"decode: {output.decode} gives a single column, 'value', but identity names {', '.join(output.identity)}"
        )
        yield Complaint((*loc, "identity"), message, "write identity: [value], or decode with module:function")
    elif problem := decoders.problem(output.decode):
        yield Complaint((*loc, "decode"), *problem)


def _kafka_only(loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if output.has_rows and output.placement == "key":
        yield Complaint((*loc, "placement"), "rows have no partition: placement is only for Kafka topics")
    if output.has_rows and output.headers == "compare":
        yield Complaint((*loc, "headers"), "rows have no headers: headers is only for Kafka topics")
    if output.has_rows and output.compare_key is not None:
        yield Complaint((*loc, "compare_key"), "rows have no Kafka key: compare_key is only for Kafka topics")


def _several_inputs(scenario: Scenario, loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    if len(scenario.input) < 2:
        return
    for field, carries in (("source", output.source), ("progress", output.progress)):
        if carries is not None and carries.topic is None:
            topics = ", ".join(spec.topic for spec in scenario.input)
            message = f"there are several input topics ({topics}), and no column says which one a row is from"
            yield Complaint((*loc, field), message, "add topic: COLUMN", at_key=True)


def _dead_letters(scenario: Scenario, loc: Loc, output: OutputSpec) -> Iterator[Complaint]:
    main = output.dead_letter_of
    if main is None:
        return
    where = (*loc, "dead_letter_of")
    if output.expected == "empty":
        yield Complaint(
            where, "an output that must stay empty cannot hold dead letters", "remove expected or dead_letter_of"
        )
    elif main not in scenario.asked():
        known = list(scenario.asked())
        why = "holds dead letters itself, or must stay empty" if main in scenario.outputs else "does not exist"
        yield Complaint(where, f"output {main!r} {why}", suggest(main, known))
    elif (kind := scenario.outputs[main].kind) != "append":
        message = f"output {main!r} is of kind {kind}, and only an output of kind append can have dead letters"
        yield Complaint(where, message)
    elif output.source is None and len(output.identity) != len(theirs := scenario.outputs[main].identity):
        message = f"the identity of {main!r} is {', '.join(theirs)}, but that of its dead letters is {', '.join(output.identity)}"
        hint = "name the columns that hold the same values, in the same order; or give a source"
        yield Complaint((*loc, "identity"), message, hint)
    compared = {
        "compare": bool(output.compare),
        "tolerance": bool(output.tolerance),
        "compare_key": output.compare_key is True,
        "headers": output.headers == "compare",
    }
    for field in (field for field, wanted in compared.items() if wanted):
        message = "only the identity of a dead letter is compared: the oracle does not describe its other columns"
        yield Complaint((*loc, field), message, f"remove {field}", at_key=True)


def _claim(scenario: Scenario, loc: Loc, name: str, output: OutputSpec) -> Iterator[Complaint]:
    claim = scenario.claim_of(name)
    where: Loc = (*loc, "claim") if output.claim is not None else ("claim",)
    if output.kind == "upsert" and claim.order != "none":
        message = f"order: {claim.order} cannot be checked in output {name!r}: an upsert keeps only the last state of each identity"
        hint = f"declare it as changelog, or give it a claim of its own: outputs: {name}: claim: {{order: none}}"
        yield Complaint((*where, "order"), message, hint)
    if output.kind == "changelog" and claim.order == "none":
        message = (
            f"output {name!r} is a changelog, and with order: none it would not matter which of its states is the last"
        )
        hint = f"claim order: per-key, for all outputs or for this one: outputs: {name}: claim: {{order: per-key}}"
        yield Complaint((*loc, "kind"), message, hint)
