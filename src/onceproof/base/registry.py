"""Registries of everything that can be added by writing one file: faults, checkers, oracles, datasets, stores, reports, decoders.

A package's modules register their implementations when they are imported; third parties use entry points (docs/extend.md).
Listings, error messages and documentation tables are made from the registries, so there is no central list to edit.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from onceproof.base.errors import EnvironmentProblem

T = TypeVar("T")

#: Messages list at most this many names.
_MOST_LISTED = 20


class Registry(Generic[T]):
    """Named items of one kind (``noun``), loaded on first use from one package (if any) and one entry-point group.

    ``contract``: see `requires`. ``reserved``: names that no item may have. ``part`` is the name of the registry's own part: `of`
    that name is the registry itself. ``module``: the name of the modules in the package's folders that register items; if it is
    given, no other module of a folder is imported.
    """

    def __init__(
        self,
        noun: str,
        package: str | None,
        group: str,
        contract: type | None = None,
        *,
        part: str = "",
        reserved: Collection[str] = (),
        module: str | None = None,
    ) -> None:
        self.noun = noun
        self._module = module
        self._package = package
        self.group = group
        self._contract = contract
        self._reserved = reserved
        self._distinct = ""
        self._models: dict[str, type] = {}
        self._items: dict[tuple[str, ...], T] = {}
        self._parts: dict[str, Registry[T]] = {part: self}
        self._loaded = False
        self._broken: EnvironmentProblem | None = None
        self._loading = threading.RLock()

    def of(self, part: str) -> Registry[T]:
        """A part of the registry with its own namespace: ``faults.of("consumers")`` has the faults of consumers."""
        if part not in self._parts:
            self._parts[part] = _Part(self, part)
        return self._parts[part]

    def requires(self, contract: type, *, distinct: str = "", **models: type) -> Registry[T]:
        """From now on an item must have every member of the protocol ``contract``, or inherit from it if it is a class.

        ``distinct``: the member that is different for each item. ``models``: member -> class that its value must inherit from.
        """
        self._contract, self._distinct, self._models = contract, distinct, models
        return self

    def register(self, name: str, *variant: str) -> Callable[[T], T]:
        """Decorator for a class or object: ``@faults.register("fence")``. A name can be registered once.

        If a name has several items, each is registered for variants of the name: ``@faults.register("crash", "broker")``,
        ``@faults.register("crash", "broker", "in-tasks")``. All of them are from one package.

        Raises `ValueError` for a name that is taken, and `TypeError` for an item that does not fulfil the contract.
        """
        key = (name, *variant)

        def keep(item: T) -> T:
            same = [
                known
                for each, known in self._items.items()
                if each[0] == name and _package_of(known) != _package_of(item)
            ]
            if key in self._items or same:
                known = self._items[key] if key in self._items else same[0]
                raise ValueError(f"two {self.noun}s are named {' '.join(key)!r}: {_named(known)} and {_named(item)}")
            self._check(name, item)
            self._items[key] = item
            return item

        return keep

    def find(self, name: str, *variant: str) -> T | None:
        """The item of that name and as much of ``variant`` as is registered, or None: an item registered for
        ``("crash", "broker")`` is found for ``("crash", "broker", "after-offset-log")`` too, if that has no item of its own."""
        self._load()
        key = (name, *variant)
        beginnings = (key[:length] for length in range(len(key), 0, -1))
        return next((self._items[one] for one in beginnings if one in self._items), None)

    def get(self, name: str, *variant: str) -> T:
        """What `find` finds. Raises `KeyError` with a suggestion (`suggest`) if that is nothing."""
        item = self.find(name, *variant)
        if item is None:
            wanted, known = " ".join((name, *variant)), sorted(map(" ".join, self._items))
            raise KeyError(f"unknown {self.noun} {wanted!r}; {suggest(wanted, known)}")
        return item

    def variants(self, name: str) -> dict[tuple[str, ...], T]:
        """The variants of that name, each with its item. An item registered by name only has the variant ``()``."""
        self._load()
        return {key[1:]: item for key, item in sorted(self._items.items()) if key[0] == name}

    def all(self, name: str) -> list[T]:
        """The items of that name, each once."""
        return list(dict.fromkeys(self.variants(name).values()))

    def names(self) -> list[str]:
        self._load()
        return sorted({key[0] for key in self._items})

    def items(self) -> Iterator[tuple[str, T]]:
        """Each item once, with its name. A name occurs once for each of its items."""
        return ((name, item) for name in self.names() for item in self.all(name))

    def _check(self, name: str, item: T) -> None:
        contract = self._contract
        if name in self._reserved:
            raise ValueError(f"{name!r} is a {self.noun} of onceproof itself")
        if contract is not None:
            problem = _problem(item, contract)
            if problem is not None:
                raise TypeError(f"{self.noun} {name!r} {problem}: {_named(item)}")
        for member, model in self._models.items():
            found = getattr(item, member)
            if not (isinstance(found, type) and issubclass(found, model)):
                raise TypeError(f"{member} of {self.noun} {name!r} must inherit from {_named(model)}: {_named(found)}")
        if self._distinct:
            value = getattr(item, self._distinct)
            for (other, *_), known in self._items.items():
                if getattr(known, self._distinct) == value:
                    raise ValueError(f"{self.noun}s {other!r} and {name!r} have the same {self._distinct}: {value!r}")

    def _load(self) -> None:
        """Raises `EnvironmentProblem` if an installed package has an entry point that cannot be used."""
        # Another thread waits for the whole registry; what is being imported may ask for a part of it.
        with self._loading:
            if self._broken is not None:
                raise self._broken
            if not self._loaded:
                self._loaded = True
                self._load_all()

    def _load_all(self) -> None:
        if self._package is not None:
            package = importlib.import_module(self._package)
            for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
                if self._module is None or module.name.rpartition(".")[2] == self._module:
                    importlib.import_module(module.name)
        for entry in entry_points(group=self.group):
            try:
                self._add(entry)
            except Exception as error:  # a foreign module may raise anything
                self._broken = _unusable(self.noun, entry, error)
                raise self._broken from error

    def _add(self, entry: EntryPoint) -> None:
        """Load an entry point: of a module, which registers the item under that name itself, or of the item."""
        found = entry.load()
        parts = self._parts.values()
        registered = [item for part in parts for key, item in part._items.items() if key[0] == entry.name]
        if isinstance(found, ModuleType):
            if not registered:
                raise LookupError(f"module {entry.module} registers no {self.noun} of that name")
        elif not any(item is found for item in registered):
            self.register(entry.name)(found)


class _Part(Registry[T]):
    """A part of a registry; it is loaded together with the whole."""

    def __init__(self, whole: Registry[T], name: str) -> None:
        super().__init__(f"{whole.noun} of {name}", whole._package, whole.group)
        self._whole = whole

    def _check(self, name: str, item: T) -> None:
        self._whole._check(name, item)

    def _load(self) -> None:
        self._whole._load()


def _problem(item: object, contract: type) -> str | None:
    """Why the item does not fulfil the contract; None if it does."""
    if not getattr(contract, "_is_protocol", False) and not (isinstance(item, type) and issubclass(item, contract)):
        return f"must inherit from {_named(contract)}"
    missing = [member for member in _members(contract) if not hasattr(item, member)]
    return f"lacks {', '.join(missing)} of {_named(contract)}" if missing else None


def _members(contract: type) -> list[str]:
    """The public members of a class or protocol, with those of its bases."""
    bases = (base for base in contract.__mro__ if base not in (object, Generic, Protocol))
    names = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return sorted(name for name in names if not name.startswith("_") or name == "__call__")


def _named(item: object) -> str:
    """A class or function by its full name, an object by that of its class."""
    if isinstance(item, str | int | float):
        return repr(item)
    named = item if hasattr(item, "__qualname__") else type(item)
    return f"{named.__module__}.{named.__qualname__}"


def _package_of(item: object) -> str:
    return _named(item).partition(".")[0]


def _unusable(noun: str, entry: EntryPoint, error: Exception) -> EnvironmentProblem:
    package = "an installed package" if entry.dist is None else f"package {entry.dist.name} {entry.dist.version}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    reason = str(error).partition("\n")[0]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return EnvironmentProblem(
        f"{noun} {entry.name!r} of {package} cannot be used: {type(error).__name__}: {reason}{place}",
        hint=f"correct or uninstall that package; its entry point in group {entry.group} is "
        f"{entry.name} = {entry.value}",
    )


def suggest(value: str, known: list[str]) -> str:
    """ "did you mean ...?" if a known name begins with it or is similar, else the known names; of many the two nearest."""
    begun = [name for name in known if value and name.startswith(value)]
    near = begun[:2] or difflib.get_close_matches(value[:200], known, n=2, cutoff=0.55)
    if near:
        return "did you mean " + " or ".join(repr(n) for n in near) + "?"
    if len(known) > _MOST_LISTED:
        near = difflib.get_close_matches(value[:200], known, n=2, cutoff=0.0)
        return "nearest: " + " and ".join(repr(n) for n in near)
    return "known: " + ", ".join(known) if known else "none is known"
