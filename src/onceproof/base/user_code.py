"""A user's Python function, named as ``module:function`` or ``path/to/file.py:function``. Loaded in child processes only."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from onceproof.base.paths import is_file

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def name_problem(name: str) -> str | None:
    """What makes this text no name of a function; None if it could be one. Nothing is loaded."""
    where, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier():
        return f"{name!r} names no function: write module:function or {{here}}/file.py:function"
    if not where.endswith(".py") and not _MODULE.fullmatch(where):
        return f"{where!r} is neither a module nor a .py file: write module:function or {{here}}/file.py:function"
    return None


def load_function(name: str) -> Callable[..., Any]:
    """The function of that name; a file can import its neighbours.

    Raises `ValueError` for what is no name, `FileNotFoundError`, `ImportError` and whatever the module raises while it is
    loaded, `AttributeError` for a function that it has not, and `TypeError` for what cannot be called.
    """
    if problem := name_problem(name):
        raise ValueError(problem)
    where, _, attribute = name.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    function = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}, not a function")
    result: Callable[..., Any] = function
    return result


def _from_file(path: Path) -> ModuleType:
    if not is_file(path):
        raise FileNotFoundError(f"there is no file {path}")
    sys.path.insert(0, os.fspath(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before it runs: dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module
