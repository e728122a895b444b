"""Two stacks at the same time on one machine have different ports, processes and data."""

from __future__ import annotations

from contextlib import ExitStack
from multiprocessing.pool import ThreadPool
from pathlib import Path

import psutil
import pytest

from onceproof.base.timeline import Timeline
from onceproof.scenario.stack import PostgresStack, StackSpec
from onceproof.stack.embedded import EmbeddedStack
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

pytestmark = [pytest.mark.real, pytest.mark.services, pytest.mark.timeout(300)]


def listening(owner: Owner) -> set[tuple[str, int]]:
    found = set()
    for service in owner.services():
        for process in service.members():
            found |= {c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return {(address.ip, address.port) for address in found}


def test_two_stacks_share_nothing_and_listen_only_on_loopback(tmp_path: Path) -> None:
    fetched = components.ensure()
    spec = StackSpec(postgres=PostgresStack())
    with ExitStack() as closing:
        owners = [closing.enter_context(Owner()) for _ in range(2)]

        def start(index: int) -> EmbeddedStack:
            folder = tmp_path / str(index)
            (folder / "logs").mkdir(parents=True)
            timeline = Timeline(folder / "events.jsonl")
            closing.callback(timeline.close)
            return EmbeddedStack.start(spec, owners[index], folder, fetched, timeline)

        with ThreadPool(2) as pool:
            stacks = pool.map(start, range(2))
        one, other = (listening(owner) for owner in owners)
        assert one and other and not one & other
        assert {ip for ip, _ in one | other} <= {"127.0.0.1", "127.0.1.1", "::ffff:127.0.0.1", "::ffff:127.0.1.1"}
        stacks[0].kafka.create_topic("only-here", 1)
        assert "only-here" not in stacks[1].kafka.admin().list_topics(timeout=10).topics
