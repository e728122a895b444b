"""A webhook as a store: what the job sends to a receiver, which runs as long as the services. Each request is a commit.

The receiver's records are in the folder ``webhooks`` next to the one of outputs that are files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from onceproof.base.errors import HistoryError, UsageError
from onceproof.base.words import times
from onceproof.history.run_record import OutputRecord
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.scenario.problem import Complaint, shown
from onceproof.stack.api import Stack
from onceproof.stores.contract import ReadBack, State, Words, stores
from onceproof.values import documents, foreign_files, nested

if TYPE_CHECKING:
    from onceproof.stack.processes.owner import Owner

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", re.ASCII)
_ADDRESS = "address"
_START_S = 20.0
_ANSWER_S = 10.0


class WebhookOutput(OutputSpec):
    webhook: str = Field(description="the output is what this webhook receives; the job gets its URL by {output.NAME}")
    repeats: Literal["counted", "ignored"] = Field(
        "counted",
        description="requests with the Idempotency-Key of an earlier one; ignored: the receiver keeps the first request of "
        "each key, and one with another body counts; counted: it does not look at keys",
    )

    @property
    def place(self) -> str:
        return self.webhook


class WebhookStore:
    """Implements `onceproof.stores.contract.Store` and `HasServer`. Its outputs have rows in the history: the bodies' fields."""

    about = "requests to a webhook, whose receiver onceproof runs"
    field = "webhook"
    Spec = WebhookOutput
    words = Words("delivery", "receiver", "request", "by request", "Webhook")

    def problems(self, scenario: Scenario, spec: OutputSpec) -> Iterator[Complaint]:
        if not _NAME.fullmatch(spec.place):
            hint = "letters, digits, '_' and '-', beginning with a letter or a digit"
            yield Complaint((self.field,), f"{shown(spec.place)} cannot be the name of a webhook", hint)

    def address(self, spec: OutputSpec, stack: Stack) -> str:
        return f"http://{(_folder(stack) / _ADDRESS).read_text(encoding='utf-8')}/{spec.place}"

    def name(self, spec: OutputSpec) -> str:
        return f"webhook {spec.place}"

    def state(self, stack: Stack, outputs: Collection[OutputSpec] | None) -> State:
        folder = _folder(stack)
        names = {spec.place for spec in outputs} if outputs is not None else {f.stem for f in folder.glob("*.jsonl")}
        return {f"webhook {name}": times(_recorded(folder / f"{name}.jsonl"), "delivery") for name in sorted(names)}

    def serve(self, outputs: Collection[OutputSpec], stack: Stack, owner: Owner, logs: Path) -> None:
        from onceproof.base.waiting import wait_until  # judging needs nothing of what starts a server
        from onceproof.stack.processes.ports import accepts_connections, lease
        from onceproof.stores.webhook.receiver import HOST

        folder = _folder(stack)
        folder.mkdir(mode=0o700)
        (port,) = lease(owner, 1)
        names = sorted({spec.place for spec in outputs})
        program = [
            sys.executable,
            "-m",
            "onceproof.stores.webhook.receiver",
            f"--folder={folder}",
            f"--port={port}",
            *names,
        ]
        service = owner.start("webhook receiver", program, log=logs / "webhooks.log")
        address = f"{HOST}:{port}"
        wait_until(
            f"the webhook receiver on {address}",
            lambda: accepts_connections(HOST, port),
            deadline_s=_START_S,
            abandon=lambda: service.check_starting("the webhook receiver", address),
            explain=service.log_tail,
        )
        (folder / _ADDRESS).write_text(address, encoding="utf-8")

    def read_back(self, run: ReadBack) -> dict[str, OutputRecord]:
        return {
            name: _collect(run, name, spec, self.address(spec, run.stack))
            for name, spec in run.outputs(self).items()
            if isinstance(spec, WebhookOutput)
        }


def _folder(stack: Stack) -> Path:
    return stack.files.with_name("webhooks")


def _recorded(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _collect(run: ReadBack, name: str, spec: WebhookOutput, address: str) -> OutputRecord:
    file = _folder(run.stack) / f"{spec.place}.jsonl"
    _check_complete(address, file)
    bodies: dict[str, str] = {}
    columns: dict[str, str] = {}
    rows = repeats = changed = 0
    for delivery in _deliveries(file):
        key = delivery["key"]
        if spec.repeats == "ignored" and key is not None:
            body = _compared(delivery["body"], spec.ignore)
            if key not in bodies:
                bodies[key] = body
            elif bodies[key] == body:
                repeats += 1
                continue
            else:
                changed += 1
        number, order = int(delivery["number"]), next(run.commits)
        row = {column: foreign_files.as_text(value) for column, value in delivery["body"].items()}
        columns |= dict.fromkeys(row, "json")
        content = foreign_files.as_json(row)
        change = {"output": name, "op": "insert", "offset": rows, "content": content}
        commit = {"xid": number, "commit_order": order}
        run.writer.append("output", [{**change, **commit, "visibility": "committed"}])
        run.writer.append("snapshot", [{"output": name, "content": content}])
        run.writer.append("commits", [{**commit, "commit_time_us": int(delivery["time_us"]), "changes": 1}])
        rows += 1
    note = None
    if changed:
        note = (
            f"webhook {spec.place} got {times(changed, 'request')} with the Idempotency-Key of an earlier one and another body: "
            f"{'it counts as a delivery' if changed == 1 else 'each counts as a delivery'}"
        )
        run.timeline.emit("warning", message=note)
    return OutputRecord.model_validate({"columns": columns, "note": note, "rows": rows, "repeats": repeats})


def _compared(body: dict[str, Any], ignored: Collection[str]) -> str:
    """A text that is equal for bodies that are the same delivery."""
    text = documents.written({name: value for name, value in body.items() if name not in ignored})
    return nested.canonical_json(text, "JSON")


def _check_complete(address: str, file: Path) -> None:
    """The receiver must still run, and count what is in its file. Raises `HistoryError`."""
    import http.client  # only a run needs it

    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_ANSWER_S)
    try:
        connection.request("GET", parts.path)
        counted = json.loads(connection.getresponse().read())["deliveries"]
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise HistoryError(
            f"the webhook receiver at {address} does not answer: {error}",
            hint="no fault of the run did this; its log is logs/webhooks.log in the run directory",
        ) from error
    finally:
        connection.close()
    if (recorded := _recorded(file)) != counted:
        raise HistoryError(f"the webhook receiver counts {times(counted, 'delivery')}, and {file} has {recorded:,}")


def _deliveries(file: Path) -> Iterator[dict[str, Any]]:
    try:
        for _, line in foreign_files.rows(file):
            yield line
    except UsageError as error:
        raise HistoryError(f"the deliveries of a webhook cannot be read back: {error}") from error


stores.register("webhook")(WebhookStore())
