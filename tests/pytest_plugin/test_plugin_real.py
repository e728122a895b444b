"""The fixture and a scenario file with real services: consumers on an AMQP broker, without Spark."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import onceproof
from onceproof.judge import verdict as _  # noqa: F401  # pytester forgets modules that a test imports first, and DuckDB is loaded once

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


def test_a_naive_consumer_fails_and_its_remedy_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_consumers=TESTS)
    (pytester.path / "known_bad.onceproof.yaml").write_text(
        "base: amqp-ack-lost-duplicates\nexpect: {verdict: violated, anomalies: [duplicate]}\n"
    )
    result = pytester.runpytest_subprocess("--junitxml=out.xml")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["E *amqp-ack-lost-duplicates: violated, expected held", "E *duplicate in *1 extra *"])
    properties = {
        case.get("name"): {one.get("name"): str(one.get("value")) for one in case.iter("property")}
        for case in ET.parse(pytester.path / "out.xml").getroot().iter("testcase")
    }
    assert properties["known_bad"]["onceproof.anomalies"] == "duplicate"
    run = Path(properties["test_a_lost_ack[transactional]"]["onceproof.run"])
    verdict = onceproof.check(run)
    assert verdict.outcome is onceproof.Outcome.HELD and [fault.hit for fault in verdict.faults] == [True]
