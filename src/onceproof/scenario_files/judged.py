"""Completes a scenario that only judges an imported history and is never run."""

from __future__ import annotations

from typing import Any

#: Placeholder for the data set and the job of a history that no run made.
IMPORTED = "imported"


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """``data`` without ``chaos``, and with what only a run needs filled in: data sets, a pipeline, topics of outputs, Postgres.

    Values that are already there stay, even wrong ones: the models report those.
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
