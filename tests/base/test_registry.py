"""What other packages register, and the error for a package that is broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.registry import Registry

GROUP = "onceproof.things_of_test"


class Settings:
    pass


class Thing(Protocol):
    """The contract of the test's registry."""

    about: str
    Spec: ClassVar[type[Settings]]

    def act(self) -> None: ...


GOOD = """
class Mine:
    about = "mine"
    Spec = Settings
    place = "{place}"
    def act(self): pass
"""

Install = Callable[..., "Registry[Any]"]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with a module ``theirs`` and these entry points; returns a new registry."""

    def make(code: str, *entries: str) -> Registry[Any]:
        registry: Registry[Any] = Registry("thing", None, GROUP, part="plain", reserved=["ours"])
        registry.requires(Thing, distinct="place", Spec=Settings)
        names = {"things": registry, "Settings": Settings}
        monkeypatch.setitem(sys.modules, "registry_of_test", ModuleType("registry_of_test"))
        vars(sys.modules["registry_of_test"]).update(names)
        metadata = tmp_path / "their_package-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *(entries or ["mine = theirs"]), ""]))
        (tmp_path / "theirs.py").write_text(f"from registry_of_test import Settings, things\n{code}")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "theirs", raising=False)
        return registry

    return make


def good(place: str = "here") -> str:
    return GOOD.format(place=place)


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        (f"{good()}\nthings.register('mine')(Mine)", "mine = theirs"),
        (f"{good()}\nthings.of('fancy').register('mine')(Mine)", "mine = theirs"),
        (good(), "mine = theirs:Mine"),
        (f"{good()}\nthings.register('mine')(Mine)", "mine = theirs:Mine"),
    ],
)
def test_an_entry_point_names_a_module_that_registers_itself_or_the_item(
    install: Install, code: str, entry: str
) -> None:
    registry = install(code, entry)
    assert [*registry.names(), *registry.of("fancy").names()] == ["mine"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module' \(.*theirs\.py:2\)$"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(.*theirs\.py:2\)$"),
        ("def :", r"SyntaxError: invalid syntax"),
        ("", r"LookupError: module theirs registers no thing of that name$"),
        ("things.register('mine')(Settings)", r"TypeError: thing 'mine' lacks Spec, about, act of .*Thing: .*Settings"),
        (
            f"{good()}\nMine.Spec = int\nthings.register('mine')(Mine)",
            r"TypeError: Spec of thing 'mine' must inherit from .*Settings: builtins\.int",
        ),
        (
            f"{good()}\nthings.register('mine')(Mine)\nthings.register('mine')(type('Other', (Mine,), {{}}))",
            r"ValueError: two things are named 'mine': theirs\.Mine and theirs\.Other",
        ),
        (
            f"{good()}\nthings.register('mine')(Mine)\nthings.register('other')(Mine)",
            r"ValueError: things 'mine' and 'other' have the same place: 'here'",
        ),
        (f"{good()}\nthings.register('ours')(Mine)", r"ValueError: 'ours' is a thing of onceproof itself"),
    ],
)
def test_a_broken_package_is_one_error_that_names_it_and_its_entry_point(
    install: Install, code: str, message: str
) -> None:
    registry = install(code)
    for use in (registry.names, lambda: registry.get("other"), registry.of("fancy").names):
        with pytest.raises(EnvironmentProblem) as failure:
            use()
        problem = failure.value
        assert problem.message.startswith("thing 'mine' of package their-package 1.2 cannot be used: ")
        assert "\n" not in problem.message
        with pytest.raises(EnvironmentProblem, match=message):
            raise EnvironmentProblem(problem.message)
        assert f"its entry point in group {GROUP} is mine = theirs" in str(problem.hint)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("mine = not_theirs", "ModuleNotFoundError: No module named 'not_theirs'"),
        ("mine = theirs:Nothing", "AttributeError: module 'theirs' has no attribute 'Nothing'"),
        ("mine = theirs:Settings", "TypeError: thing 'mine' lacks Spec, about, act"),
    ],
)
def test_an_entry_point_that_leads_nowhere(install: Install, entry: str, message: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"cannot be used: {message}"):
        install(good(), entry).names()


def test_a_name_that_another_package_has_registered(install: Install) -> None:
    registry = install(good("there"), "mine = theirs:Mine")
    registry.register("mine")(type("First", (), {"about": "", "Spec": Settings, "act": print, "place": "here"}))
    with pytest.raises(EnvironmentProblem, match=r"two things are named 'mine': .*First and theirs\.Mine"):
        registry.names()


def test_another_package_cannot_take_over_a_part_of_a_name() -> None:
    registry: Registry[Any] = Registry("thing", None, GROUP)
    ours, theirs = (type(name, (), {"__module__": f"{name.lower()}.things"}) for name in ("Ours", "Theirs"))
    registry.register("mine", "driver")(ours)
    registry.register("mine", "broker")(ours)
    for variant in ((), ("driver", "in-tasks"), ("topic",)):
        with pytest.raises(ValueError, match=r"are named .*: ours\.things\.Ours and theirs\.things\.Theirs"):
            registry.register("mine", *variant)(theirs)
