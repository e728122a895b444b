"""A scenario that is only judged by, never run: what a run would need besides is filled in."""

from __future__ import annotations

from typing import Any

#: What stands for the data set and the job of a history that was not made by a run.
IMPORTED = "imported"


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """The document with a data set for each input, a pipeline, and a stack that has all outputs; without ``chaos``.

    What is there stays, right or wrong: the models complain about it.
    """
    inputs = data.get("input")
    if isinstance(inputs, list):
        inputs = [{"dataset": IMPORTED, **spec} if isinstance(spec, dict) else spec for spec in inputs]
    outputs = data.get("outputs")
    specs = outputs.values() if isinstance(outputs, dict) else []
    topics: dict[str, Any] = {
        str(spec["topic"]): {} for spec in specs if isinstance(spec, dict) and spec.get("topic") is not None
    }
    stack = data.get("stack") or {}
    kept = {name: value for name, value in data.items() if name != "chaos"}
    return {
        "pipeline": {"command": [IMPORTED], "prepare": {"topics": topics}},
        **kept,
        **({} if inputs is None else {"input": inputs}),
        "stack": {"postgres": {}, **stack} if isinstance(stack, dict) else stack,
    }
