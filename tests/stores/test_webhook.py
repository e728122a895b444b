"""A webhook as an output: the receiver is a real HTTP server on loopback, and records each delivery before it answers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from onceproof.base.errors import HistoryError
from onceproof.base.timeline import Timeline
from onceproof.history.writer import HistoryWriter
from onceproof.scenario.kinds import stores_of
from onceproof.scenario.model import Scenario
from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.processes.owner import Owner
from onceproof.stores.contract import HasServer, ReadBack, serve, stores
from onceproof.stores.webhook.receiver import MOST_BYTES, Receiver

WEBHOOK = stores.get("webhook")


def a_spec(**output: Any) -> OutputSpec:
    output = {"webhook": "alerts", "identity": ["rule"], **output}
    return stores_of(output)[0].Spec.model_validate(output)


class Site:
    """A receiver of ``alerts`` as a run starts it, and what a run reads from it."""

    def __init__(self, folder: Path, owner: Owner, **outputs: OutputSpec) -> None:
        self.outputs = outputs or {"alerts": a_spec()}
        self.scenario = cast(Scenario, SimpleNamespace(outputs=self.outputs, input=[]))
        self.folder = folder
        self.stack = cast(Any, SimpleNamespace(files=folder / "files"))
        serve(self.scenario, self.stack, owner, folder / "logs")
        self.url = WEBHOOK.address(next(iter(self.outputs.values())), self.stack)

    def send(
        self, body: bytes | dict[str, Any], *, method: str = "POST", path: str = "", **headers: str
    ) -> tuple[int, Any]:
        return request(self.url + path, body, method, headers)

    def read_back(self) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        """What ``run.json`` holds about each output, and the tables of the history."""
        timeline = Timeline(self.folder / "events.jsonl")
        with HistoryWriter(self.folder) as writer:
            found = WEBHOOK.read_back(ReadBack(self.scenario, self.stack, writer, timeline))
        timeline.close()
        tables = ("output", "snapshot", "commits")
        history = {name: pq.read_table(self.folder / f"history/{name}.parquet").to_pylist() for name in tables}
        return {name: record.to_json() for name, record in found.items()}, history


def request(url: str, body: bytes | dict[str, Any], method: str, headers: dict[str, str]) -> tuple[int, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        connection.request(method, parts.path, content, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


@pytest.fixture
def owner() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


def contents(history: dict[str, list[dict[str, Any]]], output: str = "alerts") -> list[dict[str, Any]]:
    return [json.loads(row["content"]) for row in history["output"] if row["output"] == output]


def test_each_delivery_is_a_commit_in_order_of_arrival_with_the_digits_that_were_sent(
    tmp_path: Path, owner: Owner
) -> None:
    site = Site(tmp_path, owner)
    assert site.send({"rule": "slow", "minute": None, "tags": ["a", 1]}) == (200, {"delivery": 1})
    assert site.send(b'{"rule": "errors",\r\n "value": 1.50}') == (200, {"delivery": 2})
    assert site.send({"rule": "errors", "value": 1.5}) == (200, {"delivery": 3})
    records, history = site.read_back()
    assert contents(history) == [
        {"rule": "slow", "minute": None, "tags": '["a",1]'},
        {"rule": "errors", "value": "1.50"},
        {"rule": "errors", "value": "1.5"},
    ]
    assert [json.loads(row["content"]) for row in history["snapshot"]] == contents(history)
    assert [(c["xid"], c["commit_order"], c["changes"]) for c in history["commits"]] == [
        (1, 0, 1),
        (2, 1, 1),
        (3, 2, 1),
    ]
    assert [row["xid"] for row in history["output"]] == [1, 2, 3]
    times = [c["commit_time_us"] for c in history["commits"]]
    assert times == sorted(times) and times[0] > 0
    assert records["alerts"]["rows"] == 3 and set(records["alerts"]["columns"]) == {"rule", "minute", "tags", "value"}


def test_a_delivery_is_in_the_file_before_it_is_answered(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner)
    for number in range(1, 30):
        site.send({"rule": "slow", "number": number})
        lines = (tmp_path / "webhooks/alerts.jsonl").read_text().splitlines()
        assert [json.loads(line)["body"]["number"] for line in lines] == list(range(1, number + 1))
    assert WEBHOOK.state(site.stack, None) == {"webhook alerts": "29 deliveries"}


def test_repeats_of_a_key_count_unless_the_receiver_ignores_them(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner, alerts=a_spec(repeats="ignored"), requests=a_spec())
    for body, key in (
        ("first", "a"),
        ("second", "b"),
        ("first", "a"),
        ("changed", "b"),
        ("third", None),
        ("third", None),
    ):
        site.send({"rule": body}, **({"Idempotency-Key": key} if key else {}))
    records, history = site.read_back()
    assert [row["rule"] for row in contents(history)] == ["first", "second", "changed", "third", "third"]
    assert [row["rule"] for row in contents(history, "requests")] == [
        *("first", "second", "first", "changed", "third", "third")
    ]
    assert (records["alerts"]["repeats"], records["requests"]["repeats"]) == (1, 0)
    assert len({row["commit_order"] for row in history["output"]}) == 11, (
        "the commits of two outputs have orders of their own"
    )


def test_a_request_with_the_key_of_another_body_is_no_repeat(tmp_path: Path, owner: Owner) -> None:
    """The replay has diverged: the receiver has ignored what the job meant to say."""
    site = Site(tmp_path, owner, alerts=a_spec(repeats="ignored", ignore=["sent_at"]))
    for body in (
        {"rule": "slow", "value": 1.5, "sent_at": 1},
        {"sent_at": 2, "value": 1.50, "rule": "slow"},
        {"rule": "slow", "value": 1.6, "sent_at": 1},
        {"rule": "slow", "value": 1.5, "more": None, "sent_at": 1},
    ):
        site.send(body, **{"Idempotency-Key": "a"})
    records, history = site.read_back()
    assert [row["value"] for row in contents(history)] == ["1.5", "1.6", "1.5"]
    assert records["alerts"]["repeats"] == 1
    note = "webhook alerts got 2 requests with the Idempotency-Key of an earlier one and another body"
    assert records["alerts"]["note"].startswith(note) and note in (tmp_path / "events.jsonl").read_text()


def test_deliveries_at_the_same_time_are_all_recorded_once(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner)
    with ThreadPoolExecutor(16) as pool:
        numbers = [answer["delivery"] for _, answer in pool.map(lambda n: site.send({"rule": f"r{n}"}), range(200))]
    assert sorted(numbers) == list(range(1, 201))
    _, history = site.read_back()
    assert sorted(row["rule"] for row in contents(history)) == sorted(f"r{n}" for n in range(200))


@pytest.mark.parametrize(
    ("body", "how", "status", "error"),
    [
        (b"[1]", {}, 400, "not an object"),
        (b"{", {}, 400, "not JSON"),
        (b'{"a": NaN}', {}, 400, "NaN is not JSON"),
        (b"\xff{}", {}, 400, "not JSON"),
        (rb'{"a": ["\ud800"]}', {}, 400, "surrogates not allowed"),
        (b"{}", {"path": "-of-others"}, 404, "there is no webhook /alerts-of-others; known: alerts"),
        (b"{}", {"Content-Length": "many"}, 411, "no valid Content-Length"),
        (b" " * (MOST_BYTES + 1), {"Content-Length": str(MOST_BYTES + 1)}, 413, "larger than 1,048,576 bytes"),
    ],
)
def test_what_is_not_a_delivery_is_refused_and_not_recorded(
    tmp_path: Path, body: bytes, how: dict[str, str], status: int, error: str
) -> None:
    with Receiver(tmp_path, ["alerts"], 0) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/alerts{how.get('path', '')}"
        headers = {name: value for name, value in how.items() if name != "path"}
        # The body of a request that is too large is never read.
        sent = b"" if status == 413 else body
        found, answer = request(url, sent, "POST", headers)
        receiver.shutdown()
    assert found == status and error in answer["error"]
    assert (tmp_path / "alerts.jsonl").read_text() == ""


def test_a_client_that_dies_within_its_request_has_delivered_nothing(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner)
    connection = http.client.HTTPConnection(urlsplit(site.url).netloc)
    connection.putrequest("POST", "/alerts")
    connection.putheader("Content-Length", "15")
    connection.endheaders()
    connection.send(b'{"rule": ')
    connection.close()
    site.send({"rule": "slow"})
    _, history = site.read_back()
    assert contents(history) == [{"rule": "slow"}]


def test_nothing_was_delivered(tmp_path: Path, owner: Owner) -> None:
    records, history = Site(tmp_path, owner).read_back()
    assert records["alerts"]["rows"] == 0 and history["output"] == []


def test_a_receiver_that_has_died_is_not_read_back(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner)
    site.send({"rule": "slow"})
    (receiver,) = owner.services()
    receiver.kill()
    with pytest.raises(
        HistoryError, match=r"the webhook receiver at http://127\.0\.0\.1:[0-9]+/alerts does not answer"
    ):
        site.read_back()


def test_a_file_that_someone_changed_is_not_read_back(tmp_path: Path, owner: Owner) -> None:
    site = Site(tmp_path, owner)
    site.send({"rule": "slow"})
    (tmp_path / "webhooks/alerts.jsonl").write_text("")
    with pytest.raises(HistoryError, match=r"counts 1 delivery, and .*alerts\.jsonl has 0"):
        site.read_back()


@pytest.mark.parametrize("name", ["", "a/b", "../x", "-a", "ä"])
def test_a_name_that_is_no_part_of_a_url_is_refused(name: str) -> None:
    (problem,) = WEBHOOK.problems(cast(Any, None), a_spec(webhook=name))
    assert "cannot be the name of a webhook" in problem.message


def test_how_repeats_are_treated_has_two_values() -> None:
    with pytest.raises(ValidationError, match="repeats"):
        a_spec(repeats="dropped")


def test_only_webhooks_have_a_server() -> None:
    assert [name for name, store in stores.items() if isinstance(store, HasServer)] == ["webhook"]
