"""Decides whether the key of a Kafka record is compared with the oracle's, as one more column of its content.

An output record must carry the key that the oracle's row gives as ``_to_key``, or else as ``_key``: the key of the input record
that causes it. A job that drops the key breaks the order for every downstream reader.

``_key`` is primarily the key by which effects are ordered, and a job may give its records other keys on purpose. So if all
records of an output have keys, and none of them is a key that the oracle gives, it is unknown whether that is right. The
scenario must say so (``compare_key``, or ``_to_key``); until then the run is inconclusive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.values.canonical import key_text, literal

if TYPE_CHECKING:
    from onceproof.judge.case.case import Case
    from onceproof.oracle.contract.inputs import Inputs

#: The name of the column. It contains a space, so that it is unlikely to be a field of a value.
COLUMN = "record key"

#: The name of the column for the headers, if the output compares them.
HEADERS = "record headers"

#: What is compared of a record in addition to its value.
BESIDE_THE_VALUE = {COLUMN, HEADERS}

# How many keys are looked for at first.
_SOME = 1_000

#: SQL for the key of a record as text.
KEY_TEXT = key_text('"key"')


def source(case: Case, inputs: Inputs, output: str, query: str, types: dict[str, str]) -> str | None:
    """The column of the oracle's ``query`` that each record's key is compared with; None if keys are not compared.

    If users may expect the comparison, the reason goes into ``case.not_compared`` or, if it leaves the claim open,
    ``case.doubts``.
    """
    spec = case.scenario.outputs[output]
    if spec.topic is None or spec.compare_key is False or case.scenario.pipeline.on_queues:
        return None
    name = next((name for name in ("_to_key", "_key") if name in types), None)
    if name is None or name == "_to_key" or spec.compare_key:
        return name
    records = f"FROM history.output WHERE output = {literal(output)} AND visibility = 'committed'"
    found = case.rows(f'SELECT count(*) AS n, count("key") AS keyed {records}')[0]
    if not found["keyed"] and case.run.imported:
        case.not_compared[output] = "its records were imported without keys"
        return None
    if found["n"] == 0 or found["keyed"] < found["n"]:
        some = f"SELECT 1 FROM (\n{query}\n) WHERE _key IS NOT NULL LIMIT 1"  # noqa: S608
        return name if inputs.sql(some).fetchall() else None
    # Nearly always one of some keys is that of a record.
    some = f"SELECT _key::VARCHAR FROM (\n{query}\n) WHERE _key IS NOT NULL LIMIT {_SOME}"  # noqa: S608
    given = [key for (key,) in inputs.sql(some).fetchall()]
    if not given:
        return None  # the input has no keys
    keys = f"SELECT {KEY_TEXT} {records}"
    if case.number(f"SELECT 1 FROM (SELECT unnest($given) AS given) WHERE given IN ({keys}) LIMIT 1", {"given": given}):  # noqa: S608
        return name
    # The oracle's query runs in the database of the inputs; its result is compared here.
    every = f"SELECT DISTINCT _key::VARCHAR AS given FROM (\n{query}\n) WHERE _key IS NOT NULL"  # noqa: S608
    known = f"read_parquet({literal(str(inputs.store(every)))})"
    if case.number(f"SELECT 1 FROM {known} WHERE given IN ({keys}) LIMIT 1"):  # noqa: S608
        return name
    case.doubts.append(
        f"no record of output {output!r} has the key of an input record: if this is intended, let the oracle give the right "
        f"key as _to_key, or set `compare_key: false` under outputs: {output}; if not, `compare_key: true` makes it a finding"
    )
    return None


def headers(sql_type: str) -> str:
    """SQL for an oracle's ``_headers`` in the form that a history has: the text of a JSON list without spaces."""
    return "_headers" if sql_type == "VARCHAR" else "json(to_json(_headers))::VARCHAR"


def headers_problem(case: Case, types: dict[str, str]) -> str | None:
    """Why headers cannot be compared with the result of an oracle's query with these columns; None if they can."""
    if "_headers" not in types:
        return "the oracle's query for it does not select _headers"
    if "headers" not in case.history.footers["output"].schema.names:
        return "this history was written without them"
    known = "(SELECT count(headers) FROM history.input) + (SELECT count(headers) FROM history.output)"
    if case.run.imported and not case.number(f"SELECT {known}"):
        return "they were not imported"
    return None
