"""Registries of everything that can be added by writing one file: faults, checkers, oracles, datasets, reports.

A package's modules register their implementations when they are imported; third parties use entry points. Listings, error
messages and documentation tables are made from the registries, so there is no central list to edit.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")

#: Messages list at most this many names.
_MOST_LISTED = 20


class Registry(Generic[T]):
    """Named items of one kind (``noun``), loaded on first use from one package and one entry-point group.

    ``base`` is the class that all items must inherit from, if any. ``part`` is the name of the registry's own part: `of`
    that name is the registry itself.
    """

    def __init__(self, noun: str, package: str, group: str, base: type | None = None, *, part: str = "") -> None:
        self.noun = noun
        self._package = package
        self._group = group
        self._base = base
        self._items: dict[tuple[str, ...], T] = {}
        self._parts: dict[str, Registry[T]] = {part: self}
        self._loaded = False

    def of(self, part: str) -> Registry[T]:
        """A part of the registry with its own namespace: ``faults.of("consumers")`` has the faults of consumers."""
        if part not in self._parts:
            self._parts[part] = _Part(self, part)
        return self._parts[part]

    def register(self, name: str, *variant: str) -> Callable[[T], T]:
        """Decorator for a class or object: ``@faults.register("fence")``. A name can be registered once.

        If a name has several items, each is registered for variants of the name: ``@faults.register("crash", "broker")``,
        ``@faults.register("crash", "broker", "in-tasks")``.
        """
        key = (name, *variant)

        def keep(item: T) -> T:
            if key in self._items:
                raise ValueError(f"two {self.noun}s are named {' '.join(key)!r}: {self._items[key]!r} and {item!r}")
            if self._base is not None and not (isinstance(item, type) and issubclass(item, self._base)):
                base = f"{self._base.__module__}.{self._base.__qualname__}"
                raise TypeError(f"{self.noun} {name!r} must inherit from {base}: {item!r}")
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

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        package = importlib.import_module(self._package)
        for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
            importlib.import_module(module.name)
        for entry in entry_points(group=self._group):
            entry.load()


class _Part(Registry[T]):
    """A part of a registry; it is loaded together with the whole."""

    def __init__(self, whole: Registry[T], name: str) -> None:
        super().__init__(f"{whole.noun} of {name}", whole._package, whole._group, whole._base)
        self._whole = whole

    def _load(self) -> None:
        self._whole._load()


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
