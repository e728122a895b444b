"""The errors of the sinks. Each ends the query on purpose: the restarted driver replays the batch and learns its outcome."""

from __future__ import annotations


class SinkError(Exception):
    """A sink refused to write, or does not know whether it wrote. ``hint`` says what to do."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class OffsetGap(SinkError):
    """The batch does not begin where recorded progress ends, or comes from state that does not belong to it.

    Writing or skipping it could lose or repeat records.
    """


class Fenced(SinkError):
    """A newer start of the same pipeline has taken over, so this one must not write any more."""


class CommitUnknown(SinkError):
    """The commit was sent, and its outcome is unknown. It is never retried blindly: the replay reads the recorded progress."""


class CheckpointUnreadable(SinkError):
    """The batch's offset ranges cannot be read from the checkpoint."""


class RecordRefused(SinkError):
    """A row has no form as a record, or its record is larger than the producer allows."""
