"""Which worker runs which tests with ``--dist loadfile``: those of a file run in one, and those with Spark in two only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent
#: Too long for one process: one group for each sink, which is what its tests' ids begin with.
BY_SINK = "tests/sinks/test_conformance.py"
#: One Spark takes both cores while it starts, and leaves them while it waits for a fault: two fill each other's pauses.
WITH_SPARK = 2


class Scheduling(LoadFileScheduling):
    """Hands out groups of tests, the largest first. `WITH_SPARK` workers get those with Spark, and others once none is left.

    The other workers get only groups without Spark, and end when none is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        # A worker that crashed has a successor, at the end of the list: those that are about to end must not count.
        active = [one for one in self.nodes if not one.shutting_down]
        ours = active.index(node) < WITH_SPARK
        scope = next((scope for scope in self.workqueue if has_spark(scope) == ours), next(iter(self.workqueue)))
        if has_spark(scope) and not ours:
            node.shutdown()
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


def group(nodeid: str) -> str:
    """The group of a test. (`xdist_group` marks have no effect in pytest 9.2: xdist 3.8 cannot add the group to the test's id.)"""
    file = nodeid.partition("::")[0]
    return nodeid.rpartition("-")[0] if file == BY_SINK else file


def has_spark(group: str) -> bool:
    """Whether the group's real tests use Spark. `test_gate` checks that no file has tests of both kinds."""
    return _has_spark(TESTS.parent / group.partition("::")[0])


@cache
def _has_spark(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return "mark.real" in text and "mark.services" not in text
