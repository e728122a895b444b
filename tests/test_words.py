"""Pages and messages for users do not use the project's former private words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent

#: A program reports, it does not tell; a thing is somewhere, it does not stand there; a user fixes a problem, not mends it.
PRIVATE = re.compile(
    r"\b(mend(s|ed|ing)?|whoever|crew|clues|roads?|stood|stands (beside|behind|inside|in)|(is|was|were|be) told(?! apart)"
    r"|tells (you|of|that|what|how|whether)|lets? go)\b",
    re.IGNORECASE,
)
#: Names may contain such a word.
ALLOWED = re.compile(r"decisions/\S+|`[^`]*`")


def pages() -> list[Path]:
    return [
        ROOT / "README.md",
        *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "whats-here.md"),
    ]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Texts that a module may show to a user: all except docstrings and SQL."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        shown = isinstance(node, ast.Constant) and id(node) not in docstrings
        text = node.value if shown and isinstance(node.value, str) else ""
        if " " in text and not re.search(r"\b(SELECT|CREATE|UPDATE)\b", text):
            yield node.lineno, text


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_no_page_uses_a_private_word(page: Path) -> None:
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
    assert [f"{number}: {line}" for number, line in lines if PRIVATE.search(ALLOWED.sub("", line))] == []


def test_no_message_uses_a_private_word() -> None:
    tops = (ROOT / "src/onceproof", *(ROOT / name for name in ("chaos", "sinks", "checkers", "reports")))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {text}"
        for top in tops
        for path in sorted(top.rglob("*.py"))
        for number, text in messages(path)
        if PRIVATE.search(ALLOWED.sub("", text))
    ]
    assert found == []
