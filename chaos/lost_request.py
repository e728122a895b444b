"""Lost request: the commit is sent and never arrives. The client sees the same error as for a lost acknowledgement."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.faults.contract import faults
from onceproof.faults.lost_commit import CutCommit, CutCommitSpec
from onceproof.scenario.model import FaultSpec
from onceproof.stack.api import Stream


class LostRequestSpec(CutCommitSpec):
    fault: Literal["lost-request"]


@faults.register("lost-request")
class LostRequest(CutCommit):
    """COMMIT or EndTxn is lost on its way: a sink that takes silence for success loses the batch."""

    Spec: ClassVar[type[FaultSpec]] = LostRequestSpec
    about: ClassVar[str] = "the sink's commit is sent, and never arrives"
    stream: Stream = "upstream"
