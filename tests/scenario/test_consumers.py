"""What `onceproof validate` says of a scenario of consumers that can never work: the value, and what there is instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onceproof.errors import ScenarioError
from onceproof.scenario.load import find, load
from onceproof.scenario.model import WORKER
from onceproof.scenario.plan import plan

TEXT = find("amqp-redelivery-reorders").read_text()


def said(tmp_path: Path, old: str, new: str) -> str:
    path = tmp_path / "amqp-redelivery-reorders.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("message: 3", "message: 6", "there is no message 6: they are numbered from 1 to 5"),
        ("holds: 4", "holds: 9", "there is no message 9: they are numbered from 1 to 5"),
        ("target: c2", "target: c3", r"there is no consumer 'c3'\n.*c2"),
        ("consumer: c1", "consumer: c2", r"there is no other consumer 'c2'\n.*others: c1"),
        ("{2: 2,", "{7: 2,", "there is no message 7: they are numbered from 1 to 5"),
        ("{2: 2,", "{two: 2,", "not a whole number"),
        ("names: [c1, c2]", "names: [c1, c1]", "consumer 'c1' stands twice"),
        ("names: [c1, c2]", "names: [c1, c2, ../c3]", "its name becomes that of a queue"),
        ("names: [c1, c2]", "names: [c1, c2]\n    queues: own", "queues: own gives each of 2 consumers a queue, and there are 1"),
        ("amqp: {}", "postgres: {}", r"need an AMQP broker.*\n.*add 'amqp: \{\}'"),
        ("fault: crash", "fault: stall", r"unknown fault of consumers 'stall'\n.*crash"),
        ("{topic: processed,", "{table: processed,", "is a queue for now"),
        ("at: {message: 3", "at: {batch: 3, message: 3", "batch"),
        ("{topic: processed,", "{topic: orders,", "output 'processed' is the input topic 'orders'"),
        ("{topic: processed,", "{topic: 'orders#input',", "where the copies of input 'orders' are kept"),
        ("pipeline:\n", "pipeline:\n  env: {WHERE: '{kafka}'}\n", r"template \{kafka\} has no value.*\n.*\{here\} and \{python\}"),
        ("pipeline:\n", "pipeline:\n  command: ['{python}', '{topic.orders}']\n", r"template \{topic.orders\} has no value"),
        ("at: {message: 3", "at: {message: 3, after: acknowledge", r"exercises nothing with acknowledge: after-effect.*message 3"),
    ],
)  # fmt: skip
def test_what_can_never_work_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert re.search(expected, said(tmp_path, old, new)), said(tmp_path, old, new)


def test_an_output_is_no_queue_of_an_input_with_several(tmp_path: Path) -> None:
    new = "options: {keys: [a, b]}\n    partitions: 2\n    rows: 2"
    old = re.search(r"options:.*\n    partitions: 1", TEXT)
    assert old is not None
    text = TEXT.replace(old[0], new)
    for topic, expected in {"orders.1": "a queue of input 'orders'", "orders.0#input": "the copies of input"}.items():
        path = tmp_path / "amqp-redelivery-reorders.yaml"
        path.write_text(text.replace("{topic: processed,", f"{{topic: '{topic}',"))
        with pytest.raises(ScenarioError, match=expected):
            load(path)


def test_a_crash_when_all_is_done_is_refused_of_the_shipped_worker_alone(tmp_path: Path) -> None:
    crash = "{message: 3, while: {consumer: c1, holds: 4}}"
    early = {crash: "{message: 3, after: effect}", "names: [c1, c2]": "names: [c1, c2]\n    acknowledge: before-effect"}
    text = TEXT
    for old, new in early.items():
        text = text.replace(old, new)
    path = tmp_path / "amqp-redelivery-reorders.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="a crash after effect exercises nothing with acknowledge: before-effect"):
        load(path)
    path.write_text(text.replace("pipeline:\n", 'pipeline:\n  command: ["{python}", -V]\n'))
    load(path)


def test_a_command_of_ones_own_takes_the_workers_place(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        TEXT.replace("name: amqp-redelivery-reorders\n", "").replace(
            "pipeline:\n", 'pipeline:\n  command: ["{python}", -V]\n'
        )
    )
    assert load(path).pipeline.command == ["{python}", "-V"]
    assert load(find("amqp-redelivery-reorders")).pipeline.command == WORKER


def test_the_plan_says_where_the_crash_is_put() -> None:
    told = plan(load(find("amqp-redelivery-reorders")))
    (fault,) = told.faults
    assert (fault.batch, fault.point) == (None, "message 3 after take while c1 holds message 4")
    assert fault.placement.exactness == "exact" and told.stack == ("an AMQP 0-9-1 broker (Qpid Broker-J)",)
