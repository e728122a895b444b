"""What do Toxiproxy and the protocol proxy together cost a pipeline? One Spark job per network path, fed in turns.

``python benchmarks/pipeline_routes.py`` starts the job of the benchmarks (Kafka to Postgres, effectively once) twice on one stack:
with the services' own addresses, and through both proxies with rules armed that no frame matches. The jobs get chunks of records
in turns. The throughput of a chunk is its records over the time from the plan to the commit of its batches, by the files of the
checkpoint. Only the two turns of a pair are compared, as in `proxy.py`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from measure import machine
from proxy import compared, start_stack
from state_left import ends_of

from onceproof.base.waiting import wait_until
from onceproof.data import open_dataset
from onceproof.pipeline.spark_conf import job_environment
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.processes.owner import Owner

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--pairs", type=int, default=20)
parser.add_argument("--rows", type=int, default=20_000, help="records per chunk")

_WARM_UP = 3
_PARTITIONS = 3


class Pipeline:
    """One job with its topic, table and checkpoint."""

    def __init__(self, name: str, stack: EmbeddedStack, owner: Owner, kafka: str, postgres: str) -> None:
        assert stack.postgres is not None
        self._name = name
        self._producer = Producer({**producer_config(stack.kafka.harness_bootstrap), "linger.ms": 5})
        self._sent = 0
        self._folder = owner.scratch / name
        self._folder.mkdir()
        self._checkpoint = self._folder / "checkpoint"
        stack.kafka.create_topic(name, _PARTITIONS, {"retention.bytes": "-1"})
        with psycopg.connect(stack.postgres.client_uri, passfile=str(stack.postgres.passfile)) as connection:
            connection.execute(f"CREATE TABLE {name} (id bigint, key text, seq bigint, payload text)".encode())
        job = files("onceproof") / "scenarios" / "jobs" / "numbers_to_postgres.py"
        words = [
            f"--kafka={kafka}",
            f"--postgres={postgres}",
            f"--topic={name}",
            f"--table={name}",
            f"--pipeline={name}",
        ]
        environment = job_environment(
            class_path=stack.spark_class_path,
            archive=stack.spark_archive,
            scratch=self._folder,
            passfile=stack.postgres.passfile,
            failpoints=None,
            own={},
            secrets=[],
        )
        command = [sys.executable, str(job), *words, f"--checkpoint={self._checkpoint}"]
        self._job = owner.start(name, command, log=self._folder / "log", env=environment, cwd=self._folder)

    def turn(self, rows: list[tuple[bytes, bytes]]) -> float:
        """Feed one chunk; return its records per second."""
        first = max(self._numbers("commits"), default=-1) + 1
        for index, (key, value) in enumerate(rows):
            self._producer.produce(self._name, value, key, partition=index % _PARTITIONS)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._sent += len(rows)
        wait_until(
            "the chunk to be committed", self._done, deadline_s=300, abandon=self._check, explain=self._job.log_tail
        )
        last = max(self._numbers("commits"))
        batches = range(first, last + 1)
        took = sum(self._written("commits", n) - self._written("offsets", n) for n in batches)
        return len(rows) / took

    def started(self) -> bool:
        self._check()
        return (self._checkpoint / "commits" / "0").exists()

    def _done(self) -> bool:
        last = max(self._numbers("commits"), default=None)
        # The marker of a transaction would also take an offset; this producer has no transactions.
        return last is not None and sum(ends_of(self._checkpoint / "offsets" / str(last)).values()) >= self._sent

    def _check(self) -> None:
        if not self._job.is_running():
            raise SystemExit(f"the job of pipeline {self._name} ended: {self._job.log_tail()}")

    def _numbers(self, log: str) -> list[int]:
        folder = self._checkpoint / log
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []

    def _written(self, log: str, batch: int) -> float:
        return Path(self._checkpoint / log / str(batch)).stat().st_mtime_ns / 1e9


def main() -> None:
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    turns = args.pairs + _WARM_UP
    numbers = open_dataset("numbers", {"rows": args.rows * turns, "payload_bytes": 100}, seed=0)
    with ExitStack() as stacks:
        stack = start_stack(stacks, read_frames=True)
        assert stack.postgres is not None
        owner = stacks.enter_context(Owner())
        straight = stack.postgres.client_uri.replace(stack.postgres.proxy.listen, f"127.0.0.1:{stack.postgres.port}")
        pipelines = {
            "direct": Pipeline("direct", stack, owner, stack.kafka.harness_bootstrap, straight),
            "proxied": Pipeline("proxied", stack, owner, stack.kafka.client_bootstrap, stack.postgres.client_uri),
        }
        wait_until(
            "both jobs to run", lambda: all(pipeline.started() for pipeline in pipelines.values()), deadline_s=300
        )
        measured: dict[str, list[float]] = {name: [] for name in pipelines}
        for turn in range(turns):
            chunk = [(r.key or b"", r.value) for r in numbers.records(turn * args.rows, (turn + 1) * args.rows)]
            for name in pipelines if turn % 2 else reversed(pipelines):
                got = pipelines[name].turn(chunk)
                if turn >= _WARM_UP:
                    measured[name].append(got)
    print(machine())
    for name, values in measured.items():
        print(f"{name:<10} {statistics.median(values):>10,.0f} records/s, median of {len(values)}")
    print(f"proxied/direct {compared(measured['direct'], measured['proxied'])}")


if __name__ == "__main__":
    main()
