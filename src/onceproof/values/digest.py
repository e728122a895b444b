"""The digest of an effect: three numbers that stand for its identity and content where millions of them are compared.

They are stored beside the texts, in ``judge.expected`` and ``judge.effect_rows``: ``h`` of the identity's text, and
``digest_1`` and ``digest_2`` of the content's, both texts in the encoding of `onceproof.values.canonical`. ``h`` and ``digest_2``
are 64 bits of the text's MD5. ``digest_1`` is DuckDB's own hash, and never stands alone: it takes a text eight bytes at a time,
and a change in the last byte of one eight can be undone by the last byte of the next, so that texts of one pattern
(``{"id":"X","b":"Y"}``, any two letters) share 256 hashes. A changelog's state, identity and content together, is named by ``hash(h, digest_2)``.

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


def of_text(text: str) -> str:
    """SQL for the digest of a text expression that names something by itself: an identity, a key. NULL: one like any other."""
    return f"hash(md5_number({text}))"


def of_content(content: str) -> tuple[str, str]:
    """SQL for the two digests of a text expression."""
    return f"hash({content})", of_text(content)


def of_rows(rows: str) -> str:
    """SQL that adds the digests to rows with ``id`` and ``content``, behind their own columns."""
    return f"SELECT *, {of_text('id')}, {', '.join(of_content('content'))} FROM ({rows})"  # noqa: S608
