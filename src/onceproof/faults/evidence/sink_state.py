"""What the sinks of a run hold at a moment, asked past every proxy: to tell whether somebody has written meanwhile."""

from __future__ import annotations

from collections.abc import Collection

from onceproof.scenario.outputs import OutputSpec
from onceproof.stack.api import Stack
from onceproof.stores.contract import State, store_of, stores


def sink_state(stack: Stack) -> State:
    """All that the run's stores hold, as a reader of what is committed finds it."""
    return {name: held for _, store in stores.items() for name, held in store.state(stack, None).items()}


def output_state(stack: Stack, outputs: Collection[OutputSpec]) -> State:
    """These outputs alone, with what is not committed: of a batch that was aborted it is all that can be seen."""
    return {
        name: held
        for _, store in stores.items()
        for name, held in store.state(stack, [spec for spec in outputs if store_of(spec) is store]).items()
    }


def changes(before: State, after: State) -> list[str]:
    """What differs, a sentence each."""
    return [
        f"{name}: {before.get(name, 'not there')} -> {held}" for name, held in after.items() if before.get(name) != held
    ]
