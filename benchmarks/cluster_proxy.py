"""What does the protocol proxy cost in front of a cluster with TLS? The same work on four network paths, in turns.

``python benchmarks/cluster_proxy.py`` starts three brokers with SASL_SSL (``tests/foreign_cluster.py``), and sends and reads records of
1 KiB within seconds on each path, in an order that changes from round to round: without TLS, with TLS, with TLS through
Toxiproxy (which passes the bytes on), and with TLS through the protocol proxy, which ends one TLS and opens another. It prints the
medians, and the median of the rounds' ratios to direct TLS with its 95 % interval (from the ranks alone). Clients run in a
process of their own, as a job does. A rule is armed that no frame matches.

Two requirements are checked. Throughput: at least 0.8 of direct TLS. Latency: the proxy adds at most what Toxiproxy adds, plus 10 %, plus
what TLS costs.
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
from onceproof.stack.kafka.clients import client_config
from onceproof.stack.kafka.settings import HOST
from onceproof.stack.processes.owner import Owner
from onceproof.stack.processes.ports import lease
from onceproof.stack.toxiproxy.server import ToxiproxyServer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=20, help="turns of each path for each kind of work")
parser.add_argument("--megabytes", type=int, default=20, help="sent and read in each turn")

_RECORD = 1024
_QUESTIONS = 200
_MIB = 1024 * 1024
TOPIC = "t-bench"
PLAIN, DIRECT, TOXIPROXY, PROXY = PATHS = ("plain", "direct TLS", "Toxiproxy", "proxy")
_ENOUGH = 0.8
_LATENCY = "a record and its acknowledgement, us"


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
    _LATENCY: acknowledge,
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
    """The class of the tests, which are not a package, with two more listeners per broker: without TLS, and behind Toxiproxy."""
    path = Path(__file__).parent.parent / "tests" / "foreign_cluster.py"
    spec = importlib.util.spec_from_file_location("foreign_cluster", path)
    assert spec is not None and spec.loader is not None
    sys.modules["foreign_cluster"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Kafka(module.ForeignKafka):  # type: ignore[misc,name-defined]  # loaded by its path
        def __init__(
            self, owner: Owner, folder: Path, found: components.Components, toxiproxy: ToxiproxyServer
        ) -> None:
            self._plain, self._behind = lease(owner, 3), lease(owner, 3)
            ports = zip(range(1, 4), lease(owner, 3), self._behind, strict=True)
            self._toxiproxies = [toxiproxy.create(f"client-{node}", port, behind) for node, port, behind in ports]
            super().__init__(owner, folder, found)

        def paths(self, proxy: str, ca: Path) -> dict[str, dict[str, Any]]:
            """Path -> librdkafka's settings."""
            return {
                PLAIN: client_config(",".join(f"{HOST}:{port}" for port in self._plain)),
                DIRECT: self.settings(),
                TOXIPROXY: self.settings(at=",".join(one.listen for one in self._toxiproxies)),
                PROXY: self.settings(ca=ca, at=proxy),
            }

        def _settings(self, node: int, keystore: Path) -> str:
            plain, behind = (f"{HOST}:{ports[node - 1]}" for ports in (self._plain, self._behind))
            at = self._toxiproxies[node - 1].listen
            more = {
                "listeners=": f",PLAIN://{plain},TOXIPROXY://{behind}",
                "advertised.listeners=": f",PLAIN://{plain},TOXIPROXY://{at}",
                "listener.security.protocol.map=": ",PLAIN:PLAINTEXT,TOXIPROXY:SASL_SSL",
            }
            lines = str(super()._settings(node, keystore)).splitlines()
            lines = [line + next((text for key, text in more.items() if line.startswith(key)), "") for line in lines]
            own = "listener.name.foreign."
            lines += [line.replace(own, "listener.name.toxiproxy.") for line in lines if line.startswith(own)]
            return "\n".join(lines)

    return Kafka


def ratios(found: dict[str, list[float]], path: str) -> list[float]:
    """This path compared with direct TLS, round by round."""
    return [one / direct for one, direct in zip(found[path], found[DIRECT], strict=True)]


def compare(name: str, found: dict[str, list[float]]) -> str:
    """One line of results."""
    parts = [f"{name:38}"]
    for path in PATHS:
        low, high = interval(ratios(found, path))
        parts.append(
            f"{path} {statistics.median(found[path]):.1f} = {statistics.median(ratios(found, path)):.2f} ({low:.2f} to {high:.2f})"
        )
    return "  ".join(parts)


def verdict(name: str, found: dict[str, list[float]]) -> str:
    """Whether the requirement is met, in words."""
    if name != _LATENCY:
        kept = ratios(found, PROXY)
        met = _decided([ratio - _ENOUGH for ratio in kept])
        return f"    {met}: throughput {statistics.median(kept):.2f} of direct TLS, required {_ENOUGH}"
    rounds = list(zip(*(found[path] for path in PATHS), strict=True))
    added = [proxy - direct for _, direct, _, proxy in rounds]
    allowed = [1.1 * (toxiproxy - direct) + direct - plain for plain, direct, toxiproxy, _ in rounds]
    left = [b - a for a, b in zip(added, allowed, strict=True)]
    low, high = interval(left)
    return (
        f"    {_decided(left)}: adds {statistics.median(added):.0f} us, allowed {statistics.median(allowed):.0f} us; "
        f"{statistics.median(left):+.0f} us are left ({low:+.0f} to {high:+.0f})"
    )


def _decided(left: list[float]) -> str:
    """Whether a requirement is met, from what is left of it in each round. Only an interval on one side of zero decides."""
    low, high = interval(left)
    if low < 0 <= high:
        return f"not decided, {'met' if statistics.median(left) >= 0 else 'missed'} by the median"
    return "met" if low >= 0 else "MISSED"


def main() -> None:
    options = parser.parse_args()
    loop, board = ProxyLoop(), Board()
    with Owner() as owner, tempfile.TemporaryDirectory() as folder:
        found = components.ensure()
        log = Path(folder) / "toxiproxy.log"
        toxiproxy = ToxiproxyServer.start(owner, found.toxiproxy_server, log, lease(owner, 1)[0])
        kafka = foreign_kafka()(owner, Path(folder), found, toxiproxy)
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
        paths = kafka.paths(proxy.bootstrap, authority.ca)
        print(machine())
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
            for name, work in WORK.items():
                for path in PATHS:  # once without measuring: connections, page cache
                    clients.submit(work, paths[path], options.megabytes).result()
                measured: dict[str, list[float]] = {path: [] for path in PATHS}
                cpu = time.process_time()
                for number in range(options.rounds):
                    # Each path is first, second, third and last equally often, and follows each other one.
                    order = PATHS[number % 4 :] + PATHS[: number % 4]
                    for path in order if number % 8 < 4 else order[::-1]:
                        measured[path].append(clients.submit(work, paths[path], options.megabytes).result())
                cpu = (time.process_time() - cpu) / options.rounds
                print(compare(name, measured))
                print(f"{verdict(name, measured)}; {cpu:.2f} s of CPU in the proxy's process per round", flush=True)
    loop.close()
    if proxy.refusals or loop.failures:
        raise SystemExit(f"{proxy.refusals} {loop.failures}")


if __name__ == "__main__":
    main()
