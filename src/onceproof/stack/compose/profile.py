"""The profile of the compose provider: what a scenario may use there, and its usual ports. Starts nothing and needs no daemon."""

from __future__ import annotations

import os
from typing import ClassVar, Literal, Self

from onceproof.stack.external.profile import KafkaProfile, PostgresProfile, StackProfile
from onceproof.stack.kafka.settings import HOST

NAME = "compose"
"""``--stack compose``."""

BY_HAND = "onceproof"
"""Name of the project that `onceproof up` starts."""

_POSTGRES_PORT = "ONCEPROOF_POSTGRES_PORT"
PORTS = (*(f"ONCEPROOF_KAFKA_PORT_{broker}" for broker in (1, 2, 3)), _POSTGRES_PORT, "ONCEPROOF_REGISTRY_PORT")
"""Variables of compose.yaml that choose the published ports."""


class ComposeProfile(StackProfile):
    """The services of a compose project. Faults may kill and pause them, and disconnect them from their networks."""

    controlled: ClassVar[frozenset[str]] = frozenset(
        {"the brokers", "the links between brokers", "Postgres", "the executors' network"}
    )

    name: str = NAME
    provider: Literal["external"] = "external"
    chaos: Literal["allowed"] = "allowed"
    project: str = BY_HAND

    @property
    def place(self) -> str:
        return "the containers of `onceproof up`, or new ones"

    @classmethod
    def planned(cls) -> Self:
        """The profile before anything runs: with the usual ports, and without a password."""
        port = os.environ.get(PORTS[0], "29092"), os.environ.get(_POSTGRES_PORT, "25432")
        postgres = PostgresProfile(uri=f"postgresql://onceproof@{HOST}:{port[1]}/postgres")
        return cls(kafka=KafkaProfile(bootstrap=f"{HOST}:{port[0]}"), postgres=postgres)
