"""The Python files that a guide shows, and modules made from them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = ("add-a-fault.md", "add-a-checker.md", "add-an-oracle.md")


def files_of(guide: str) -> dict[str, str]:
    """Path -> code, of each block of Python. The last path that is written before a block is that of its file."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    blocks = re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    return {re.findall(r"`([\w/]+\.py)`", text[: block.start()])[-1]: block[1] for block in blocks}


def executed(guide: str, file: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """The file of a guide as a module."""
    module = ModuleType(f"documented_{Path(file).stem}")
    patch.setitem(sys.modules, module.__name__, module)  # pydantic looks annotations up there
    exec(compile(files_of(guide)[file], f"docs/{guide}", "exec"), module.__dict__)
    return module
