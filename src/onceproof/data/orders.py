"""Made-up orders with amounts of money, for values that must keep every digit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from pydantic import BaseModel, Field, PositiveInt

from onceproof.data import DatasetOptions, Record, WithoutTables, as_iso, as_json, datasets

#: The time of the first order.
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_CURRENCIES = ("EUR", "USD", "CHF")


class OrdersOptions(DatasetOptions):
    """The ``options:`` of an input with this data set."""

    rows: PositiveInt = Field(10_000, description="number of orders")
    customers: PositiveInt = Field(200, description="number of customers")


@datasets.register("orders")
class Orders(WithoutTables):
    """Order i, from 0: ``{"order_id": i, "customer": ..., "amount": ..., "ordered_at": ..., "currency": ...}``.

    The key is the customer. ``amount`` is text with two decimals, up to 9999999.99. Each order is one second after the one before.
    """

    about: ClassVar[str] = "seeded orders with an exact amount of money, keyed by customer"
    Options: ClassVar[type[BaseModel]] = OrdersOptions
    _options: OrdersOptions

    def rows(self) -> int:
        return self._options.rows

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Orders [start, stop). Each depends on its number and the seed only."""
        for number in range(start, min(stop, self._options.rows)):
            chooser = random.Random(f"{self._seed}/{number}")  # noqa: S311 - variety, not secrecy
            at = BEGIN + timedelta(seconds=number)
            customer = f"c{chooser.randrange(self._options.customers):04d}"
            cents = chooser.randrange(1, 1_000_000_000)
            order = {
                "order_id": number,
                "customer": customer,
                "amount": f"{cents // 100}.{cents % 100:02d}",
                "ordered_at": as_iso(at),
                "currency": chooser.choice(_CURRENCIES),
            }
            yield Record(customer.encode(), as_json(order), int(at.timestamp() * 1000))
