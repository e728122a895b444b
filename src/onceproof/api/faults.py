"""The kinds of faults as callables: ``Crash("driver", batch=2, point="after-sink-commit")``.

Their names and settings come from the registry: the kind ``lost-ack`` is ``LostAck``. A kind of another package that is
registered by an entry point is here too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel

from onceproof.base.errors import UsageError
from onceproof.base.registry import Registry, suggest
from onceproof.kinds.contract import pipelines
from onceproof.scenario.base import AnyFaultSpec
from onceproof.scenario.kinds import faults, model_of, targets_of
from onceproof.scenario_files.explain import validate


class FaultKind:
    """One kind of fault. Call it with a target, the position at which it strikes and its settings to get a fault for ``chaos``.

    The names of position and settings are those of a scenario file; a name that Python reserves has an underscore after it
    (``while_``). A kind that exists for Spark jobs and for consumers is the one for consumers if ``message`` is given.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.implementations: dict[str, list[Any]] = {
            pipeline: faults.of(pipeline).all(name)
            for pipeline in pipelines.names()
            if name in faults.of(pipeline).names()
        }
        """Kind of pipeline -> the classes that implement it there: one, or several for different targets."""

    @property
    def __name__(self) -> str:
        return class_name(self.name)

    def __call__(self, target: str, **settings: Any) -> AnyFaultSpec:
        """The fault. Raises `UsageError` that names each wrong setting.

        It is checked against a scenario, as by `onceproof validate`, once it is used in one.
        """
        model = self._model(target, settings)
        at: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in settings.items():
            name = name.removesuffix("_")
            (at if name in _keys(_position(model)) and name not in _keys(model) else own)[name] = value
        values = {"fault": self.name, "target": target, **own, "at": at}
        spec, complaints = validate(model, values)
        if spec is None or complaints:
            lines = [
                f"{self.__name__}: {c.message}" + (f" ({c.hint})" if c.hint is not None else "") for c in complaints
            ]
            raise self._wrong("\n".join(lines))
        return spec

    def __repr__(self) -> str:
        return f"onceproof.{self.__name__}"

    def _model(self, target: str, settings: dict[str, Any]) -> type[AnyFaultSpec]:
        """The model for the target, for the kind of pipeline to which most of the given names belong: `at.message` exists for
        consumers only, `at.batch` for Spark jobs."""
        names = {name.removesuffix("_") for name in settings}

        def known(pipeline: str) -> int:
            specs = [fault.Spec for fault in self.implementations[pipeline]]
            return len(names & {key for spec in specs for key in (*_keys(_position(spec)), *_keys(spec))})

        registry = faults.of(max(self.implementations, key=known))
        model = model_of(registry, "fault", {"fault": self.name, "target": target, "at": settings})
        if model is None:
            near = suggest(str(target), targets_of(registry, self.name))
            raise self._wrong(f"{self.__name__}: unknown target {target!r} ({near})")
        return model

    def _wrong(self, message: str) -> UsageError:
        return UsageError(message, hint=f"onceproof list faults {self.name} lists its settings")


def fault(kind: str, target: str, **settings: Any) -> AnyFaultSpec:
    """A fault of the kind with that name, as in a scenario file: ``fault("lost-ack", "postgres", batch=2, ...)``.

    For kinds of other packages, whose names a type checker does not know. Raises `UsageError`.
    """
    if kind not in _names():
        raise UsageError(f"unknown fault {kind!r}; {suggest(kind, _names())}", hint="list them: onceproof list faults")
    return FaultKind(kind)(target, **settings)


def class_name(kind: str) -> str:
    """``lost-ack`` -> ``LostAck``."""
    return "".join(word.capitalize() for word in kind.split("-"))


def class_names() -> list[str]:
    """The Python names of all kinds, sorted."""
    return sorted(map(class_name, _names()))


@cache
def kind_named(name: str) -> FaultKind | None:
    """The kind with this Python name; None if there is none."""
    return next((FaultKind(kind) for kind in _names() if class_name(kind) == name), None)


def __getattr__(name: str) -> FaultKind:
    kind = kind_named(name) if name[:1].isupper() else None
    if kind is None:
        raise AttributeError(f"there is no kind of fault {name!r}; {suggest(name, class_names())}")
    return kind


def _names() -> list[str]:
    registries: list[Registry[Any]] = [faults.of(pipeline) for pipeline in pipelines.names()]
    return sorted({name for registry in registries for name in registry.names()})


def _position(model: type[AnyFaultSpec]) -> type[BaseModel]:
    annotation = model.model_fields["at"].annotation
    assert isinstance(annotation, type) and issubclass(annotation, BaseModel), "at is a Position"
    return annotation


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
