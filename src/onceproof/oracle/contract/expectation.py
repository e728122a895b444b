"""An oracle's answer: a value with a query for each output. The judge runs the queries over the inputs that it gave the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onceproof.oracle.contract.query import Unordered

#: Column of an oracle's rows: when the row's window closes.
CLOSES = "_closes"

#: Columns of an oracle's rows that name the cause of a row and its place in the output. They are not compared.
RESERVED = ("_topic", "_partition", "_offset", "_key", "_to_partition", "_to_key", "_headers", CLOSES)


@dataclass(frozen=True)
class ExpectedRows:
    """The rows that one output must hold."""

    query: str
    """One SELECT over the inputs. Its columns, except the reserved ones (`RESERVED`), are those of the output, in their types."""
    whole: bool = True
    """Whether the query gives every column that is compared. If not, other columns of the output may hold anything."""
    unordered: tuple[Unordered, ...] = ()
    """The parts of the query that depend on an order of rows that nothing fixes."""


@dataclass(frozen=True)
class Expectation:
    """What each output must hold."""

    outputs: Mapping[str, ExpectedRows]
    basis: str = ""
    """What the answer is relative to, if a verdict must say so."""
    stored: bool = False
    """Whether the answer was computed when the run ended, so that asking again adds nothing."""
    texts: bool = False
    """Whether the values are the texts that another run showed, whatever their types."""
