"""The digest of an effect: three numbers that represent its identity and content when millions of effects are compared.

They are stored next to the texts, in ``judge.expected`` and ``judge.effect_rows``: ``h`` for the identity's text, and
``digest_1`` and ``digest_2`` for the content's, both in the encoding of `onceproof.values.canonical`. ``h`` and ``digest_2``
are 64 bits of the text's MD5. ``digest_1`` is DuckDB's own hash, and never used alone: it reads a text eight bytes at a time,
and the last byte of one group can undo a change in the last byte of the previous one, so that texts of one pattern
(``{"id":"X","b":"Y"}``, any two letters) share 256 hashes. ``hash(h, digest_2)`` identifies a state of a changelog, identity
and content together.

Digests are compared by their exact sums. No other module of the judge depends on how they are made.
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


def of_text(text: str) -> str:
    """SQL for the digest of a text expression that identifies something: an identity, a key. NULL has a digest, too."""
    return f"hash(md5_number({text}))"


def of_content(content: str) -> tuple[str, str]:
    """SQL for the two digests of a text expression."""
    return f"hash({content})", of_text(content)


def of_row() -> str:
    """SQL for the digests of a row with ``id`` and ``content``, as ``h``, ``digest_1`` and ``digest_2``."""
    one, two = of_content("content")
    return f"{of_text('id')} AS h, {one} AS digest_1, {two} AS digest_2"


def of_rows(rows: str) -> str:
    """SQL that adds the digests to rows with ``id`` and ``content``, after their own columns."""
    return f"SELECT *, {of_row()} FROM ({rows})"  # noqa: S608
