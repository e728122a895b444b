"""A history judged by digests first has, word for word, the verdict of one that is loaded whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from onceproof.judge import shown_rows
from onceproof.judge.open import open_case
from onceproof.judge.relations import digests
from onceproof.judge.synthetic.damage import Damage
from onceproof.judge.synthetic.world import MODELS, World
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.inputs import InputRecords

from .world import DAMAGES, Drawn, histories, store, worlds

#: The outputs that are judged by digests.
OUTPUTS = tuple(name for name, model in MODELS.items() if model.kind != "changelog")


def _fit(damage: Damage) -> bool:
    return len(set(damage.only) & set(OUTPUTS)) >= (damage.outputs or 1)


DAMAGED = {name: damage for name, (_, damage) in DAMAGES.items() if _fit(damage)}


@st.composite
def damaged_worlds(draw: st.DrawFn) -> World:
    """A world with none, one or two damages."""
    names = draw(st.lists(st.sampled_from(sorted(DAMAGED)), max_size=2))
    chosen = [DAMAGED[name] for name in names]
    only = tuple(name for name in OUTPUTS if all(name in damage.only for damage in chosen)) or OUTPUTS[:1]
    outputs = max((damage.outputs or 0 for damage in chosen), default=0) or None
    world = draw(
        worlds(
            only=only,
            outputs=outputs if outputs is None or outputs <= len(only) else None,
            restarted=any(damage.restarted for damage in chosen) or draw(st.booleans()),
            crowded=any(damage.crowded for damage in chosen),
        )
    )
    for name, damage in zip(names, chosen, strict=True):
        if set(world.outputs) <= set(damage.only) and (damage.outputs or 1) <= len(world.outputs):
            damage.apply(world, Drawn(_Draws(draw)))
            event(name)
    return world


class _Draws:
    """Draws inside of a strategy, as `st.DataObject` does inside of a test."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw


@pytest.mark.timeout(21_600)  # ten thousand histories in `tox -e full`
@histories(10_000)
@given(world=damaged_worlds())
def test_both_ways_give_one_verdict(make_run: Callable[[Path], Any], world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder))
        store(world, run)
        path = run.save()
        assert _verdict(path, most_whole=-1) == _verdict(path, most_whole=digests.MOST_WHOLE)


def _verdict(path: Path, *, most_whole: int) -> tuple[dict[str, Any], list[Any]]:
    """The verdict and the rows that it shows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "MOST_WHOLE", most_whole)
        if most_whole < 0:  # an oracle with a small input is asked twice, which needs all rows
            patch.setattr(InputRecords, "is_cheap", lambda _inputs: False)
        # The oracles of two upserts use any_value(), of values that are equal.
        patch.setattr(digests, "depends_on_order", lambda _case: False)
        found = judge(path)
        shown = []
        if found.findings:
            with open_case(path) as case:
                assert case.digest_first == (most_whole < 0)
                shown = list(shown_rows.of_verdict(case, found))
    document = json.loads(json.dumps(found.to_json(), default=str))
    del document["seconds"]
    return document, shown
