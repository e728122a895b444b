from __future__ import annotations

import json

from onceproof.scenario.templates import fill, used


def test_only_templates_are_found() -> None:
    text = "{kafka} {postgres} {postgres.jdbc} {postgres.driver} {checkpoint} {topic.a-b} {table.planes} {here} {python} {other} {} {a.b}"
    assert used(text) == {
        *(
            "kafka",
            "postgres",
            "postgres.jdbc",
            "postgres.driver",
            "checkpoint",
            "topic.a-b",
            "table.planes",
            "here",
            "python",
        )
    }


def test_json_in_an_argument_is_kept() -> None:
    document = json.dumps({"a": {"b": [1, {}]}, "kafka": "{kafka}"})
    assert json.loads(fill(document, {"kafka": "127.0.0.1:1"})) == {"a": {"b": [1, {}]}, "kafka": "127.0.0.1:1"}


def test_values_are_not_filled_twice_and_unknown_templates_are_kept() -> None:
    assert fill("{here} {kafka} {nothing}", {"here": "{kafka}"}) == "{kafka} {kafka} {nothing}"
