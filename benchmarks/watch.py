"""How many records per second can one core watch, with which lag, and does its memory stay flat?

``python benchmarks/watch.py`` gives windows of generated records to the part of ``onceproof watch`` that judges, without services: CPU
time per record, and the resident memory after an early and after the last window. One record in ``--damage`` is lost or written twice,
and each must be named.

``python benchmarks/watch.py --live 90`` also starts a Kafka, writes ``--rate`` records per second to both topics for so many seconds, and
watches them: the lag, the CPU time of the watch, and its memory. The writer and the brokers share the cores with it.

Compare ratios, not seconds, which depend on the machine and on what else runs on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from measure import machine

from onceproof.base.timeline import Timeline
from onceproof.history.schema import TABLES
from onceproof.judge.findings import Verdict
from onceproof.scenario.stack import StackSpec
from onceproof.scenario_files.load import load_to_judge
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.kafka.clients import producer_config
from onceproof.stack.processes.owner import Owner
from onceproof.watch.judging import Windows
from onceproof.watch.summary import Tally

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--windows", type=int, default=30, help="windows without services")
parser.add_argument(
    "--records", type=int, default=50_000, help="input records per window: five seconds at 10,000 per second"
)
parser.add_argument("--damage", type=int, default=0, help="damage one record in so many; 0: none")
parser.add_argument("--live", type=int, default=0, help="also watch a Kafka for so many seconds")
parser.add_argument("--rate", type=int, default=10_000, help="with --live: records per second")

_SCENARIO = """
input: [{topic: bench-in}]
outputs:
  copies: {topic: bench-out, identity: [id]}
oracle:
  kind: sql
  queries:
    copies: SELECT id, price, name, _partition, _offset, _key FROM "bench-in"
"""


def record(number: int) -> str:
    return json.dumps(
        {"id": number, "price": number / 4, "name": f"name-{number}", "more": "a field that the job drops"}
    )


def row(number: int) -> str:
    return json.dumps({"id": number, "price": number / 4, "name": f"name-{number}"})


def batches(table: str, size: int, **columns: list[object]) -> Iterator[pa.RecordBatch]:
    """Rows of a history's table, in batches as they come from Kafka."""
    schema = TABLES[table]
    for first in range(0, size, 5_000):
        some = {name: values[first : first + 5_000] for name, values in columns.items()}
        count = len(some["offset"])
        yield pa.RecordBatch.from_arrays(
            [pa.array(some.get(column.name, [None] * count), column.type) for column in schema], schema=schema
        )


def without_services(folder: Path, count: int, size: int, damage: int) -> None:
    scenario = folder / "bench.yaml"
    scenario.write_text(_SCENARIO)
    windows, tally = Windows(load_to_judge(scenario), folder, 600.0), Tally()
    windows.begin({})
    process = psutil.Process()
    cpu, memory, written, planted = [], [], 0, 0
    for window in range(count):
        numbers = range(window * size, (window + 1) * size)
        same: dict[str, list[object]] = {
            "partition": [0] * size,
            "key": [b"k%d" % (n % 100) for n in numbers],
            "visibility": ["committed"] * size,
        }
        inputs = list(
            batches(
                "input",
                size,
                topic=["bench-in"] * size,
                offset=list(numbers),
                value=[record(n).encode() for n in numbers],
                **same,
            )
        )
        shown = list(numbers)
        if damage:
            hit = [n for n in numbers if n % damage == 1]
            planted += len(hit)
            lost = set(hit[::2])
            shown = [n for n in numbers for _ in range(0 if n in lost else 2 if n in set(hit[1::2]) else 1)]
        total = len(shown)
        outputs = list(
            batches(
                "output",
                total,
                output=["copies"] * total,
                op=["insert"] * total,
                partition=[0] * total,
                offset=list(range(written, written + total)),
                key=[b"k%d" % (n % 100) for n in shown],
                content=[row(n) for n in shown],
                visibility=["committed"] * total,
            )
        )
        written += total
        began = time.process_time()
        for batch in inputs:
            windows.add_input(batch, float(window))
        for batch in outputs:
            windows.add_output(batch)
        windows.close({("copies", 0): written}, float(window))
        while windows.closed:
            tally.add(windows.settle(float(window)))
        cpu.append(time.process_time() - began)
        del inputs, outputs
        memory.append(process.memory_info().rss)
    found = sum(finding.total for finding in tally.findings.values())
    assert found == planted and not tally.doubts, (found, planted, tally.doubts)
    early = memory[min(4, count - 1)]
    each = statistics.median(cpu)
    print(f"{count} windows of {size:,} records, {planted} damaged and named")
    print(f"CPU seconds per window: median {each:.2f}, so {size / each:,.0f} records per second and core")
    print(f"resident memory: {early >> 20} MiB after window 5, {memory[-1] >> 20} MiB after the last: ratio {memory[-1] / early:.2f}")  # fmt: skip


def write(bootstrap: str, rate: int, stop: threading.Event) -> None:
    """Write each record and its row, a tenth of a second's worth at a time."""
    feed, job = Producer(producer_config(bootstrap)), Producer(producer_config(bootstrap))
    number, began = 0, time.monotonic()
    while not stop.is_set():
        target = int((time.monotonic() - began) * rate)
        for at in range(number, target):
            feed.produce("bench-in", record(at), f"k{at % 100}", at % 2)
        feed.flush(30.0)
        for at in range(number, target):
            job.produce("bench-out", row(at), f"k{at % 100}")
        job.flush(30.0)
        number = target
        stop.wait(0.1)


def live(folder: Path, seconds: int, rate: int) -> None:
    (folder / "logs").mkdir()
    scenario = folder / "live.yaml"
    scenario.write_text(_SCENARIO)
    timeline = Timeline(folder / "events.jsonl")
    with Owner() as owner:
        stack = EmbeddedStack.start(StackSpec(), owner, folder, ensure(progress=False), timeline)
        stack.kafka.create_topic("bench-in", 2)
        stack.kafka.create_topic("bench-out", 1)
        stop = threading.Event()
        writer = threading.Thread(target=write, args=(stack.kafka.harness_bootstrap, rate, stop))
        writer.start()
        options = ["--json", "--for", f"{seconds}s", "--grace", "10s", "--kafka", stack.kafka.harness_bootstrap]
        command = [sys.executable, "-m", "onceproof", "watch", str(scenario), *options]
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        process, lags, memory, rates, cpu = psutil.Process(watching.pid), [], [], [], 0.0
        verdict: Verdict | None = None
        assert watching.stdout is not None
        for line in watching.stdout:
            event = json.loads(line)
            if event["event"] == "progress" and event["windows"]:
                lags.append(event["lag_seconds"])
                rates.append(event["records_per_second"])
                memory.append(process.memory_info().rss)
                cpu = sum(process.cpu_times()[:2])
            elif event["event"] == "ending":
                stop.set()
            elif event["event"] == "verdict":
                verdict = Verdict.from_json(event)
        writer.join()
        watching.wait()
    timeline.close()
    assert verdict is not None
    counts = verdict.counts
    print(f"live: {verdict.outcome}, {counts['input']:,} input records in {counts['windows']} windows, {statistics.median(rates):,.0f} per second")  # fmt: skip
    print(f"lag: median {statistics.median(lags):.1f} s, most {max(lags):.1f} s (window 5 s, grace 10 s)")
    print(f"CPU: {cpu:.0f} s, {1e6 * cpu / counts['input']:.0f} s per million input records and their rows")
    print(f"resident memory: {memory[0] >> 20} MiB at first, {memory[-1] >> 20} MiB at last: ratio {memory[-1] / memory[0]:.2f}")  # fmt: skip


if __name__ == "__main__":
    asked = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as made:
        without_services(Path(made), asked.windows, asked.records, asked.damage)
    if asked.live:
        with tempfile.TemporaryDirectory() as made:
            live(Path(made), asked.live, asked.rate)
