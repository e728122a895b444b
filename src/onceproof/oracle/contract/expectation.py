"""What an oracle says: a value that holds a query for each output. The judge runs the queries, over the inputs that it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onceproof.oracle.contract.query import Unordered

#: Column of an oracle's rows: when the row's window closes.
CLOSES = "_closes"

#: Columns of an oracle's rows that say where a row comes from and where it belongs. They are not compared.
RESERVED = ("_topic", "_partition", "_offset", "_key", "_to_partition", "_to_key", "_headers", CLOSES)


@dataclass(frozen=True)
class ExpectedRows:
    """The rows that one output must hold."""

    query: str
    """One SELECT over the inputs. Its columns, but for the reserved ones (`RESERVED`), are the output's, in their types."""
    whole: bool = True
    """It gives every column that is compared. False: other columns of the output may hold anything."""
    unordered: tuple[Unordered, ...] = ()
    """What in it depends on an order of rows that nothing fixes."""


@dataclass(frozen=True)
class Expectation:
    """What an oracle says of the outputs."""

    outputs: Mapping[str, ExpectedRows]
    basis: str = ""
    """What it rests on, where a verdict must say so."""
    stored: bool = False
    """It was worked out when the run ended: asking again says nothing new."""
    texts: bool = False
    """Its values are the texts that another run showed, whatever their types."""
