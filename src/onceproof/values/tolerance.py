"""Whether a number is within a tolerance of the expected one, to the last digit.

Doubles decide all pairs but those so close to the edge of the tolerance that rounding could decide: two numbers of 40 digits may
differ by more than it and be one double, and 0.101 - 0.1 is more than 0.001. Those are decided by decimal arithmetic.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation, localcontext
from functools import lru_cache

import duckdb

#: The SQL function: (text found, text expected, absolute, relative) -> whether it is near enough.
FUNCTION = "exactly_within"
#: More digits than a double's range has before the point (309), and as many again after it.
_EXACT = Context(prec=1_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
#: Of the numbers and the tolerance: more than what four roundings of a double add up to (2 ** -53 each).
_ROUNDING = 2.0**-50


def register(db: duckdb.DuckDBPyConnection) -> None:
    db.create_function(FUNCTION, exactly_within, ["VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE"], "BOOLEAN")


def exactly_within(found: str, wanted: str, absolute: float, relative: float) -> bool:
    with localcontext(_EXACT):
        try:
            one, two = Decimal(found), Decimal(wanted)
        except InvalidOperation:
            return False
        return abs(one - two) <= max(_decimal(absolute), _decimal(relative) * abs(two))


@lru_cache
def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))  # the digits that the scenario has, not those of the nearest double


def within(found: str, wanted: str, *, absolute: str, relative: str) -> str:
    """The condition in SQL: ``found`` and ``wanted`` are texts of finite numbers, the others parameters."""
    one, two = f"{found}::DOUBLE", f"{wanted}::DOUBLE"
    limit = f"greatest({absolute}, {relative} * abs({two}))"
    rounding = f"(abs({one}) + abs({two}) + {limit}) * {_ROUNDING!r}"
    distance = f"abs({one} - {two})"
    return f"""CASE WHEN {distance} + {rounding} <= {limit} THEN true
                    WHEN {distance} - {rounding} > {limit} THEN false
                    ELSE {FUNCTION}({found}, {wanted}, {absolute}, {relative}) END"""
