"""The state of a run's sinks at one moment, read without going through a proxy: two of them show what was written between."""

from __future__ import annotations

from collections.abc import Collection

from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import Stack
from onceproof.stores.contract import State, store_of, stores


def sink_state(stack: Stack) -> State:
    """The committed content of all stores of the run."""
    return {name: held for _, store in stores.items() for name, held in store.state(stack, None).items()}


def output_state(stack: Stack, outputs: Collection[OutputSpec]) -> State:
    """The content of these outputs, uncommitted records included: an aborted batch leaves nothing else to see."""
    return {
        name: held
        for _, store in stores.items()
        for name, held in store.state(stack, [spec for spec in outputs if store_of(spec) is store]).items()
    }


def changes(before: State, after: State) -> list[str]:
    """One sentence for each table or topic whose state differs."""
    return [
        f"{name}: {before.get(name, 'missing')} -> {held}" for name, held in after.items() if before.get(name) != held
    ]
