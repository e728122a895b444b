"""What all parts of a scenario are, and what faults of every kind of pipeline say of themselves."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Every part of a scenario: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Position(Model):
    """The logical position that triggers a fault. What a position is depends on the kind of pipeline."""

    def described(self) -> dict[str, Any]:
        """As events and the history name it."""
        raise NotImplementedError

    def of_query(self) -> str | None:
        """The query that it is of, where it names one."""
        return None

    def settings(self) -> dict[str, Any]:
        """What it says besides."""
        return {}


class AnyFaultSpec(Model):
    """What every fault says of itself, whatever its kind of pipeline."""

    pipeline: ClassVar[str]
    """The kind of pipeline that it is for."""

    fault: str = Field(description="the kind of fault: `onceproof list faults`")
    target: str = Field(description="what is struck: a process, a service, or a consumer's name")
    at: Position = Field(description="when: the place in the job's work that triggers it")
