"""SQL expressions that convert a value to its canonical text, so that equal values have equal texts, whatever wrote them.

Every output arrives as text: from Postgres' output functions, or as the fields of a JSON value. The type that the *oracle*
gives a column decides how its values are compared. Both sides pass through the same expression, from text to text:

==================  ===========================================================================================
expected type       two values are equal when
==================  ===========================================================================================
integer, DECIMAL    their digits are equal, without trailing zeros after the point (never rounded: 1.7 is not 2)
FLOAT, DOUBLE       they are the same float or double; -0.0 equals 0.0 and NaN equals NaN
TIMESTAMP, DATE     they are the same microsecond; a text without a zone is UTC
TIME                likewise; a text with a zone or a date equals none
INTERVAL            their months are equal, and their days and times together, with 24 hours per day; also in ISO 8601 (``P1DT2H``)
BOOLEAN             they are equal, ``t`` being ``true`` and ``f`` being ``false``
BLOB                their bytes are equal, written as Postgres' ``\\x`` hex, or as base64 as in JSON
UUID                they differ in case only
JSON, lists, maps   their contents are equal: `onceproof.values.nested`
other               their texts are equal
==================  ===========================================================================================

A text that is not a value of the type stays unchanged, and so equals nothing that the oracle can expect. NULL is a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onceproof.values import nested

#: Types of whole numbers up to 64 bits.
WHOLE_NUMBERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
_INTEGERS = WHOLE_NUMBERS | nested.EXACT_NUMBERS - {"DECIMAL"}

# Types whose `as_text` is canonical. Not those of other precisions, whose texts have other digits, and not FLOAT, whose text is
# that of another DOUBLE.
_INSTANTS = {"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE"}

# A byte as DuckDB writes it in the text of a BLOB.
_ESCAPED_BYTE = r"\\x[0-9A-F]{2}"


def quote(name: str) -> str:
    """A SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A SQL string."""
    return "'" + text.replace("'", "''") + "'"


def member(name: str) -> str:
    """A SQL string with the JSON pointer (RFC 6901) to a member. A JSON path (``$."name"``) fails for names with quotes."""
    return literal("/" + name.replace("~", "~0").replace("/", "~1"))


def key_text(key: str) -> str:
    r"""SQL for the text of a Kafka key, from the expression of its bytes. Different bytes have different texts.

    A key that is UTF-8 is its own text. In any other key each byte that is not printable ASCII is written as ``\xNN``, and so
    is a backslash. A text that looks like that is written so, too: the four characters ``\xFF`` as ``\x5CxFF``.
    """
    text, escaped = f"TRY(decode({key}))", f"({key})::VARCHAR"
    looks_escaped = f"contains({text}, '\\x') AND regexp_matches({text}, {literal(_ESCAPED_BYTE)})"
    return f"CASE WHEN {looks_escaped} THEN {escaped} ELSE coalesce({text}, {escaped}) END"


def canonical(sql_type: str, text: str) -> str:
    """SQL for the canonical form of the text expression ``text``, read as DuckDB type ``sql_type``."""
    for step in _steps(sql_type):
        text = step(text)
    return text


def canonical_rows(source: str, columns: Mapping[str, str], *, arrays: bool = True) -> str:
    """SQL for the rows of ``source`` with these text columns (name -> DuckDB type) in canonical form.

    Each step is a nested SELECT of its own: a step uses its argument several times, so nesting the expressions themselves would
    make one so large that planning it takes longer than running it. ``arrays``: a list may be written as Postgres writes arrays.
    """
    steps = {name: _steps(sql_type, arrays=arrays) for name, sql_type in columns.items()}
    for depth in range(max(map(len, steps.values()), default=0)):
        replaced = [f"{some[depth](quote(name))} AS {quote(name)}" for name, some in steps.items() if depth < len(some)]
        source = f"SELECT * REPLACE ({', '.join(replaced)}) FROM ({source})"  # noqa: S608
    return source


def _steps(sql_type: str, *, arrays: bool = True) -> list[Callable[[str], str]]:
    """The conversions of a text of this type, in order: each takes and returns a SQL expression."""
    kind = sql_type.split("(")[0].strip()
    if is_nested(sql_type):
        function = nested.FUNCTION if arrays else nested.JSON_FUNCTION
        return [lambda text: f"{function}({text}, {literal(sql_type)})"]
    if kind in _INTEGERS or kind == "DECIMAL":
        return [_plain, _trimmed, lambda text: f"CASE {text} WHEN '-0' THEN '0' ELSE {text} END"]
    if kind in {"FLOAT", "DOUBLE"}:
        return [lambda text: _as_number(text, kind)]
    if kind == "TIME":
        return [_time]
    if kind == "INTERVAL":
        return [_iso_interval, _interval]
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return [_before_christ, lambda text: f"coalesce(TRY_CAST({text} AS TIMESTAMPTZ)::VARCHAR, {text})"]
    if kind == "BOOLEAN":
        return [lambda text: f"CASE {text} WHEN 't' THEN 'true' WHEN 'f' THEN 'false' ELSE {text} END"]
    if kind == "BLOB":
        return [_as_hex]
    if kind == "UUID":
        return [lambda text: f"lower({text})"]
    return []


def as_text(sql_type: str, value: str) -> str:
    """SQL for an expected value as text. It is canonical if `is_canonical` says so; otherwise, apply `canonical` to it."""
    if sql_type == "DOUBLE":
        return f"(({value}) + 0.0)::VARCHAR"
    if sql_type in _INSTANTS:  # a DATE may be outside the range of TIMESTAMPTZ
        return f"coalesce(TRY_CAST({value} AS TIMESTAMPTZ)::VARCHAR, ({value})::VARCHAR)"
    if sql_type == "BLOB":
        return f"('\\x' || hex({value}))"
    if sql_type == "JSON":  # unchanged: to_json would change the digits of some numbers
        return f"({value})::VARCHAR"
    if is_nested(sql_type):
        text = f"to_json({value})::VARCHAR"
        return f"{nested.BLOB_FUNCTION}({text}, {literal(sql_type)})" if "BLOB" in sql_type else text
    return f"({value})::VARCHAR"


def is_canonical(sql_type: str) -> bool:
    """Whether `as_text` already gives the canonical text for this type, so that `canonical` need not parse it again."""
    return sql_type in {*_INTEGERS, *_INSTANTS, "DOUBLE", "BOOLEAN", "UUID"}


def is_nested(sql_type: str) -> bool:
    return sql_type == "JSON" or sql_type.endswith("]") or sql_type.startswith(("STRUCT(", "MAP(", "UNION("))


def document(fields: dict[str, str]) -> str:
    """SQL for the JSON object of these fields (name -> text expression)."""
    packed = ", ".join(f"{quote(name)} := {expression}" for name, expression in fields.items())
    return f"to_json(struct_pack({packed}))::VARCHAR"


# A number with an exponent: Java writes small decimals so (1E-10), and people round ones (1e3).
_SCIENTIFIC = "[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)[eE][+-]?[0-9]{1,2}"
# Padding that is long enough to move the point by any exponent of two digits.
_ZEROS = "0" * 99


def _plain(text: str) -> str:
    """SQL for the number without an exponent. Most have none, and searching for a letter is faster than matching."""
    has_letter = f"contains({text}, 'e') OR contains({text}, 'E')"
    scientific = f"({has_letter}) AND regexp_full_match({text}, '{_SCIENTIFIC}')"
    return f"CASE WHEN {scientific} THEN {_without_exponent(text)} ELSE {text} END"


def _trimmed(text: str) -> str:
    return f"CASE WHEN contains({text}, '.') THEN rtrim(rtrim({text}, '0'), '.') ELSE {text} END"


def _as_number(text: str, kind: str) -> str:
    # DuckDB would accept 1_000 as a number, and spaces around a number.
    number = f"coalesce((TRY_CAST({text} AS {kind}) + 0.0)::VARCHAR, {text})"
    return f"CASE WHEN contains({text}, '_') OR contains({text}, ' ') THEN {text} ELSE {number} END"


def _before_christ(text: str) -> str:
    """SQL for a date as DuckDB writes it: Postgres' ``0044-03-15 12:00:00 BC`` is ``0044-03-15 (BC) 12:00:00``."""
    moved = f"regexp_replace({text}, '^([0-9]+-[0-9]+-[0-9]+)(.*) BC$', '\\1 (BC)\\2')"
    return f"CASE WHEN ends_with({text}, ' BC') THEN {moved} ELSE {text} END"


def _time(text: str) -> str:
    # DuckDB would drop a zone, and a date before the time.
    is_time = f"regexp_full_match({text}, '[0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]+)?)?')"
    return f"CASE WHEN {is_time} THEN coalesce(TRY_CAST({text} AS TIME)::VARCHAR, {text}) ELSE {text} END"


# An interval in ISO 8601, as Postgres writes it: each part with a sign of its own.
_ISO_INTERVAL = (
    "P([+-]?[0-9]+Y)?([+-]?[0-9]+M)?([+-]?[0-9]+W)?([+-]?[0-9]+D)?"
    "(T([+-]?[0-9]+H)?([+-]?[0-9]+M)?([+-]?[0-9]+([.][0-9]+)?S)?)?"
)


def _iso_interval(text: str) -> str:
    """SQL for an interval in ISO 8601 as DuckDB reads one: ``P-1DT2H`` as ``-1 days 2 hours``."""
    days = _spelled(f"regexp_extract({text}, '^P([^T]*)', 1)", Y="years", M="months", W="weeks", D="days")
    times = _spelled(f"regexp_extract({text}, 'T(.*)$', 1)", H="hours", M="minutes", S="seconds")
    return f"CASE WHEN regexp_full_match({text}, '{_ISO_INTERVAL}') THEN {days} || {times} ELSE {text} END"


def _spelled(text: str, **units: str) -> str:
    for letter, unit in units.items():  # no unit has a capital letter
        text = f"replace({text}, '{letter}', ' {unit} ')"
    return text


def _interval(text: str) -> str:
    """SQL for an interval as months and microseconds, with 24 hours per day."""
    value = f"TRY_CAST({text} AS INTERVAL)"
    months = f"(12 * datepart('year', {value}) + datepart('month', {value}))"
    time = f"(epoch_us({value}) - epoch_us(to_months({months}::INTEGER)))"
    return f"coalesce((to_months({months}::INTEGER) + to_microseconds({time}))::VARCHAR, {text})"


def _as_hex(text: str) -> str:
    # Keep the prefix, so that a text that is neither hex nor base64 never equals the bytes whose digits it looks like.
    in_base64 = f"coalesce(TRY('\\x' || lower(hex(from_base64({text})))), {text})"
    return f"CASE WHEN starts_with({text}, '\\x') THEN lower({text}) ELSE {in_base64} END"


def _without_exponent(text: str) -> str:
    """SQL for the same number with its point moved, digit by digit: a cast would round, and a wrong value could seem right."""
    whole = f"regexp_extract({text}, '^[+-]?([0-9]*)', 1)"
    fraction = f"regexp_extract({text}, '[.]([0-9]*)', 1)"
    exponent = f"TRY_CAST(regexp_extract({text}, '[eE](.*)$', 1) AS INTEGER)"
    digits = f"('{_ZEROS}' || {whole} || {fraction} || '{_ZEROS}')"
    point = f"({len(_ZEROS)} + length({whole}) + {exponent})"
    before = f"coalesce(nullif(ltrim(left({digits}, {point}), '0'), ''), '0')"
    sign = f"CASE WHEN starts_with({text}, '-') THEN '-' ELSE '' END"
    return f"{sign} || {before} || '.' || substr({digits}, {point} + 1)"
