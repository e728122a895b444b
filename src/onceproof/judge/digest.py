"""The digest of an effect: three numbers that stand for its identity and content where millions of them are compared.

They are stored beside the texts, in ``judge.expected`` and ``judge.effect_rows``: ``h`` of the identity's text, and
``digest_1`` and ``digest_2`` of the content's, both texts in the encoding of `onceproof.judge.canonical`. ``digest_1`` is
DuckDB's 64-bit hash of the text, ``digest_2`` is 64 bits of its MD5: what has the same of one has not the same of the other.

Digests are compared by their exact sums. Nothing else in the judge knows how they are made.
"""

from __future__ import annotations

#: The type of the texts beside them: named, for finding out what suits a column best costs more than storing it.
TEXT = "VARCHAR USING COMPRESSION zstd"

#: The columns, as in CREATE TABLE. Nothing makes random numbers smaller.
COLUMNS = ", ".join(f"{name} UBIGINT USING COMPRESSION uncompressed" for name in ("h", "digest_1", "digest_2"))

_BUCKETS = 4096

#: SQL for the bucket of an identity.
BUCKET = f"(h % {_BUCKETS})"

#: SQL for what is left of both sides together, each row with its ``sign``: true where they differ.
DIFFERENT = """(sum(sign) <> 0 OR sum(sign * digest_1::HUGEINT) <> 0 OR sum(sign * digest_2::HUGEINT) <> 0)"""


def of_content(content: str) -> tuple[str, str]:
    """SQL for the two digests of a text expression."""
    return f"hash({content})", f"hash(md5_number({content}))"


def of_rows(rows: str) -> str:
    """SQL that adds the digests to rows with ``id`` and ``content``, behind their own columns."""
    return f"SELECT *, hash(id), {', '.join(of_content('content'))} FROM ({rows})"  # noqa: S608
