from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from onceproof.data.orders import Orders, OrdersOptions


def make(seed: int = 7) -> Orders:
    return Orders(OrdersOptions(rows=500, customers=20), seed=seed)


def test_each_order_has_an_exact_amount_and_its_customer_as_key() -> None:
    for number, record in enumerate(make().records(0, 600)):
        order = json.loads(record.value)
        assert order["order_id"] == number and record.key == order["customer"].encode()
        assert re.fullmatch(r"[0-9]{1,7}\.[0-9]{2}", order["amount"])
    assert number == make().rows() - 1


def test_chunks_agree_with_the_whole_and_the_seed_decides() -> None:
    whole = list(make().records(0, 500))
    assert [r for start in range(0, 500, 77) for r in make().records(start, min(start + 77, 500))] == whole
    assert whole != list(make(8).records(0, 500))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError):
        OrdersOptions.model_validate({"row": 3})
