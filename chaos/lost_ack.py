"""Lost acknowledgement: the commit is applied and its answer never arrives. To the client it looks like a lost request."""

from __future__ import annotations

from typing import ClassVar, Literal

from onceproof.faults.contract import faults
from onceproof.faults.lost_commit import CutCommit, CutCommitSpec
from onceproof.scenario.model import FaultSpec
from onceproof.stack.api import Stream


class LostAckSpec(CutCommitSpec):
    fault: Literal["lost-ack"]


@faults.register("lost-ack")
class LostAck(CutCommit):
    """The answer to COMMIT or EndTxn is lost: a sink that retries blindly duplicates the batch, one that gives up loses it."""

    Spec: ClassVar[type[FaultSpec]] = LostAckSpec
    about: ClassVar[str] = "the sink's commit is applied, and the answer to it is lost"
    stream: Stream = "downstream"
