"""Loads the user's function again for each start: executes its module, and all modules next to it. In the child process.

Whatever a sink keeps in a module's variables is gone after a real crash: it must be gone here too.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from onceproof.base.user_code import load_function

_lock = threading.Lock()


def load_again(name: str) -> Callable[..., Any]:
    """The function of that name, from freshly executed modules. Raises as `load_function`."""
    where = name.rpartition(":")[0]
    with _lock:
        for module in _modules_of(where):
            del sys.modules[module]
        before = list(sys.path)
        function = load_function(name)
        sys.path[:] = dict.fromkeys([*(path for path in sys.path if path not in before), *before])
        return function


def _modules_of(where: str) -> list[str]:
    """Names of the loaded modules that belong to the user's code: those of its folder, or of its package."""
    if where.endswith(".py"):
        folder = Path(where).resolve().parent
        return [name for name, module in list(sys.modules.items()) if name != "__main__" and _is_in(module, folder)]
    top = where.partition(".")[0]
    if top == "onceproof":  # only its own module: the session itself runs the others
        return [where] if where in sys.modules else []
    return [name for name in list(sys.modules) if name == top or name.startswith(f"{top}.")]


def _is_in(module: ModuleType | None, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and not _is_installed(file) and Path(file).resolve().is_relative_to(folder)


def _is_installed(file: str) -> bool:
    """Whether the file is of the environment, which may be below the user's folder."""
    own = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
    return "site-packages" in Path(file).parts or any(Path(file).is_relative_to(folder) for folder in own)
