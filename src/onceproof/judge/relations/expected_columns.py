"""The columns of an oracle's rows: which of them are compared, what they lack, and the cause where the output itself carries it."""

from __future__ import annotations

from onceproof.base.errors import NotEvaluated
from onceproof.oracle.contract.expectation import RESERVED
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario.model import Scenario
from onceproof.values.canonical import literal, quote


def with_source(inputs: Inputs, output: str, query: str) -> tuple[str, dict[str, str]]:
    """``query`` and the types of its columns; with the cause of each row, where the output says which columns carry it and the
    query names none. Raises `duckdb.Error`, and `NotEvaluated` where it cannot say which topic that is.
    """
    types = inputs.types(query)
    source = inputs.scenario.outputs[output].source
    if source is None:
        return query, types
    carried = [name for name in (source.topic, source.partition, source.offset) if name is not None]
    if types.keys() & {"_topic", "_partition", "_offset", "_key"} or not types.keys() >= {*carried}:
        return query, types
    if source.topic is None and len(inputs.scenario.input) > 1:
        raise NotEvaluated(f"outputs: {output}: source: topic is needed: there are several input topics")
    topic = f"r.{quote(source.topic)}" if source.topic is not None else literal(inputs.scenario.input[0].topic)
    sourced = f"""
        SELECT r.*, {topic} AS _topic, r.{quote(source.partition)}::INTEGER AS _partition,
               r.{quote(source.offset)}::BIGINT AS _offset, i._key
        FROM (\n{query}\n) r LEFT JOIN (
            SELECT topic, "partition", "offset", coalesce(TRY(decode("key")), "key"::VARCHAR) AS _key
            FROM history.input WHERE visibility = 'committed') i
          ON i.topic = {topic} AND i."partition" = r.{quote(source.partition)}::INTEGER
         AND i."offset" = r.{quote(source.offset)}::BIGINT"""  # noqa: S608
    return sourced, inputs.types(sourced)


def compared(scenario: Scenario, output: str, types: dict[str, str]) -> dict[str, str]:
    """The columns of an oracle's query that are compared: all but the ignored ones, or those that the output names.

    Raises `NotEvaluated` where the query lacks a column.
    """
    spec = scenario.outputs[output]
    chosen = None if spec.compare is None else {*spec.identity, *spec.compare}
    columns = {
        name: sql_type
        for name, sql_type in types.items()
        if name not in RESERVED and name not in spec.ignore and (chosen is None or name in chosen)
    }
    _check(scenario, output, types, columns)
    return columns


def _check(scenario: Scenario, output: str, types: dict[str, str], columns: dict[str, str]) -> None:
    """What an oracle's rows for an output lack, by their columns. Raises `NotEvaluated`."""
    spec = scenario.outputs[output]
    given = ", ".join(name for name in types if name not in RESERVED) or "none"
    if missing := [name for name in spec.identity if name not in columns]:
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which is part of its identity; "
            f"it gives {given}"
        )
    if missing := [name for name in [*(spec.compare or []), *spec.tolerance] if name not in columns]:
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives no column {missing[0]!r}, which the output wants compared; "
            f"it gives {given}"
        )
    if spec.kind == "changelog" and "_offset" not in types:
        raise NotEvaluated(
            f"output {output!r} is a changelog: the oracle's query needs _partition and _offset, "
            "the input record after which each state holds"
        )
    if spec.headers == "compare" and "_headers" not in types:
        raise NotEvaluated(f"output {output!r} compares headers, and the oracle's query for it gives no _headers")
    if ("_offset" in types) != ("_partition" in types):
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives one of _partition and _offset; it needs both"
        )
    if "_offset" in types and "_topic" not in types and len(scenario.input) > 1:
        raise NotEvaluated(f"the oracle's query for output {output!r} needs _topic: there are several input topics")
