"""SQL expressions that bring a value to one canonical text, so that equal values have equal texts whatever wrote them.

Every output arrives as text: Postgres' output functions, or the fields of a JSON value. The type that decides is the
one that the *oracle* gives the column. Both sides go through the same expression, from text to text:

==================  ===========================================================================================
expected type       two values are equal when
==================  ===========================================================================================
integer, DECIMAL    their digits are, without trailing zeros after the point (never rounded: 1.7 is not 2)
FLOAT, DOUBLE       they are the same double; -0.0 equals 0.0 and NaN equals NaN
TIMESTAMP, DATE     they are the same microsecond; a text without a zone is UTC
BOOLEAN             ``t`` and ``true`` are the same
BLOB                their bytes are: Postgres' ``\\x`` hex, or base64 as in JSON
UUID                they differ in case only
JSON, lists, maps   their minified JSON texts are
other               their texts are
==================  ===========================================================================================

A text that is no value of the type stays as it is, and so equals nothing that the oracle can expect. NULL is a value.
"""

from __future__ import annotations

_INTEGERS = {
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
    "BIGNUM",
}


def quote(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def canonical(sql_type: str, text: str) -> str:
    """SQL for the canonical form of the text expression ``text``, read as DuckDB type ``sql_type``."""
    kind = sql_type.split("(")[0].strip()
    if is_nested(sql_type):
        return f"coalesce(TRY(json({text})::VARCHAR), {text})"
    if kind in _INTEGERS or kind == "DECIMAL":
        return _exact(text)
    if kind in {"FLOAT", "DOUBLE"}:
        return f"coalesce((TRY_CAST({text} AS DOUBLE) + 0.0)::VARCHAR, {text})"
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return f"coalesce(TRY_CAST({text} AS TIMESTAMPTZ)::VARCHAR, {text})"
    if kind == "BOOLEAN":
        return f"CASE {text} WHEN 't' THEN 'true' WHEN 'f' THEN 'false' ELSE {text} END"
    if kind == "BLOB":
        hexed = f"lower(substr({text}, 3))"
        return f"CASE WHEN starts_with({text}, '\\x') THEN {hexed} ELSE coalesce(TRY(lower(hex(from_base64({text})))), {text}) END"
    if kind == "UUID":
        return f"lower({text})"
    return text


def as_text(sql_type: str, value: str) -> str:
    """SQL for an expected value as the text that `canonical` takes."""
    if sql_type == "BLOB":
        return f"('\\x' || hex({value}))"
    if is_nested(sql_type):
        return f"to_json({value})::VARCHAR"
    return f"({value})::VARCHAR"


def is_nested(sql_type: str) -> bool:
    return sql_type == "JSON" or sql_type.endswith("]") or sql_type.startswith(("STRUCT(", "MAP(", "UNION("))


def document(fields: dict[str, str]) -> str:
    """SQL for the JSON object of these fields (name -> text expression)."""
    packed = ", ".join(f"{quote(name)} := {expression}" for name, expression in fields.items())
    return f"to_json(struct_pack({packed}))::VARCHAR"


# A number with an exponent, as Java writes a small decimal (1E-10) and anybody a round one (1e3).
_SCIENTIFIC = "[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)[eE][+-]?[0-9]{1,2}"
# No exponent of two digits moves the point out of these.
_ZEROS = "0" * 99


def _exact(text: str) -> str:
    plain = f"CASE WHEN regexp_full_match({text}, '{_SCIENTIFIC}') THEN {_without_exponent(text)} ELSE {text} END"
    trimmed = f"CASE WHEN contains({plain}, '.') THEN rtrim(rtrim({plain}, '0'), '.') ELSE {plain} END"
    return f"CASE {trimmed} WHEN '-0' THEN '0' ELSE {trimmed} END"


def _without_exponent(text: str) -> str:
    """The same number with its point moved, digit by digit: a cast would round, and a wrong value would pass for right."""
    whole = f"regexp_extract({text}, '^[+-]?([0-9]*)', 1)"
    fraction = f"regexp_extract({text}, '[.]([0-9]*)', 1)"
    exponent = f"TRY_CAST(regexp_extract({text}, '[eE](.*)$', 1) AS INTEGER)"
    digits = f"('{_ZEROS}' || {whole} || {fraction} || '{_ZEROS}')"
    point = f"({len(_ZEROS)} + length({whole}) + {exponent})"
    before = f"coalesce(nullif(ltrim(left({digits}, {point}), '0'), ''), '0')"
    sign = f"CASE WHEN starts_with({text}, '-') THEN '-' ELSE '' END"
    return f"{sign} || {before} || '.' || substr({digits}, {point} + 1)"
