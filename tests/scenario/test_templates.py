from __future__ import annotations

import json

from onceproof.scenario.templates import fill, used


def test_every_template_is_found_and_nothing_else() -> None:
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


def test_json_survives() -> None:
    document = json.dumps({"a": {"b": [1, {}]}, "kafka": "{kafka}"})
    assert json.loads(fill(document, {"kafka": "127.0.0.1:1"})) == {"a": {"b": [1, {}]}, "kafka": "127.0.0.1:1"}


def test_values_are_not_filled_again_and_unknown_ones_stay() -> None:
    assert fill("{here} {kafka} {nothing}", {"here": "{kafka}"}) == "{kafka} {kafka} {nothing}"
