"""Which tests run in one process, one after the other, with ``--dist loadfile``: those of a file, and all those with Spark."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling

TESTS = Path(__file__).parent
#: Too long for one process: one group for each sink, which is what its tests' ids begin with.
BY_SINK = "tests/sinks/test_conformance.py"


class Scheduling(LoadFileScheduling):
    """Hands out groups of tests, the largest first: the one with Spark, which takes longest, is the largest of the gate.

    One Spark takes both cores while it starts. Other services mostly wait, and run next to it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """The group of a test. (`xdist_group` marks have no effect in pytest 9.2: xdist 3.8 cannot add the group to the test's id.)"""
    file = nodeid.partition("::")[0]
    if file == BY_SINK:
        return nodeid.rpartition("-")[0]
    return "spark" if _has_spark(TESTS.parent / file) else file


@cache
def _has_spark(path: Path) -> bool:
    """Whether the file's real tests use Spark. `test_gate` checks that no file has tests of both kinds."""
    text = path.read_text(encoding="utf-8")
    return "mark.real" in text and "mark.services" not in text
