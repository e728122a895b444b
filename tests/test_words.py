"""Private idioms stay out of what users read: pages and messages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent

#: Pattern -> what to write instead. No page and no message of a program may use these.
WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"whoever": "name the actor",
    r"crew": "consumer processes",
    r"clues": "hints",
    r"roads?": "network path",
    r"stood|stands (beside|behind|inside|in)": "is, is stored, remains",
    r"(is|was|were|be) told(?! apart)": "is reported",
    r"tells (you|of|that|what|how|whether)": "reports",
    r"lets? go": "drop, release, resume",
}
#: Pattern -> what to write instead. To be free of these as well, add a page or a folder to the two lists below.
STRICT_WORDS = WORDS | {
    r"stand(s|ing)?(?! for)": "is, is stored, remains",
    r"beside": "in addition to, next to",
    r"(?<!there )is no(?! longer| more)": "is not a",
    r"anew": "again",
    r"told": "reported",
    r"as it were": "nothing",
}
STRICT_PAGES = {
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("README", "add-an-oracle", "claims", "faults", "jepsen", "oracles", "outputs", "qualify"),
            *("scenario-files", "verdicts", "your-job"),
        )
    ),
}
#: In these even docstrings and comments are checked.
STRICT_FOLDERS = (
    "src/onceproof/qualify",
    "src/onceproof/explore",
    "src/onceproof/oracle",
    "tests/qualify",
    "tools",
    "benchmarks",
)

#: Where messages are checked for `WORDS`: all product code.
PRODUCT = ("src/onceproof", "chaos", "sinks", "checkers", "reports")
#: Names that contain such a word.
ALLOWED = re.compile(r"decisions/\S+|`[^`]*`|pipeline_routes")


def pages() -> list[str]:
    generated = ROOT / "docs" / "whats-here.md"
    found = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != generated)]
    return [page.relative_to(ROOT).as_posix() for page in found]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Texts in a module, except docstrings and SQL: what it may show to a user."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        shown = isinstance(node, ast.Constant) and id(node) not in docstrings
        text = node.value if shown and isinstance(node.value, str) else ""
        if " " in text and not re.search(r"\b(SELECT|CREATE|UPDATE)\b", text):
            yield node.lineno, text


def found(lines: Iterator[tuple[int, str]], words: dict[str, str], where: str) -> list[str]:
    """``file:line: write ... instead: line`` for each private word in a line."""
    return [
        f"{where}:{number}: write {better!r} instead: {line.strip()}"
        for number, line in lines
        for word, better in words.items()
        if re.search(rf"\b(?:{word})\b", ALLOWED.sub("", line), re.IGNORECASE)
    ]


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    return iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))


@pytest.mark.parametrize("page", pages())
def test_a_page_uses_no_private_word(page: str) -> None:
    assert found(numbered(ROOT / page), STRICT_WORDS if page in STRICT_PAGES else WORDS, page) == []


def test_every_strict_page_and_folder_exists() -> None:
    assert set(pages()) >= STRICT_PAGES
    assert all((ROOT / folder).is_dir() for folder in STRICT_FOLDERS)


@pytest.mark.parametrize("top", PRODUCT)
def test_a_message_uses_no_private_word(top: str) -> None:
    modules = sorted((ROOT / top).rglob("*.py"))
    assert [hit for path in modules for hit in found(messages(path), WORDS, str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize("folder", STRICT_FOLDERS)
def test_the_sources_of_a_strict_folder_use_no_private_word(folder: str) -> None:
    modules = sorted((ROOT / folder).rglob("*.py"))
    assert [hit for path in modules for hit in found(numbered(path), STRICT_WORDS, str(path.relative_to(ROOT)))] == []


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
    assert len(found(iter([(1, text)]), STRICT_WORDS, "x")) == hits
