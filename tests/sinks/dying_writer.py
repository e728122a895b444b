"""Writes one batch with one sink and dies at one point of it, as a killed driver does. Started by `bench.Bench.die`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import pyarrow.parquet as pq
from as_spark import AsSpark  # type: ignore[import-not-found]  # next to this script

KILLED = 9


def main() -> None:
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]
    failpoints = importlib.import_module(f"{order['package']}.failpoints")

    def die(point: str, **facts: Any) -> None:
        if (point, facts["sink"]) == (order["point"], order["service"]):
            os._exit(KILLED)

    failpoints.reach = failpoints.report = die  # type: ignore[attr-defined]
    if order["is_format"]:
        sink: Any = AsSpark(order["package"], order["kind"], order["settings"])
    else:
        module = importlib.import_module(f"{order['package']}.{order['module']}")
        sink = getattr(module, order["kind"])(*order["args"], **order["settings"])
    sink.write(pq.read_table(order["rows"]), order["batch"])


if __name__ == "__main__":
    main()
