"""Private idioms stay out of the pages, the sources, the scenarios and the settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from .guides import GUIDES, files_of

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent

_THINGS = r"(?:batch|chunk|commit|connection|consumer|file|key|listener|lock|message|partition|process|query|record|row|run|server|table|task|thread|topic|transaction)(?:es|s)?"

#: Pattern -> what to write instead, in every file that people read.
WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"who(so)?ever|whomever": "name the actor",
    r"somebody else('s)?": "external, another user",
    r"crews?": "consumer processes",
    r"clues?": "hints",
    r"roads?": "network path",
    r"tells|told": "reports, says",
    r"(?<!story)telling": "informative; reports",
    r"let(s|ting)? (\w+ )?go": "drop, release, resume",
    r"stood|stand(s|ing)?(?! for)": "is, is stored, remains",
    r"beside": "in addition to, next to",
    r"(?<!there )(is|are) no(?! longer| more| such)": "is not a",
    r"anew": "again",
    r"as it were": "nothing",
    r"hands(?! (on|over|out))": "consumer state",
    r"plays?|played|playing": "executes, runs",
    # A rate without "per": "one transaction a batch".
    rf"(?:one|an?|two|\d+) {_THINGS} an? {_THINGS}": "per",
}

_ANY = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)

#: Folder -> suffixes of the files that people read there; "" is a file without one (Dockerfile, entrypoint).
FOLDERS = {
    "benchmarks": {".py"},
    "chaos": {".py"},
    "checkers": {".py"},
    "compose": {".yaml", ""},
    "docs": {".md"},
    "reports": {".py", ".html", ".js", ".css"},
    "scenarios": {".py", ".yaml"},
    "sinks": {".py"},
    "src": {".py", ".java"},
    "tests": {".py", ".yaml"},
    "tools": {".py"},
}
#: Files at the top of the repository.
TOP = (
    ".ci/run",
    ".gitignore",
    ".pre-commit-hooks.yaml",
    "CHANGELOG.md",
    "MANIFEST.in",
    "README.md",
    "action.yml",
    "pyproject.toml",
    "tox.ini",
)
#: Names that contain such a word.
ALLOWED = re.compile(r"decisions/\S+|`[^`]*`|pipeline_routes")
#: Folders whose modules speak to users.
SPEAKING = ("chaos", "checkers", "reports", "sinks", "src")
#: File or folder -> why its messages may say "effect". `docs/claims.md` and `docs/outputs.md` define the word.
EFFECT_IS_A_TERM = {
    "chaos/consumers": "a step of a consumer: take, effect, acknowledge",
    "src/onceproof/consumers": "a step of a consumer",
    "src/onceproof/scenario/consumers.py": "the field `acknowledge` has the values before-effect, after-effect and with-effect",
    "src/onceproof/scenario_files/checks/consumers.py": "a step of a consumer",
}
EFFECT = re.compile(r"(?<![\w-])effects?(?![\w-])")
#: Idioms with the word, and queries over tables of that name.
NO_EFFECT = re.compile(r"\b(?:no|side|cause and|take) effects?\b")
QUERY = re.compile(r"\b(?:SELECT|FROM|JOIN|WHERE|INSERT|CREATE)\b")


def readable() -> list[Path]:
    """Every file that the patterns apply to, except this one."""
    inside = (
        path
        for folder, suffixes in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and path.is_file() and not any(p.is_symlink() for p in (path, *path.parents))
    )
    return sorted({*inside, *(ROOT / name for name in TOP)} - {Path(__file__)})


def found(lines: Iterable[tuple[int, str]], where: str) -> list[str]:
    """``file:line: write ... instead: line`` for each private word in a line."""
    return [
        f"{where}:{number}: write {better!r} instead: {line.strip()}"
        for number, line in lines
        if _ANY.search(line)
        for word, better in WORDS.items()
        if re.search(rf"\b(?:{word})\b", ALLOWED.sub("", line), re.IGNORECASE)
    ]


def numbered(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", [*FOLDERS, "the top"])
def test_no_file_uses_a_private_word(folder: str) -> None:
    """Pages, messages, docstrings, comments, names and settings."""
    files = [p for p in readable() if (name(p).partition("/")[0] == folder if folder in FOLDERS else name(p) in TOP)]
    assert files
    assert [hit for path in files for hit in found(numbered(path), name(path))] == []


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The string constants of a module, without docstrings."""
    tree = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def says_effect(text: str) -> bool:
    """Whether a text is a sentence that calls a row or record an effect."""
    return " " in text and not QUERY.search(text) and EFFECT.search(NO_EFFECT.sub("", text)) is not None


def test_messages_speak_of_rows_and_records_instead_of_effects() -> None:
    speaking = [
        path
        for path in readable()
        if path.suffix == ".py"
        and name(path).partition("/")[0] in SPEAKING
        and not any(name(path).startswith(term) for term in EFFECT_IS_A_TERM)
    ]
    assert speaking
    sources = {name(path): path.read_text(encoding="utf-8") for path in speaking}
    for guide in GUIDES:
        sources |= {f"docs/{guide} ({file})": code for file, code in files_of(guide).items()}
    hits = [
        f"{where}:{n}: {text}" for where, source in sources.items() for n, text in texts(source) if says_effect(text)
    ]
    assert hits == [], "write row, record or write instead"


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ("Two rows stand in the table", 1),
        ("it is no oracle", 1),
        ("there is no oracle, and it is no longer needed", 0),
        ("N stands for a number, `mend` is a name, besides", 0),
        ("it is kept beside the log", 1),
        ("the harness tells the job", 1),
        ("the most telling first", 1),
        ("whoever reads it", 1),
        ("somebody else's Kafka", 1),
        ("one transaction a batch", 1),
        ("one transaction per batch, in a batch", 0),
        ("it is played again", 1),
        ("the replay of a batch", 0),
        ("the broker hands out messages", 0),
        ("the gate lets a consumer go", 0),
        ("the gate lets it go", 1),
    ],
)
def test_idioms_are_found_and_plain_words_are_not(text: str, hits: int) -> None:
    assert len(found([(1, text)], "x")) == hits


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("3 effects are missing", True),
        ("use acknowledge: after-effect", False),
        ("`frame` has no effect at this point", False),
        ("SELECT * FROM judge.effects AS effects", False),
        ("effects", False),
    ],
)
def test_the_search_for_effects_finds_sentences(text: str, wrong: bool) -> None:
    assert says_effect(text) is wrong
