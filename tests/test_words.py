"""Private idioms stay out of the pages, the Python files and the shipped scenarios."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent

#: Pattern -> what to write instead, in every page, Python file and scenario.
WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"whoever": "name the actor",
    r"crew": "consumer processes",
    r"clues": "hints",
    r"roads?": "network path",
    r"tells (you|of|that|what|how|whether)": "reports",
    r"lets? go": "drop, release, resume",
    r"stood|stand(s|ing)?(?! for)": "is, is stored, remains",
    r"beside": "in addition to, next to",
    r"(?<!there )is no(?! longer| more)": "is not a",
    r"anew": "again",
    r"told": "reported",
    r"as it were": "nothing",
}
FOLDERS = ("benchmarks", "chaos", "checkers", "reports", "scenarios", "sinks", "src", "tests", "tools")
#: Names that contain such a word.
ALLOWED = re.compile(r"decisions/\S+|`[^`]*`|pipeline_routes")


def pages() -> list[str]:
    generated = ROOT / "docs" / "whats-here.md"
    found = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != generated)]
    return [page.relative_to(ROOT).as_posix() for page in found]


def found(lines: Iterator[tuple[int, str]], where: str) -> list[str]:
    """``file:line: write ... instead: line`` for each private word in a line."""
    return [
        f"{where}:{number}: write {better!r} instead: {line.strip()}"
        for number, line in lines
        for word, better in WORDS.items()
        if re.search(rf"\b(?:{word})\b", ALLOWED.sub("", line), re.IGNORECASE)
    ]


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    return iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))


@pytest.mark.parametrize("page", pages())
def test_a_page_uses_no_private_word(page: str) -> None:
    assert found(numbered(ROOT / page), page) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_python_file_uses_no_private_word(folder: str) -> None:
    """Messages, docstrings, comments and names."""
    modules = sorted(set((ROOT / folder).rglob("*.py")) - {Path(__file__)})
    assert modules
    assert [hit for path in modules for hit in found(numbered(path), str(path.relative_to(ROOT)))] == []


def test_a_scenario_uses_no_private_word() -> None:
    """`onceproof list` and the reports print what it is about."""
    scenarios = sorted((ROOT / "scenarios").rglob("*.yaml"))
    assert scenarios
    assert [hit for path in scenarios for hit in found(numbered(path), str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("Two rows stand in the table", 1),
        ("it is no oracle", 1),
        ("there is no oracle, and it is no longer needed", 0),
        ("N stands for a number, `mend` is a name, besides", 0),
        ("it is kept beside the log", 1),
    ],
)
def test_idioms_are_found_and_plain_words_are_not(text: str, hits: int) -> None:
    assert len(found(iter([(1, text)]), "x")) == hits
