"""The names that a run gives to what it creates on an external stack.

Every name starts with ``onceproof-``, eight hexadecimal digits that identify this installation, and the run:
``onceproof-1a2b3c4d-my-job-20260101T120000-beef.orders``.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from onceproof.base.errors import EnvironmentProblem
from onceproof.scenario.model import Scenario
from onceproof.stack.processes.journal import live_folder

#: Kafka allows 249 characters in a topic's name, and the prefix must leave room for the scenario's own name.
_LONGEST_RUN = 100
#: Postgres cuts identifiers off after 63 bytes. The run's end is what makes it unique.
_LONGEST_IDENTIFIER = 63

#: Fields of a scenario whose value names a topic, wherever they are in a fault or an output.
_TOPIC_FIELDS = ("topic", "leader_of")


@dataclass(frozen=True)
class RunNames:
    """How a run names its own objects."""

    identity: str
    """Eight hexadecimal digits; see `identity`."""
    run: str
    """The name of the run's directory."""

    @classmethod
    def of(cls, prefix: str) -> Self:
        """The names of the run whose topics start with ``prefix``."""
        _, identity, run = prefix.removesuffix(".").split("-", 2)
        return cls(identity, run)

    @property
    def prefix(self) -> str:
        """What the name of every topic starts with: Kafka's characters only."""
        return f"onceproof-{self.identity}-{re.sub(r'[^A-Za-z0-9_-]', '-', self.run)[-_LONGEST_RUN:]}."

    @property
    def identifier(self) -> str:
        """The name of the schema, of the publication and of the replication slot in Postgres: ``[a-z0-9_]+``."""
        head = f"onceproof_{self.identity}_"
        run = re.sub(r"[^a-z0-9_]", "_", self.run.lower())
        return head + run[-(_LONGEST_IDENTIFIER - len(head)) :]

    def topic(self, name: str) -> str:
        return name if name.startswith(self.prefix) else f"{self.prefix}{name}"


def identity() -> str:
    """Eight hexadecimal digits that identify this installation, made once and kept in the state folder.

    Raises `EnvironmentProblem` if they cannot be stored.
    """
    path = live_folder().parent / "identity"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read(path)
        with os.fdopen(made, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(4))
        return _read(path)
    except OSError as refused:
        raise EnvironmentProblem(
            f"cannot store this installation's identity in {path}: {refused.strerror or refused}",
            hint="set ONCEPROOF_STATE_DIR to a folder that you can write to",
        ) from refused


def _read(path: Path) -> str:
    text = path.read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"[0-9a-f]{8}", text):
        raise EnvironmentProblem(
            f"{path} does not hold eight hexadecimal digits",
            hint="after `onceproof cleanup --stack NAME` for each of your stacks, delete the file",
        )
    return text


def prefixed(scenario: Scenario, names: RunNames) -> Scenario:
    """The scenario with the names that its topics have on the external stack; `Scenario.known_as` gives the old ones."""
    data = scenario.to_json()
    own = set(scenario.topics())
    data["stack"] |= {"provider": "external", "prefix": names.prefix}
    prepare = data["pipeline"]["prepare"]
    prepare["topics"] = {names.topic(name): spec for name, spec in prepare["topics"].items()}
    for part in ("input", "chaos"):
        data[part] = _renamed(data[part], own, names)
    for output in data["outputs"].values():  # only its own topic: deeper fields of that name are columns
        if output["topic"] is not None:
            output["topic"] = _topic(output["topic"], own, names)
    return Scenario.model_validate(data)


def _renamed(value: Any, own: set[str], names: RunNames) -> Any:
    if isinstance(value, list):
        return [_renamed(each, own, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _topic(each, own, names) if key in _TOPIC_FIELDS and isinstance(each, str) else _renamed(each, own, names)
        for key, each in value.items()
    }


def _topic(text: str, own: set[str], names: RunNames) -> str:
    """``TOPIC`` or ``TOPIC/PARTITION`` with the topic's new name; any other text stays."""
    name, slash, partition = text.partition("/")
    return f"{names.topic(name)}{slash}{partition}" if name in own else text
