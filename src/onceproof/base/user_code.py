"""Loads a user's Python function by its name, ``module:function`` or ``path/to/file.py:function``. In child processes only."""

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
    """Why this text cannot be the name of a function; None if it can. Loads nothing."""
    where, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier():
        return f"{name!r} does not name a function: write module:function or {{here}}/file.py:function"
    if not where.endswith(".py") and not _MODULE.fullmatch(where):
        return f"{where!r} is neither a module nor a .py file: write module:function or {{here}}/file.py:function"
    return None


def load_function(name: str) -> Callable[..., Any]:
    """The function of that name. A file can import other files of its folder.

    Raises `ValueError` if the name is malformed, `FileNotFoundError`, `ImportError` and anything that the module raises
    while it is loaded, `AttributeError` if the module lacks the function, and `TypeError` if it cannot be called.
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
        raise FileNotFoundError(f"file {path} does not exist")
    sys.path.insert(0, os.fspath(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # before it runs: dataclasses and pickle look up their module there
    spec.loader.exec_module(module)
    return module
