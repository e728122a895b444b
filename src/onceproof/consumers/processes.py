"""The consumer processes of a run: one process per consumer, started, killed, restarted, and held before each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.waiting import wait_until
from onceproof.consumers.gate import Gate, StepRequest
from onceproof.stack.processes.owner import Owner, Service

#: A new process has to load Python and its client; a step waits for the broker's answer.
_STEP_DEADLINE_S = 60.0
_PUMP_S = 0.05


class ConsumerDied(Exception):
    """A consumer process ended without a fault having killed it."""

    def __init__(
        self, consumer: str, code: int | None, step: str | None, last_words: str, *, held: bool = False
    ) -> None:
        """``step``: the last one that it was allowed. ``held``: it had done that one, and was held before the next."""
        where = f"in its step {step!r}" if step is not None else "before its first step"
        if held:
            where = "while it was held before a step"
        super().__init__(f"consumer {consumer} ended with exit code {code} {where}, and no fault had killed it")
        self.consumer = consumer
        self.last_words = last_words
        self.held = held


@dataclass
class _Process:
    service: Service
    starts: int = 1
    granted: str | None = None
    """The step that it was last allowed to do."""
    killed: bool = False


class ConsumerProcesses:
    """Starts the consumers and holds them before their steps. ``environment(name, mark)``: a consumer's own variables."""

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
        self._started: dict[str, _Process] = {}
        self.exits: list[dict[str, Any]] = []
        self.restarts = 0

    def start(self, name: str) -> None:
        """Start a consumer, or start it again. Returns before it has reached its first step."""
        starts = self._started[name].starts + 1 if name in self._started else 1
        self.restarts += starts > 1
        log = self._logs / f"consumer-{name}.log"
        env = self._environment(name, self._mark(name, starts))
        service = self._owner.start(f"consumer-{name}", self._command, log=log, env=env, cwd=self._cwd)
        self._started[name] = _Process(service, starts)

    def mark(self, name: str) -> str:
        """The queue that exists as long as the broker knows the consumer's current process."""
        return self._mark(name, self._started[name].starts)

    def kill(self, name: str) -> None:
        """Kill the process (SIGKILL), and wait until it is gone."""
        process = self._started[name]
        process.killed = True
        process.service.kill()
        self._gate.forget(name)
        self.exits.append(
            {"consumer": name, "start": process.starts - 1, "code": process.service.returncode, "killed": True}
        )

    def stop_one(self, name: str) -> None:
        """Stop the process (SIGSTOP), and return when every thread of it is stopped."""
        self._started[name].service.freeze()

    def resume(self, name: str) -> None:
        """Resume the process (SIGCONT). Idempotent."""
        self._started[name].service.thaw()

    def is_alive(self, name: str) -> bool:
        return self._started[name].service.is_running()

    def check_running(self) -> None:
        """Raise `ConsumerDied` if a consumer has ended that was not killed."""
        for name, process in self._started.items():
            if not process.killed and not process.service.is_running():
                raise self._died(name)

    def _died(self, name: str) -> ConsumerDied:
        process = self._started[name]
        code = process.service.returncode
        self.exits.append({"consumer": name, "start": process.starts - 1, "code": code, "killed": False})
        held = self._gate.request_of(name) is not None
        return ConsumerDied(name, code, process.granted, process.service.log_tail(40), held=held)

    def await_step(self, name: str) -> StepRequest:
        """Wait until the consumer is at its next step, and return its request. Raises `ConsumerDied`."""
        process = self._started[name]
        service = process.service

        def arrived() -> StepRequest | None:
            request = self._gate.request_of(name)
            if request is None:
                self._gate.pump(_PUMP_S)
                request = self._gate.request_of(name)
            if request is None and not service.is_running():
                self._gate.pump(0.0)  # its last request may have come since, and it is dead all the same
                raise self._died(name)
            return request

        return wait_until(
            f"consumer {name} to come to its next step",
            arrived,
            deadline_s=_STEP_DEADLINE_S,
            every_s=0.0,
            abandon=self._check,
            hint=f"a command of your own must ask at its gate (docs/consumers.md); its log: {service.log}",
        )

    def step(self, name: str) -> StepRequest:
        """Let the consumer do the step that it is at, and wait for its next request: ``did`` is its report on the step done."""
        before = self.await_step(name).before
        self._started[name].granted = before
        self._gate.grant(name)
        request = self.await_step(name)
        if request.did is None or request.did.step != before:
            done = "nothing" if request.did is None else request.did.step
            raise EnvironmentProblem(
                f"consumer {name} was allowed the step {before!r} and reports that it did {done!r}",
                hint="each line of a consumer must report the step that it has just done (docs/consumers.md)",
            )
        if request.did.returned:
            raise EnvironmentProblem(
                f"the broker gave back message {request.did.message}, which consumer {name} published in its step {before!r}: "
                "it has no queue for it",
                hint="the harness declares each queue before the consumers start; does the consumer publish to "
                "ONCEPROOF_OUTPUT (or ONCEPROOF_RETRY), on the default exchange?",
            )
        return request

    def stop(self) -> None:
        """Stop all consumers. Idempotent."""
        self._gate.close()
        for process in self._started.values():
            process.service.kill()

    def _mark(self, name: str, starts: int) -> str:
        return f"{self._prefix}mark.{name}.{starts}"
