"""Checks whether a number is within a tolerance of the expected one, to the last digit.

Most pairs are decided by double arithmetic. Pairs so close to the edge of the tolerance that rounding could matter are decided
by decimal arithmetic: two numbers of 40 digits may differ by more than the tolerance and be the same double, and as doubles,
0.101 - 0.1 is more than 0.001.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation, localcontext
from functools import lru_cache

#: The SQL function: (found text, expected text, absolute, relative) -> whether the number is within the tolerance.
FUNCTION = "exactly_within"
#: Enough digits for a double's range: 309 before the point, and as many after it.
_EXACT = Context(prec=1_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
#: Relative to the numbers and the tolerance: more than four roundings of a double add up to (2 ** -53 each).
_ROUNDING = 2.0**-50


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
    """The condition in SQL. ``found`` and ``wanted`` are texts of finite numbers, ``absolute`` and ``relative`` parameters."""
    one, two = f"{found}::DOUBLE", f"{wanted}::DOUBLE"
    limit = f"greatest({absolute}, {relative} * abs({two}))"
    rounding = f"(abs({one}) + abs({two}) + {limit}) * {_ROUNDING!r}"
    distance = f"abs({one} - {two})"
    return f"""CASE WHEN {distance} + {rounding} <= {limit} THEN true
                    WHEN {distance} - {rounding} > {limit} THEN false
                    ELSE {FUNCTION}({found}, {wanted}, {absolute}, {relative}) END"""


#: Name of the SQL function -> what makes it.
FUNCTIONS = {
    FUNCTION: lambda db: db.create_function(
        FUNCTION, exactly_within, ["VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE"], "BOOLEAN"
    )
}
