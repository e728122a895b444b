"""The fixture and scenario files with real services, without Spark: consumers on an AMQP broker, and on Kafka with Postgres."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import onceproof
from onceproof.base.waiting import wait_until
from onceproof.judge import verdict as _  # noqa: F401  # pytester forgets modules that a test imports first, and DuckDB is loaded once
from onceproof.stack.processes.owner import SCRATCH_PREFIX

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.real, pytest.mark.services]

TESTS = """
import pytest
from onceproof import LostAck

@pytest.mark.parametrize("pipeline", ["duplicates", "transactional"])
def test_a_lost_ack(onceproof, pipeline):
    chaos = [LostAck("c1", message=2, after="effect")]
    onceproof.run(f"amqp-ack-lost-{pipeline}", chaos=chaos).assert_held()
"""


def properties_of(junit: Path) -> dict[str, dict[str, str]]:
    """Test case -> the properties that the plugin wrote."""
    return {
        str(case.get("name")): {str(one.get("name")): str(one.get("value")) for one in case.iter("property")}
        for case in ET.parse(junit).getroot().iter("testcase")
    }


def test_a_naive_consumer_fails_and_its_remedy_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_consumers=TESTS)
    (pytester.path / "known_bad.onceproof.yaml").write_text(
        "base: amqp-ack-lost-duplicates\nexpect: {verdict: violated, anomalies: [duplicate]}\n"
    )
    result = pytester.runpytest_subprocess("--junitxml=out.xml")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *amqp-ack-lost-duplicates: violated, expected held", "E *duplicate in *1 extra *"])
    properties = properties_of(pytester.path / "out.xml")
    assert properties["known_bad"]["onceproof.anomalies"] == "duplicate"
    run = Path(properties["test_a_lost_ack[transactional]"]["onceproof.run"])
    verdict = onceproof.check(run)
    assert verdict.outcome is onceproof.Outcome.HELD and [fault.hit for fault in verdict.faults] == [True]


def used_by(worker: psutil.Process) -> tuple[set[int], set[str]]:
    """The ports on which what this worker has started listens, and its temporary folders."""
    ports, folders = set(), set()
    beginning = f"{Path(tempfile.gettempdir()).absolute()}/{SCRATCH_PREFIX}"
    for process in worker.children(recursive=True):
        with suppress(psutil.Error):
            ports |= {one.laddr.port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
            named = "\n".join([process.cwd(), *process.cmdline(), *process.environ().values()])
            parts = named.split(beginning)[1:]
            folders |= {part.partition("/")[0].partition("\n")[0].partition(":")[0] for part in parts}
    return ports, folders


@pytest.mark.full
@pytest.mark.timeout(400)
def test_two_xdist_workers_have_a_stack_each(pytester: pytest.Pytester) -> None:
    """Kafka and Postgres twice at the same time, with ports and temporary folders of their own, and both verdicts are right."""
    (pytester.path / "naive.onceproof.yaml").write_text(
        "base: crash-before-position-duplicates\nexpect: {verdict: violated, anomalies: [duplicate]}\n"
    )
    (pytester.path / "remedy.onceproof.yaml").write_text("base: position-with-row\nexpect: {verdict: held}\n")
    ports, folders = defaultdict[int, set[int]](set), defaultdict[int, set[str]](set)
    listening_at_once = []

    def ended() -> bool:
        """Look at what each worker uses now."""
        listening = 0
        with suppress(psutil.Error):
            for worker in psutil.Process(process.pid).children():
                now, scratch = used_by(worker)
                ports[worker.pid] |= now
                folders[worker.pid] |= scratch
                listening += len(now) >= 2
        listening_at_once.append(listening)
        return process.poll() is not None

    output = pytester.path / "out.txt"
    with output.open("w") as file:
        command = [sys.executable, "-m", "pytest", "-n", "2", "--junitxml=out.xml", "-p", "no:cacheprovider"]
        process = pytester.popen(command, stdout=file, stderr=subprocess.STDOUT)
        wait_until("both scenarios to be judged", ended, deadline_s=300, every_s=0.3)
    assert process.returncode == 0 and "2 passed" in output.read_text(), output.read_text()
    found = properties_of(pytester.path / "out.xml")
    assert found["naive"]["onceproof.verdict"] == "violated" and found["naive"]["onceproof.anomalies"] == "duplicate"
    assert found["remedy"]["onceproof.verdict"] == "held"
    verdicts = [onceproof.check(one["onceproof.run"]) for one in found.values()]
    assert [fault.hit for verdict in verdicts for fault in verdict.faults] == [True, True]

    assert max(listening_at_once) == 2, "both stacks ran at the same time"
    (first, second) = (worker for worker, of_worker in ports.items() if of_worker)
    assert len(ports[first]) >= 2 and len(ports[second]) >= 2 and not ports[first] & ports[second]
    assert folders[first] and folders[second] and not folders[first] & folders[second]
    left = {path.name for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*")}
    assert not left & {f"{SCRATCH_PREFIX}{name}" for name in folders[first] | folders[second]}
