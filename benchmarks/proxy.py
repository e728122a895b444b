"""What does the protocol proxy cost? The same work on four network paths: direct, through each proxy alone, and through both.

``python benchmarks/proxy.py`` does each piece of work on all paths within a second or two, in an order that changes from round
to round, and compares only within a round, during which the rest of the machine does much the same. It prints the medians,
the median of the rounds' ratios with its 95 % interval (from the ranks alone, so no distribution of the noise is assumed), what
each proxy adds to a round trip, and the CPU time of the harness's process, which contains the proxy. Clients run in a process of
their own, as a job does. Rules are armed that no frame matches. `pipeline_routes.py` does the same with a whole Spark pipeline.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from math import comb
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from measure import machine

from onceproof.base.timeline import Timeline
from onceproof.instruments.proxy.rules import Condition, Rule
from onceproof.scenario.stack import KafkaStack, PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.processes.owner import Owner

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument(
    "--rounds", type=int, default=24, help="turns of each path (a multiple of 24 uses each order equally often)"
)
parser.add_argument("--megabytes", type=int, default=20, help="sent and read in each turn")

PATHS = ("direct", "Toxiproxy", "frames", "both")
"""``frames``: the protocol proxy alone, which then connects to the service itself."""

_RECORD = 1000
_QUESTIONS = 300
TOPIC = "bench"


def produce(kafka: str, megabytes: int) -> float:
    """Return the MB/s of sending 1 kB records until all are acknowledged."""
    producer = Producer({**producer_config(kafka), "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    producer.list_topics(TOPIC)
    value, records = b"x" * _RECORD, megabytes * 1_000_000 // _RECORD
    began = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(TOPIC, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0
    return megabytes / (time.perf_counter() - began)


def consume(kafka: str, megabytes: int) -> float:
    """Return the MB/s of reading what `produce` wrote, from the start."""
    consumer = Consumer({**client_config(kafka), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    left = megabytes * 1_000_000 // _RECORD - len(consumer.consume(1, 20))  # connected, with the first fetch done
    began = time.perf_counter()
    while left > 0:
        got = consumer.consume(min(left, 10_000), 20)
        assert got, f"{left} records did not come"
        left -= len(got)
    took = time.perf_counter() - began
    consumer.close()
    return megabytes / took


def acknowledged(kafka: str) -> float:
    """Return the median microseconds for one record and its acknowledgement."""
    producer = Producer(producer_config(kafka))
    producer.list_topics(TOPIC)

    def one() -> None:
        producer.produce(TOPIC, b"x" * 100, partition=1)
        assert producer.flush(10) == 0

    return _median_us(one, _QUESTIONS)


def select(postgres: str, passfile: str) -> float:
    """Return the median microseconds for SELECT 1."""
    with psycopg.connect(postgres, **_secret(passfile), autocommit=True) as connection:
        return _median_us(lambda: connection.execute("SELECT 1"), _QUESTIONS)


def transaction(postgres: str, passfile: str) -> float:
    """Return the median milliseconds for one transaction that inserts 2,000 rows and commits, as a micro-batch does."""
    with psycopg.connect(postgres, **_secret(passfile)) as connection:
        connection.execute("CREATE TEMP TABLE bench (n int, payload text)")
        rows = [(n, "x" * 100) for n in range(2000)]

        def one() -> None:
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO bench VALUES (%s, %s)", rows)
            connection.commit()

        return _median_us(one, 5) / 1000


def _secret(passfile: str) -> dict[str, Any]:
    """Return the passfile as a setting; the direct path has none, because it uses the superuser's own settings."""
    return {"passfile": passfile} if passfile else {}


def _median_us(work: Callable[[], object], times: int) -> float:
    work()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


def main() -> None:
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stacks are stopped in this case as well
    with ExitStack() as stacks:
        pool = stacks.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        one, both = start_stack(stacks, read_frames=False), start_stack(stacks, read_frames=True)
        addresses = {
            "direct": _direct(one),
            "Toxiproxy": _proxied(one),
            "frames": _proxied(both),
            "both": _proxied(both),
        }
        assert both.frames is not None
        measured: dict[str, dict[str, list[float]]] = {}
        cpu: dict[str, list[float]] = {}
        orders = list(itertools.permutations(PATHS))
        for number in range(-1, args.rounds):  # the first turn is a warm-up and does not count
            for what, (work, given) in _work(args.megabytes).items():
                for name in orders[number % len(orders)]:
                    _set_target(both, past_toxiproxy=name == "frames")
                    before = time.process_time()
                    got = pool.submit(work, *given(*addresses[name])).result()
                    spent = time.process_time() - before
                    if number >= 0:
                        measured.setdefault(what, {}).setdefault(name, []).append(got)
                        if name == "frames":
                            cpu.setdefault(what, []).append(spent)
    print(machine())
    print(table(measured, cpu))
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        print("the machine was busy with other work: look at the intervals before you trust a ratio")


def table(measured: dict[str, dict[str, list[float]]], cpu: dict[str, list[float]]) -> str:
    lines = [
        f"{'median':<34} {'direct':>9} {'Toxiproxy':>9} {'frames':>9} {'both':>9} {'frames/Toxiproxy':>20} {'CPU, ms':>8}",
    ]
    for what, by_path in measured.items():
        medians = [f"{statistics.median(by_path[name]):>9,.1f}" for name in PATHS]
        ratio = compared(by_path["Toxiproxy"], by_path["frames"])
        lines.append(f"{what:<34} {' '.join(medians)} {ratio:>20} {statistics.median(cpu[what]) * 1000:>8.0f}")
    for what in measured:
        if "MB/s" not in what:
            added = {name: _added(measured[what]["direct"], measured[what][name]) for name in PATHS[1:]}
            lines.append(f"added to {what}: " + ", ".join(f"{name} {by:,.1f}" for name, by in added.items()))
    return "\n".join(lines)


def _added(without: Sequence[float], with_it: Sequence[float]) -> float:
    return statistics.median(b - a for a, b in zip(without, with_it, strict=True))


def compared(without: Sequence[float], with_it: Sequence[float]) -> str:
    """Return the median of the paired ratios, with its 95 % interval from the ranks."""
    ratios = sorted(b / a for a, b in zip(without, with_it, strict=True))
    # Each of n ratios lies below the true median with probability 1/2: the k-th smallest is above it with P(Bin(n, 1/2) < k).
    count = len(ratios)
    below, chance = 0, 0.5**count
    while below < count // 2 and chance <= 0.025:
        below += 1
        chance += comb(count, below) * 0.5**count
    low, high = (ratios[below - 1], ratios[-below]) if below else (ratios[0], ratios[-1])
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def start_stack(stacks: ExitStack, *, read_frames: bool) -> EmbeddedStack:
    folder = Path(stacks.enter_context(tempfile.TemporaryDirectory(prefix="onceproof-benchmark-")))
    owner = stacks.enter_context(Owner())
    spec = StackSpec(kafka=KafkaStack(brokers=1), postgres=PostgresStack())
    timeline = Timeline(folder / "events.jsonl")
    stack = EmbeddedStack.start(spec, owner, folder, components.ensure(), timeline, read_frames=read_frames)
    stack.kafka.create_topic(TOPIC, 2, {"retention.bytes": "-1"})
    if stack.frames is not None:
        # As in a run with an armed fault: every frame is examined, and those of these kinds are decoded.
        stack.frames.board("kafka").arm(Rule(Condition("EndTxn", transactional_id="^nobody's$"), "park"))
        stack.frames.board("postgres").arm(Rule(Condition("commit", transaction="^nobody's$"), "park"))
    return stack


def _set_target(stack: EmbeddedStack, *, past_toxiproxy: bool) -> None:
    """Set where the protocol proxy connects for new connections."""
    assert stack.frames is not None
    for proxy in stack.frames.proxies:
        host, _, port = (proxy.upstream if past_toxiproxy else proxy.behind.listen).rpartition(":")
        proxy.frames.target = replace(proxy.frames.target, host=host, port=int(port))


def _direct(stack: EmbeddedStack) -> tuple[str, str, str]:
    assert stack.postgres is not None
    return stack.kafka.harness_bootstrap, stack.postgres.harness_conninfo, ""


def _proxied(stack: EmbeddedStack) -> tuple[str, str, str]:
    assert stack.postgres is not None
    return stack.kafka.client_bootstrap, stack.postgres.client_uri, str(stack.postgres.passfile)


Arguments = Callable[[str, str, str], tuple[Any, ...]]
"""Maps Kafka, Postgres and passfile of a path to the arguments of a piece of work."""


def _work(megabytes: int) -> dict[str, tuple[Callable[..., float], Arguments]]:
    return {
        "produce, MB/s": (produce, lambda kafka, _postgres, _passfile: (kafka, megabytes)),
        "consume, MB/s": (consume, lambda kafka, _postgres, _passfile: (kafka, megabytes)),
        "produce and acknowledge, us": (acknowledged, lambda kafka, _postgres, _passfile: (kafka,)),
        "SELECT 1, us": (select, lambda _kafka, postgres, passfile: (postgres, passfile)),
        "transaction of 2,000 inserts, ms": (transaction, lambda _kafka, postgres, passfile: (postgres, passfile)),
    }


if __name__ == "__main__":
    main()
