"""A server on loopback for a folder of made-up runs, and a client that sends what it is asked to, as no browser would."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onceproof.judge.findings import Verdict
from onceproof.judge.verdict import write_verdict
from onceproof.serve.server import Server


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def plain(self) -> str:
        """Without style, script and tags, and with single blanks."""
        text = re.sub(r"<(style|script)>.*?</\1>", "", self.text, flags=re.DOTALL)
        return " ".join(re.sub(r"<[^>]+>", " ", text).split())


class Client:
    def __init__(self, server: Server) -> None:
        self.port = server.server_port

    def get(self, path: str, *, method: str = "GET", host: str | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        reply = Reply(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        return reply

    def state(self) -> Any:
        return json.loads(self.get("/state.json").body)

    def listed(self, query: str = "") -> list[str]:
        """The directories in the list, in its order."""
        rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", self.get(f"/{query}").text, re.DOTALL)
        return [re.findall(r"<td>([^<]*)</td></tr>", row)[0] for row in rows]


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    """With a link, as `onceproof run` makes one, and a folder that is not a run."""
    folder = tmp_path / "runs"
    (folder / "something").mkdir(parents=True)
    (folder / "latest").symlink_to("good-1")
    (folder / "notes.txt").write_text("mine")
    return folder


@pytest.fixture
def client(runs_dir: Path) -> Iterator[Client]:
    with Server(runs_dir, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield Client(server)
        server.shutdown()
        thread.join()


def made(folder: Path, verdict: Verdict | None, **more: object) -> Path:
    """A made-up run directory: what it says of itself, and one log."""
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "driver-0.log").write_text(f"log of {folder.name!a}\n")
    name = folder.name if verdict is None else verdict.scenario
    record = {"scenario": {"name": name, "chaos": [{"fault": "crash"}]}, "wall_start": 1.7e9, **more}
    (folder / "run.json").write_text(json.dumps(record))
    if verdict is not None:
        write_verdict(folder, verdict)
    return folder


def events(run: Path, *lines: dict[str, Any]) -> None:
    """Append events to those of the run."""
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
