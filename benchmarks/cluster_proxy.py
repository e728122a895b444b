"""What does the protocol proxy cost in front of a cluster with TLS? The same work directly, and through the proxy, in pairs.

``python benchmarks/cluster_proxy.py`` starts three brokers with SASL_SSL (``tests/foreign_cluster.py``), and sends and reads records of
1 KiB on both paths within seconds, in an order that changes from round to round. Both paths use TLS; the proxy ends one and
opens another. It prints the medians, and the median of the rounds' ratios with its 95 % interval (from the ranks alone). Clients
run in a process of their own, as a job does. A rule is armed that no frame matches.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from math import comb
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from measure import machine

from onceproof.instruments.proxy.authority import RunAuthority
from onceproof.instruments.proxy.cluster import ClusterProxy
from onceproof.instruments.proxy.loop import ProxyLoop
from onceproof.instruments.proxy.rules import Board, Condition, Rule
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=20, help="pairs of each kind of work")
parser.add_argument("--megabytes", type=int, default=20, help="sent and read in each turn")

_RECORD = 1024
_QUESTIONS = 200
_MIB = 1024 * 1024
TOPIC = "t-bench"


def produce(settings: dict[str, Any], megabytes: int) -> float:
    """Return the MiB/s of sending records until all are acknowledged."""
    producer = Producer({**settings, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    producer.list_topics(TOPIC)
    records = megabytes * _MIB // _RECORD
    value = b"x" * _RECORD
    began = time.perf_counter()
    for _ in range(records):
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(120) == 0
    return megabytes / (time.perf_counter() - began)


def consume(settings: dict[str, Any], megabytes: int) -> float:
    """Return the MiB/s of reading the first records of the topic."""
    consumer = Consumer({**settings, "group.id": "t-bench", "enable.auto.commit": False})
    consumer.list_topics(TOPIC)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    left = megabytes * _MIB // _RECORD
    began = time.perf_counter()
    while left > 0:
        left -= len(consumer.consume(min(left, 5000), 10))
    seconds = time.perf_counter() - began
    consumer.close()
    return megabytes / seconds


def acknowledge(settings: dict[str, Any], _megabytes: int) -> float:
    """Return the microseconds from sending one record to its acknowledgement: the median of many, one after another."""
    producer = Producer({**settings, "linger.ms": 0})
    producer.list_topics(TOPIC)
    times = []
    for _ in range(_QUESTIONS):
        began = time.perf_counter()
        producer.produce(TOPIC, b"x" * _RECORD, partition=1)
        producer.flush(10)
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


WORK: dict[str, Callable[[dict[str, Any], int], float]] = {
    "produce, MiB/s": produce,
    "consume, MiB/s": consume,
    "a record and its acknowledgement, us": acknowledge,
}


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, from the ranks (binomial)."""
    ordered, size = sorted(values), len(values)
    tail, rank = 0.0, 0
    while (tail := tail + comb(size, rank) / 2**size) <= 0.025:
        rank += 1
    low = max(rank - 1, 0)
    return ordered[low], ordered[size - 1 - low]


def foreign_kafka() -> Any:
    """The class of the tests, which are not a package."""
    path = Path(__file__).parent.parent / "tests" / "foreign_cluster.py"
    spec = importlib.util.spec_from_file_location("foreign_cluster", path)
    assert spec is not None and spec.loader is not None
    sys.modules["foreign_cluster"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ForeignKafka


def main() -> None:
    options = parser.parse_args()
    loop, board = ProxyLoop(), Board()
    with Owner() as owner, tempfile.TemporaryDirectory() as folder:
        kafka = foreign_kafka()(owner, Path(folder), components.ensure())
        kafka.create_topic(TOPIC)
        authority = RunAuthority.create(Path(folder) / "run")
        proxy = ClusterProxy(
            loop,
            board,
            kafka.bootstrap,
            "127.0.0.1",
            lambda: lease(owner, 1)[0],
            client_tls=authority.server_context(),
            upstream_tls=kafka.upstream,
        )
        proxy.open()
        board.arm(Rule(Condition("EndTxn", transactional_id="^nobody's$"), "drop-request"))
        paths = {"direct": kafka.settings(), "proxy": kafka.settings(ca=authority.ca, at=proxy.bootstrap)}
        print(machine())
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
            for name, work in WORK.items():
                for settings in paths.values():  # once without measuring: connections, page cache
                    clients.submit(work, settings, options.megabytes).result()
                found: dict[str, list[float]] = {path: [] for path in paths}
                for number in range(options.rounds):
                    for path in list(paths)[:: 1 if number % 2 else -1]:
                        found[path].append(clients.submit(work, paths[path], options.megabytes).result())
                ratios = [through / direct for through, direct in zip(found["proxy"], found["direct"], strict=True)]
                added = [through - direct for through, direct in zip(found["proxy"], found["direct"], strict=True)]
                medians = {path: statistics.median(values) for path, values in found.items()}
                low, high = interval(ratios)
                print(
                    f"{name:40} direct {medians['direct']:8.1f}  proxy {medians['proxy']:8.1f}"
                    f"  ratio {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
                    f"  difference {statistics.median(added):+.1f}"
                )
    loop.close()
    if proxy.refusals or loop.failures:
        raise SystemExit(f"{proxy.refusals} {loop.failures}")


if __name__ == "__main__":
    main()
