"""Fault schedules for a scenario as a Hypothesis strategy. Needs Hypothesis, which onceproof does not install."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel

from onceproof.api.faults import FaultKind, class_name
from onceproof.api.scenarios import load
from onceproof.base.errors import UsageError
from onceproof.faults.contract import fault_of, faults
from onceproof.kinds.contract import kind_of
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.model import At, AtMessage, Scenario
from onceproof.scenario.points import Point
from onceproof.scenario_files.checks import crosscheck
from onceproof.scenario_files.checks.consumers import rows_of
from onceproof.scenario_files.explain import validate
from onceproof.scenario_files.load import LoadedScenario

#: A fault without its time: its model, the values of a scenario file, and the position without batch or message.
_Place = tuple[type[AnyFaultSpec], dict[str, Any], dict[str, Any]]


def schedules(
    scenario: str | LoadedScenario, *, most: int = 2, kinds: Sequence[FaultKind] | None = None
) -> SearchStrategy[list[AnyFaultSpec]]:
    """Lists of 1 to ``most`` faults that are valid together in the scenario, for ``chaos``.

    The kinds (default: all registered ones), their targets and the points come from the registries. Settings have their
    defaults, and those without a default each of their values. A list shrinks to fewer faults, at earlier batches (for consumers: messages), of the kind named first.

    Raises `UsageError` if no such fault is possible.
    """
    loaded = scenario if isinstance(scenario, LoadedScenario) else load(scenario)
    base = loaded.scenario.model_copy(update={"chaos": []})
    last = base.guaranteed_batches() - 1 if kind_of(base).micro_batches else rows_of(base)
    names = None if kinds is None else [kind.name for kind in kinds]
    places = [place for place in _places(base, names) if _problems(base, [_spec(place, 1, base)]) == 0]
    if last < 1 or not places:
        wanted = "" if names is None else f" of {', '.join(map(class_name, names))}"
        raise UsageError(
            f"no fault{wanted} can be placed in {base.name}", hint=f"onceproof plan {loaded.path} shows its batches"
        )
    if kind_of(base).micro_batches:
        most = min(most, last)
    drawn = st.lists(
        st.tuples(st.integers(1, last), st.sampled_from(places)),
        min_size=1,
        max_size=most,
        unique_by=lambda one: one[0],
    )
    made = drawn.map(lambda some: [_spec(place, time, base) for time, place in some])
    return made.filter(lambda specs: _problems(base, specs) == 0)


def _places(scenario: Scenario, names: Sequence[str] | None) -> Iterator[_Place]:
    registry = faults.of(scenario.pipeline.kind)
    for name in registry.names() if names is None else names:
        for fault in registry.all(name):
            targets = _literals(fault.Spec.model_fields["target"].annotation)
            for target in targets or _names_of_consumers(scenario):
                for at, settings in product(_positions(scenario), _required(fault.Spec)):
                    place = (fault.Spec, {"fault": name, "target": target, **settings}, at)
                    spec, _ = validate(fault.Spec, _values(place, 1, scenario))
                    if spec is not None and fault_of(spec) is fault:
                        yield place


def _required(model: type[BaseModel]) -> list[dict[str, str]]:
    """Every choice of the settings that have no default, if each of them is one of some words."""
    named = {name: field for name, field in model.model_fields.items() if field.is_required()}
    choices = [
        [(name, word) for word in _literals(field.annotation)]
        for name, field in named.items()
        if name not in ("fault", "target", "at")
    ]
    return [dict(chosen) for chosen in product(*choices)]


def _positions(scenario: Scenario) -> list[dict[str, Any]]:
    if not kind_of(scenario).micro_batches:
        return [{"after": step} for step in _literals(AtMessage.model_fields["after"].annotation)]
    return [{"point": point.value} for point in Point]


def _names_of_consumers(scenario: Scenario) -> list[str]:
    described = scenario.pipeline.model_dump().get("consumers")
    return [] if described is None else list(described["names"])


def _values(place: _Place, time: int, scenario: Scenario) -> dict[str, Any]:
    _, values, at = place
    position = At if kind_of(scenario).micro_batches else AtMessage
    when = next(name for name in position.model_fields if name in ("batch", "message"))
    return {**values, "at": {**at, when: time}}


def _spec(place: _Place, time: int, scenario: Scenario) -> AnyFaultSpec:
    return place[0].model_validate(_values(place, time, scenario))


def _problems(scenario: Scenario, specs: Sequence[AnyFaultSpec]) -> int:
    """How much is wrong with the scenario under these faults."""
    alone = sum(len(fault_of(spec).problems(spec, scenario)) for spec in specs)
    if alone:
        return alone
    return len(crosscheck.of_schedule(scenario.model_copy(update={"chaos": list(specs)})))


def _literals(annotation: Any) -> list[str]:
    return [str(value) for value in get_args(annotation)] if get_origin(annotation) is Literal else []
