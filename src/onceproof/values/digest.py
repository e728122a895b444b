"""The digest of an effect: three numbers that represent its identity and content when millions of effects are compared.

``h`` is for the identity, ``digest_1`` and ``digest_2`` for the content: the lower 64 bits of the identity text's MD5, and the two
halves of the content text's. The identity's text is the JSON object of its columns' canonical texts (`onceproof.values.canonical`), in
the order in which the oracle gives them, without blanks, as UTF-8. The content's text (version 2 of the encoding) is that of
`onceproof.values.written` if the output's values have a form, and otherwise such an object of all columns. ``docs/digests.md``
describes it, and says how likely two different texts have the same digests. ``hash(h, digest_2)`` identifies a state of a
changelog, identity and content together.

Digests are compared by their exact sums: with XOR, a duplicated pair would cancel out, and a DOUBLE would lose digits. A sum of
64-bit numbers is a HUGEINT, which has room for 2 ** 63 of them. DuckDB's own hash would be faster, but texts that differ in one
bit can share it (`tests/judge/test_digests_first.py`). No other module of the judge depends on how digests are made.
"""

from __future__ import annotations

#: The type of the texts next to them. It names the compression, because letting DuckDB find the best one costs more than
#: storing.
TEXT = "VARCHAR USING COMPRESSION zstd"

#: The columns, as in CREATE TABLE. Random numbers cannot be compressed.
COLUMNS = ", ".join(f"{name} UBIGINT USING COMPRESSION uncompressed" for name in ("h", "digest_1", "digest_2"))

_BUCKETS = 4096

#: SQL for the bucket of an identity.
BUCKET = f"(h % {_BUCKETS})"

#: SQL condition for the rows of both sides together, each with its ``sign``: true if the sides differ.
DIFFERENT = """(sum(sign) <> 0 OR sum(sign * digest_1::HUGEINT) <> 0 OR sum(sign * digest_2::HUGEINT) <> 0)"""


# Shifts and masks of 128-bit numbers are fast, divisions are ten times slower.
_LOWER = "18446744073709551615::UHUGEINT"


def of_text(text: str) -> str:
    """SQL for the digest of a text expression that identifies something: an identity, a key. That of NULL is 0."""
    return f"coalesce((md5_number({text}) & {_LOWER})::UBIGINT, 0)"


def of_content(content: str) -> tuple[str, str]:
    """SQL for the two digests of a text expression."""
    return f"coalesce((md5_number({content}) >> 64)::UBIGINT, 0)", of_text(content)


def of_row(content: str = "content") -> str:
    """SQL for the digests of a row with ``id`` and ``content``, as ``h``, ``digest_1`` and ``digest_2``."""
    one, two = of_content(content)
    return f"{of_text('id')} AS h, {one} AS digest_1, {two} AS digest_2"


def of_rows(rows: str) -> str:
    """SQL that adds the digests to rows with ``id`` and ``content``, after their own columns."""
    return f"SELECT *, {of_row()} FROM ({rows})"  # noqa: S608
