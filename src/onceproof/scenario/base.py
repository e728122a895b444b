"""Base classes of a scenario's parts, and of the faults of every kind of pipeline."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt


class Model(BaseModel):
    """Base of every part of a scenario: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def _key_as_number(key: Any) -> Any:
    """A mapping's keys arrive as text, because `onceproof.scenario_files.explain` goes through JSON."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


NumberAsKey = Annotated[PositiveInt, BeforeValidator(_key_as_number)]


class Position(Model):
    """The logical position that triggers a fault. What a position is depends on the kind of pipeline."""

    def described(self) -> dict[str, Any]:
        """The position as events and the history record it."""
        raise NotImplementedError

    def of_query(self) -> str | None:
        """The query that the position names, if any."""
        return None

    def settings(self) -> dict[str, Any]:
        """The position's other settings."""
        return {}


class AnyFaultSpec(Model):
    """Settings that every fault has, whatever its kind of pipeline."""

    pipeline: ClassVar[str]
    """The kind of pipeline that the fault applies to."""

    fault: str = Field(description="the kind of fault: `onceproof list faults`")
    target: str = Field(description="what the fault strikes: a process, a service, or a consumer's name")
    at: Position = Field(description="when it strikes: the position in the job's work that triggers it")
