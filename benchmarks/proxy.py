"""What the protocol proxy costs: the same work through Toxiproxy alone and through both, in turns, in one run.

``python benchmarks/proxy.py`` prints the best of the rounds, the ratio of the bests, the median of the ratios of each round,
and the CPU time that the harness's process, with the proxy in it, spent on one piece of work. Clients run in a process of their
own, as a job does. On a machine with other work only the bests and the CPU time say much.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from measure import machine

from onceproof.events import Timeline
from onceproof.scenario.model import KafkaStack, PostgresStack, StackSpec
from onceproof.stack import components
from onceproof.stack.clients import client_config, producer_config
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.processes import Owner

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=7, help="turns of each road")
parser.add_argument("--megabytes", type=int, default=40, help="sent and read in each round")

_RECORD = 1000
_QUESTIONS = 300
TOPIC = "bench"


def produce(kafka: str, megabytes: int) -> float:
    """MB/s of 1 kB records until all are acknowledged."""
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
    """MB/s of reading what `produce` wrote, from the start."""
    consumer = Consumer({**client_config(kafka), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    left = megabytes * 1_000_000 // _RECORD - len(consumer.consume(1, 20))  # connected, and the first fetch is in
    began = time.perf_counter()
    while left > 0:
        got = consumer.consume(min(left, 10_000), 20)
        assert got, f"{left} records did not come"
        left -= len(got)
    took = time.perf_counter() - began
    consumer.close()
    return megabytes / took


def acknowledged(kafka: str) -> float:
    """Microseconds for one record and its acknowledgement, median."""
    producer = Producer(producer_config(kafka))
    producer.list_topics(TOPIC)

    def one() -> None:
        producer.produce(TOPIC, b"x" * 100, partition=1)
        assert producer.flush(10) == 0

    return _median_us(one, _QUESTIONS)


def select(postgres: str, passfile: str) -> float:
    """Microseconds for SELECT 1, median."""
    with psycopg.connect(postgres, passfile=passfile, autocommit=True) as connection:
        return _median_us(lambda: connection.execute("SELECT 1"), _QUESTIONS)


def transaction(postgres: str, passfile: str) -> float:
    """Milliseconds for one transaction that inserts 2,000 rows and commits, median: what a micro-batch does."""
    with psycopg.connect(postgres, passfile=passfile) as connection:
        connection.execute("CREATE TEMP TABLE bench (n int, payload text)")
        rows = [(n, "x" * 100) for n in range(2000)]

        def one() -> None:
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO bench VALUES (%s, %s)", rows)
            connection.commit()

        return _median_us(one, 5) / 1000


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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also then the stacks are stopped on the way out
    with ExitStack() as stacks:
        pool = stacks.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        roads = {name: _stack(stacks, read_frames=name == "both") for name in ("Toxiproxy", "both")}
        measured: dict[str, dict[str, list[float]]] = {}
        cpu: dict[str, list[float]] = {}
        for number in range(args.rounds):
            # The order changes, so that neither road is always the one that comes second.
            for name in roads if number % 2 else reversed(roads):
                for what, work, given in _work(roads[name], args.megabytes):
                    before = time.process_time()
                    got = pool.submit(work, *given).result()
                    measured.setdefault(what, {}).setdefault(name, []).append(got)
                    if name == "both":
                        cpu.setdefault(what, []).append(time.process_time() - before)
    print(machine())
    head = f"best of {args.rounds}"
    print(f"{head:<34} {'Toxiproxy':>10} {'both':>10} {'ratio':>6} {'median ratio':>13} {'CPU, ms':>8}")
    for what, by_road in measured.items():
        best = max if "MB/s" in what else min
        without, both = (best(by_road[name]) for name in ("Toxiproxy", "both"))
        paired = statistics.median(b / w for w, b in zip(by_road["Toxiproxy"], by_road["both"], strict=True))
        spent = statistics.median(cpu[what]) * 1000
        print(f"{what:<34} {without:>10,.1f} {both:>10,.1f} {both / without:>6.2f} {paired:>13.2f} {spent:>8.0f}")


def _stack(stacks: ExitStack, *, read_frames: bool) -> EmbeddedStack:
    folder = Path(stacks.enter_context(tempfile.TemporaryDirectory(prefix="onceproof-benchmark-")))
    owner = stacks.enter_context(Owner())
    spec = StackSpec(kafka=KafkaStack(brokers=1), postgres=PostgresStack())
    timeline = Timeline(folder / "events.jsonl")
    stack = EmbeddedStack.start(spec, owner, folder, components.ensure(), timeline, read_frames=read_frames)
    stack.kafka.create_topic(TOPIC, 2, {"retention.bytes": "-1"})
    return stack


def _work(stack: EmbeddedStack, megabytes: int) -> list[tuple[str, Callable[..., float], tuple[Any, ...]]]:
    assert stack.postgres is not None
    kafka, postgres = stack.kafka.client_bootstrap, (stack.postgres.client_uri, str(stack.postgres.passfile))
    return [
        ("produce, MB/s", produce, (kafka, megabytes)),
        ("consume, MB/s", consume, (kafka, megabytes)),
        ("produce and acknowledge, us", acknowledged, (kafka,)),
        ("SELECT 1, us", select, postgres),
        ("transaction of 2,000 inserts, ms", transaction, postgres),
    ]


if __name__ == "__main__":
    main()
