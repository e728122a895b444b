"""The columns of an oracle's rows: which are compared, which are missing, and the causes if the output itself carries them."""

from __future__ import annotations

from onceproof.base.errors import NotEvaluated
from onceproof.oracle.contract.expectation import RESERVED
from onceproof.oracle.contract.inputs import Inputs
from onceproof.scenario.model import Scenario
from onceproof.values.canonical import literal, quote
from onceproof.values.column_names import of_one_name


def with_source(inputs: Inputs, output: str, query: str) -> tuple[str, dict[str, str]]:
    """``query`` and the types of its columns. Adds the cause of each row if the output's columns carry it (``source``) and the
    query gives none. Raises `duckdb.Error`, and `NotEvaluated` if it is unclear which topic the cause is in, or which of two columns
    of the same name is expected.
    """
    types = _types(inputs, output, query)
    source = inputs.scenario.outputs[output].source
    if source is None:
        return query, types
    cause_columns = {source.partition, source.offset} | ({source.topic} if source.topic is not None else set())
    if types.keys() & {"_topic", "_partition", "_offset", "_key"} or not types.keys() >= cause_columns:
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


def _types(inputs: Inputs, output: str, query: str) -> dict[str, str]:
    """Column -> type. Raises `NotEvaluated` for a name that occurs twice: DuckDB would take one of the two and ignore the other."""
    columns = inputs.columns(query)
    if twice := of_one_name(name for name, _ in columns):
        others = f"; to change one that `*` gives, write * REPLACE (... AS {quote(twice[0])})" if "*" in query else ""
        raise NotEvaluated(
            f"the oracle's query for output {output!r} gives several columns of one name, in upper or lower case: "
            f"{', '.join(twice)}. Name each column once{others}"
        )
    return dict(columns)


def compared(scenario: Scenario, output: str, types: dict[str, str]) -> dict[str, str]:
    """The columns of an oracle's query that are compared: all except the ignored ones, or those that the output names.

    Raises `NotEvaluated` where the query lacks a column.
    """
    spec = scenario.outputs[output]
    chosen = None if spec.compare is None else {*spec.identity, *spec.compare}
    columns = {
        name: sql_type
        for name, sql_type in types.items()
        if name not in RESERVED and name not in spec.ignore and (chosen is None or name in chosen)
    }
    given = ", ".join(name for name in types if name not in RESERVED) or "none"
    needed = [(name, "which is part of its identity") for name in spec.identity]
    needed += [(name, "which the output wants compared") for name in [*(spec.compare or []), *spec.tolerance]]
    for name, why in needed:
        if name not in columns:
            raise NotEvaluated(
                f"the oracle's query for output {output!r} has no column {name!r}, {why}; it has {given}"
            )
    if spec.kind == "changelog" and "_offset" not in types:
        raise NotEvaluated(
            f"output {output!r} is a changelog: the oracle's query must give _partition and _offset of "
            "the input record after which each state holds"
        )
    if spec.headers == "compare" and "_headers" not in types:
        raise NotEvaluated(
            f"output {output!r} compares headers, but the oracle's query for it does not select _headers"
        )
    if ("_offset" in types) != ("_partition" in types):
        raise NotEvaluated(
            f"the oracle's query for output {output!r} selects only one of _partition and _offset; it needs both"
        )
    if "_offset" in types and "_topic" not in types and len(scenario.input) > 1:
        raise NotEvaluated(f"the oracle's query for output {output!r} needs _topic: there are several input topics")
    return columns
