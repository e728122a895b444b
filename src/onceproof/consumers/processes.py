"""The consumers of a run: a process each, started, killed and started again, and held at its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.consumers.gate import Ask, Gate
from onceproof.stack.processes.owner import Owner, Service

#: A process that is started has to load Python and its client; a step is an answer of the broker.
_STEP_DEADLINE_S = 60.0
_PUMP_S = 0.05


class ConsumerDied(Exception):
    """A consumer ended that no fault had killed."""

    def __init__(self, consumer: str, code: int | None, step: str | None, last_words: str) -> None:
        where = f"in its step {step!r}" if step is not None else "before its first step"
        super().__init__(f"consumer {consumer} ended with exit code {code} {where}, and no fault had killed it")
        self.consumer = consumer
        self.last_words = last_words


@dataclass
class _Member:
    service: Service
    starts: int = 1
    let_do: str | None = None
    """The step that it was let do last."""


class Crew:
    """Starts and holds the consumers. ``environment(name, mark)`` is what one of them is given."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Callable[[str, str], Mapping[str, str]],
        *,
        owner: Owner,
        gate: Gate,
        logs: Path,
        cwd: Path,
        prefix: str,
        check: Callable[[], None],
    ) -> None:
        self._command = list(command)
        self._environment = environment
        self._owner = owner
        self._gate = gate
        self._logs = logs
        self._cwd = cwd
        self._prefix = prefix
        self._check = check
        self._members: dict[str, _Member] = {}
        self.exits: list[dict[str, Any]] = []
        self.restarts = 0

    def start(self, name: str) -> None:
        """Start it, or start it again. It is not at its first step yet when this returns."""
        starts = self._members[name].starts + 1 if name in self._members else 1
        self.restarts += starts > 1
        log = self._logs / f"consumer-{name}.log"
        env = self._environment(name, self._mark(name, starts))
        service = self._owner.start(f"consumer-{name}", self._command, log=log, env=env, cwd=self._cwd)
        self._members[name] = _Member(service, starts)

    def mark(self, name: str) -> str:
        """The queue that is there as long as the broker knows of the consumer's current process."""
        return self._mark(name, self._members[name].starts)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until the process is gone."""
        member = self._members[name]
        member.service.kill()
        self._gate.forget(name)
        self.exits.append(
            {"consumer": name, "start": member.starts - 1, "code": member.service.returncode, "killed": True}
        )

    def is_alive(self, name: str) -> bool:
        return self._members[name].service.is_running()

    def at_step(self, name: str) -> Ask:
        """Wait until the consumer is at its next step, and say which. Raises `ConsumerDied`."""
        member = self._members[name]
        service = member.service

        def arrived() -> Ask | None:
            ask = self._gate.asked(name)
            if ask is None:
                self._gate.pump(_PUMP_S)
                ask = self._gate.asked(name)
            if ask is None and not service.is_running():
                self._gate.pump(0.0)  # what it said last may have come after the look, and it is dead all the same
                self.exits.append(
                    {"consumer": name, "start": member.starts - 1, "code": service.returncode, "killed": False}
                )
                raise ConsumerDied(name, service.returncode, member.let_do, service.log_tail(40))
            return ask

        return wait_until(
            f"consumer {name} to come to its next step",
            arrived,
            deadline_s=_STEP_DEADLINE_S,
            every_s=0.0,
            abandon=self._check,
            hint=f"a command of your own must ask at its gate (docs/consumers.md); its log: {service.log}",
        )

    def step(self, name: str) -> Ask:
        """Let the consumer do the step that it is at, and wait for the next: what it did stands in its ``did``."""
        before = self.at_step(name).before
        self._members[name].let_do = before
        self._gate.go(name)
        ask = self.at_step(name)
        if ask.did is None or ask.did.step != before:
            done = "nothing" if ask.did is None else ask.did.step
            raise EnvironmentProblem(
                f"consumer {name} was let do {before!r} and says that it did {done!r}",
                hint="each line reports the step just done (docs/consumers.md)",
            )
        if ask.did.returned:
            raise EnvironmentProblem(
                f"the broker gave back message {ask.did.message}, which consumer {name} published in its step {before!r}: "
                "it has no queue for it",
                hint="the harness declares each queue before the consumers start; does the consumer publish to "
                "ONCEPROOF_OUTPUT (or ONCEPROOF_RETRY), on the default exchange?",
            )
        return ask

    def stop(self) -> None:
        """End all of them. Idempotent."""
        self._gate.close()
        for member in self._members.values():
            member.service.kill()

    def _mark(self, name: str, starts: int) -> str:
        return f"{self._prefix}mark.{name}.{starts}"
