"""Generates the input of this folder's jobs: the same few hundred records each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def orders() -> Iterable[dict[str, Any]]:
    draw = random.Random(1)
    for number in range(600):
        yield {
            "order_id": 10_000 + number,
            "customer": f"c{draw.randrange(40)}",
            "item": draw.choice(("kettle", "lamp", "rug", "stool")),
            "quantity": draw.randint(1, 5),
            "price": draw.randint(100, 99_999) / 100,
        }


def readings() -> Iterable[dict[str, Any]]:
    """One reading in fifty does not fit the schema: text where the meter's count should be, or no id."""
    draw = random.Random(2)
    for number in range(600):
        reading = {"reading_id": number, "meter": f"m{draw.randrange(25)}", "watt_hours": draw.randrange(10**7)}
        if number % 100 == 17:
            reading["watt_hours"] = "n/a"
        elif number % 100 == 63:
            del reading["reading_id"]
        yield reading


def trades() -> Iterable[dict[str, Any]]:
    """Trades with the field names of a large exchange: `t` is the trade's id, `T` its time; price and quantity are texts."""
    draw = random.Random(3)
    start = int(NOON.timestamp() * 1000)
    for number in range(900):
        yield {
            "s": draw.choice(("AAABBB", "CCCDDD", "EEEFFF")),
            "t": 70_000 + number,
            "T": start + number * 700 + draw.randrange(500),
            "p": f"{draw.randint(10**7, 10**9) / 10**8:.8f}",
            "q": f"{draw.randint(1, 10**6) / 10**4:.8f}",
        }


def purchases() -> Iterable[dict[str, Any]]:
    draw = random.Random(4)
    for number in range(360):
        yield {"purchase_id": number, "buyer": f"b{draw.randrange(30)}", "bought_at": at(number * 2)}


def payments() -> Iterable[dict[str, Any]]:
    """Four of five purchases are paid, each within a minute."""
    draw = random.Random(5)
    for number in range(360):
        if number % 5:
            paid_at = at(number * 2 + draw.randrange(20))
            yield {
                "payment_id": 5_000 + number,
                "purchase": number,
                "cents": draw.randrange(1, 10**6),
                "paid_at": paid_at,
            }


def events() -> Iterable[dict[str, Any]]:
    """Whole records: key, value and headers."""
    draw = random.Random(6)
    for number in range(600):
        yield {
            "key": f"k{draw.randrange(50)}",
            "value": {"n": number, "what": draw.choice(("made", "sent", "seen"))},
            "headers": {"trace": f"{draw.getrandbits(64):016x}"},
        }


def sensors() -> Iterable[dict[str, Any]]:
    draw = random.Random(7)
    for number in range(600):
        yield {"n": number, "sensor": f"s{draw.randrange(20)}", "celsius": draw.randrange(1600) / 16}


def shown() -> Iterable[dict[str, Any]]:
    """Ads that were shown. The last is an hour later than all others and moves the watermark past them."""
    draw = random.Random(8)
    for number in range(400):
        yield {"ad_id": number, "page": f"/p{draw.randrange(12)}", "shown_at": at(number)}
    yield {"ad_id": 400, "page": "/end", "shown_at": at(4_000)}


def clicked() -> Iterable[dict[str, Any]]:
    """One ad in three is clicked, within twenty seconds."""
    draw = random.Random(9)
    for number in range(0, 400, 3):
        yield {"click_id": 9_000 + number, "ad": number, "clicked_at": at(number + draw.randrange(20))}
    yield {"click_id": 9_999, "ad": 9_999, "clicked_at": at(4_000)}


def visits() -> Iterable[dict[str, Any]]:
    draw = random.Random(10)
    for number in range(600):
        yield {"visit": number, "page": f"/p{draw.randrange(15)}"}


def write(folder: Path, *names: str) -> None:
    """`NAME.jsonl` in ``folder`` for each named set."""
    for name in names:
        lines = (json.dumps(record) for record in globals()[name]())
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
