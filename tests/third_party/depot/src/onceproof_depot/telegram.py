"""Decoder ``scan-telegram``: what a barcode scanner sends, ``P000042|DOCK-3|1250``."""

from __future__ import annotations

from typing import Any


def decode(value: bytes) -> dict[str, Any]:
    """A scan of a parcel: its number, the dock, and its weight in grams."""
    parcel, dock, grams = value.decode("ascii").split("|")
    return {"parcel": parcel, "dock": dock, "grams": int(grams)}
