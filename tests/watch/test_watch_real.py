"""`onceproof watch` on the command line, next to a real Kafka in which a pipeline writes while it watches."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from onceproof.base.timeline import Timeline
from onceproof.base.waiting import wait_until
from onceproof.scenario.stack import StackSpec
from onceproof.stack.cleanup import clean_up
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch.components import ensure
from onceproof.stack.kafka.clients import client_config, producer_config
from onceproof.stack.processes.owner import SCRATCH_PREFIX, Owner

pytestmark = [pytest.mark.real, pytest.mark.services]

WINDOW_S, GRACE_S = 1, 3
#: Never set: the pipeline writes at a steady pace.
PACE = threading.Event()
#: Two windows pass until a row is settled. The rest is what this machine may need for two judgements while it is busy.
SOON_S = 2 * WINDOW_S + GRACE_S + 15


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStack]:
    folder = tmp_path_factory.mktemp("watch")
    (folder / "logs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEPROOF_STATE_DIR", str(folder / "state"))
        timeline = Timeline(folder / "events.jsonl")
        with Owner() as owner:
            yield EmbeddedStack.start(StackSpec(), owner, folder, ensure(progress=False), timeline)
        timeline.close()


@dataclass
class Pipeline:
    """Feeds a topic, and copies each record to another one, as a job does."""

    bootstrap: str
    name: str
    written: int = 0
    transactional: bool = False
    planted: dict[int, float] = field(default_factory=dict)
    """Record -> when something was planted there."""

    def __post_init__(self) -> None:
        self._feed = Producer(producer_config(self.bootstrap))
        own = {"transactional.id": f"job-{self.name}"} if self.transactional else {}
        self._job = Producer({**producer_config(self.bootstrap), **own})
        if self.transactional:
            self._job.init_transactions(30.0)

    def feed(self, numbers: range) -> None:
        for number in numbers:
            value = json.dumps({"id": number, "price": number / 4, "note": "a field that the job drops"})
            self._feed.produce(f"{self.name}-in", value, f"k{number % 10}", number % 2)
        assert self._feed.flush(30.0) == 0

    def write(self, numbers: list[int], *, price: float | None = None) -> None:
        if self.transactional:
            self._job.begin_transaction()
        for number in numbers:
            value = json.dumps({"id": number, "price": number / 4 if price is None else price})
            self._job.produce(f"{self.name}-out", value, f"k{number % 10}")
            self.written += 1
        if self.transactional:
            self._job.commit_transaction(30.0)
        assert self._job.flush(30.0) == 0

    def plant(self, number: int) -> None:
        self.planted[number] = time.monotonic()


class Watching:
    """A running `onceproof watch --json` and what it has printed, each line with its time."""

    def __init__(self, folder: Path, name: str, bootstrap: str, *more: str) -> None:
        scenario = folder / f"{name}.yaml"
        scenario.write_text(f"""
input: [{{topic: {name}-in}}]
outputs:
  copies: {{topic: {name}-out, identity: [id]}}
oracle:
  kind: sql
  queries:
    copies: SELECT id, price, _partition, _offset, _key FROM "{name}-in"
""")
        options = ["--window", f"{WINDOW_S}s", "--grace", f"{GRACE_S}s", "--json", "--kafka", bootstrap, *more]
        command = [sys.executable, "-m", "onceproof", "watch", str(scenario), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), json.loads(line)))

    def of(self, event: str, **fields: Any) -> list[tuple[float, dict[str, Any]]]:
        return [
            (at, line)
            for at, line in list(self.lines)
            if line.get("event") == event and all(line.get(name) == value for name, value in fields.items())
        ]

    def wait_for(self, event: str, enough: Callable[[list[Any]], bool] = bool, within_s: float = 90.0) -> None:
        def seen() -> bool:
            found = enough(self.of(event))
            assert found or self.process.poll() is None, (self.lines, self.errors())
            return found

        wait_until(f"the event {event}", seen, deadline_s=within_s)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(timeout=120)
        self._reader.join(10.0)
        return code

    def errors(self) -> str:
        return self.process.stderr.read() if self.process.poll() is not None and self.process.stderr else ""


def state(bootstrap: str) -> dict[str, Any]:
    """Everything in the cluster that a reader could change by mistake, except the topics that brokers make for themselves."""
    admin = AdminClient(client_config(bootstrap))
    topics = admin.list_topics(timeout=30.0).topics
    groups = admin.list_consumer_groups(request_timeout=30.0).result()
    return {
        "topics": {name: sorted(topic.partitions) for name, topic in topics.items() if not name.startswith("__")},
        "groups": sorted(group.group_id for group in groups.valid),
    }


def test_it_names_what_is_planted_while_it_watches(stack: EmbeddedStack, tmp_path: Path) -> None:
    bootstrap = stack.kafka.harness_bootstrap
    stack.kafka.create_topic("live-in", 2)
    stack.kafka.create_topic("live-out", 1)
    job = Pipeline(bootstrap, "live")
    job.feed(range(100))
    job.write(list(range(99)))  # that of record 99 comes after the start
    before = state(bootstrap)
    watching = Watching(tmp_path, "live", bootstrap, "--metrics", "0")
    watching.wait_for("began")
    job.write([99])
    for first in range(100, 2100, 100):
        job.feed(range(first, first + 100))
        right = [n for n in range(first, first + 100) if n not in (1234, 1345, 1456)]
        job.write(right)
        if first == 800:
            job.write([850])
            job.plant(850)
        if first == 1200:  # lost
            job.plant(1234)
        if first == 1300:
            job.write([1345], price=0.5)
            job.plant(1345)
        PACE.wait(0.2)
    watching.wait_for("finding", lambda lines: any("1456" in json.dumps(line) for _, line in lines))
    job.write([1456])  # after it was reported as lost
    job.write([300])  # long after its window was settled
    job.plant(300)
    job.write([10**9])
    job.plant(10**9)
    began = watching.of("began")[0][1]
    with urllib.request.urlopen(f"http://127.0.0.1:{began['metrics_port']}/metrics", timeout=10) as page:
        metrics = page.read().decode()
    watching.wait_for("late")
    watching.wait_for("finding", lambda lines: any(line["anomaly"] == "unexplained" for _, line in lines))
    code = watching.end()

    assert code == 1, watching.errors()
    named = {}
    for at, line in watching.of("finding"):
        for witness in line["witnesses"]:
            named[line["anomaly"], int(witness["identity"]["id"])] = (at, witness)
    expected = {("duplicate", 850), ("lost-write", 1234), ("lost-write", 1456), ("wrong-value", 1345)}
    assert named.keys() == expected | {("duplicate", 300), ("unexplained", 10**9)}
    for (_, number), (at, _) in named.items():
        if number in job.planted:
            assert at - job.planted[number] < SOON_S, (number, at - job.planted[number])
    assert named["lost-write", 1234][1]["cause"] == "live-in/0@617"
    assert len(named["duplicate", 850][1]["positions"]) == 2
    assert named["duplicate", 300][1]["cause"] == "live-in/0@150"
    assert "imported" not in named["lost-write", 1234][1]["argument"]
    (_, late), *others = watching.of("late")
    assert late["identity"] == {"id": "1456"} and not others
    verdict = watching.of("verdict")[0][1]
    assert verdict["anomalies"] == {"duplicate": 2, "lost-write": 1, "unexplained": 1, "wrong-value": 1}
    assert verdict["counts"]["input"] == 2000
    assert 'onceproof_watch_records_total{place="live-in"}' in metrics
    assert state(bootstrap) == before


def test_a_right_pipeline_is_held_and_a_signal_ends_it_with_a_verdict(stack: EmbeddedStack, tmp_path: Path) -> None:
    bootstrap = stack.kafka.harness_bootstrap
    stack.kafka.create_topic("right-in", 2)
    stack.kafka.create_topic("right-out", 1)
    job = Pipeline(bootstrap, "right", transactional=True)
    before = state(bootstrap)
    watching = Watching(tmp_path, "right", bootstrap)
    watching.wait_for("began")
    for first in range(0, 600, 100):
        job.feed(range(first, first + 100))
        job.write(list(range(first, first + 100)))
        PACE.wait(0.3)
    code = watching.end()
    assert code == 0, (watching.lines, watching.errors())
    verdict = watching.of("verdict")[0][1]
    assert verdict["verdict"] == "held" and verdict["counts"]["expected"] == verdict["counts"]["effects"] == 600
    assert not watching.of("finding") and not watching.of("doubt")
    assert state(bootstrap) == before


def test_nothing_seen_is_inconclusive_and_a_missing_topic_is_not_created(stack: EmbeddedStack, tmp_path: Path) -> None:
    bootstrap = stack.kafka.harness_bootstrap
    stack.kafka.create_topic("quiet-in", 1)
    before = state(bootstrap)
    missing = Watching(tmp_path, "quiet", bootstrap)
    assert missing.ended() == 2
    assert "quiet-out" in missing.errors()
    assert state(bootstrap) == before
    stack.kafka.create_topic("quiet-out", 1)
    quiet = Watching(tmp_path, "quiet", bootstrap, "--for", "3s")
    assert quiet.ended() == 3
    assert "nothing was judged" in quiet.of("verdict")[0][1]["reasons"][0]


def test_cleanup_removes_the_folder_of_a_watch_that_was_killed(stack: EmbeddedStack, tmp_path: Path) -> None:
    for topic in ("killed-in", "killed-out"):
        stack.kafka.create_topic(topic, 1)
    watching = Watching(tmp_path, "killed", stack.kafka.harness_bootstrap)
    watching.wait_for("began")
    watching.process.kill()
    watching.ended()
    done = clean_up()
    assert len(done) == 1, done
    folder = Path(done[0].removeprefix("removed "))
    assert folder.name.startswith(SCRATCH_PREFIX)
    assert not folder.exists()
    assert clean_up() == []
