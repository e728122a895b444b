"""Style as a test: what every file of this repository keeps to, whoever wrote it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onceproof.base.registry import Registry
from onceproof.data import datasets
from onceproof.faults.contract import faults
from onceproof.judge.checker import checkers
from onceproof.oracle import oracles

pytestmark = pytest.mark.sources

ROOT = Path(__file__).parent.parent
LEAVES = ("chaos", "sinks", "checkers", "reports")
MOST_LINES = 450

#: Hosts that tracked files may name. Packages come by coordinates through the clients' own settings, so no other is needed.
HOSTS = {"127.0.0.1", "keepachangelog.com", "semver.org", "www.apache.org"}
ADDRESS = re.compile(r"[a-z]+://(?:[^@/\s]*@)?([A-Za-z0-9.-]+\.[A-Za-z0-9-]+)")
# Character classes keep this file itself free of what it looks for.
ABSOLUTE_HOME = re.compile(r"(?<![\w.*\-{}/])/(?:h[o]me|Us[e]rs|r[o]ot|w[o]rk)/[\w.-]+")

#: Where a wait is written by hand, and why `onceproof.base.waiting` is not used.
WAITS = {
    "src/onceproof/base/waiting.py": "it is the one way to wait",
    "sinks/kafka_progress.py": "runs inside the user's job, which must not load the harness; bounded by its deadline",
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file under version control, or about to be; links left out."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (ROOT / name for name in sorted(set(listed.split("\0"))) if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def shipped() -> list[Path]:
    """Modules that users get: no tests, tools or benchmarks."""
    return [m for m in modules() if name(m).startswith(("src/", "scenarios/", *(f"{leaf}/" for leaf in LEAVES)))]


def calls(module: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call))


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of each import, also of those inside functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def test_there_is_something_to_check() -> None:
    assert len(shipped()) > 50
    assert all((ROOT / "src/onceproof" / leaf).resolve() == ROOT / leaf for leaf in (*LEAVES, "scenarios"))


def test_every_module_says_what_it_is() -> None:
    silent = [name(m) for m in modules() if not name(m).startswith("tests/") and not ast.get_docstring(tree(m))]
    assert silent == []


def test_no_module_is_two_nouns() -> None:
    sizes = {name(m): len(m.read_text(encoding="utf-8").splitlines()) for m in modules()}
    assert {m: lines for m, lines in sizes.items() if lines > MOST_LINES} == {}


def test_imports_are_absolute_and_under_one_name() -> None:
    """A plain ``import chaos`` would break a user whose own repository has a folder of that name.

    Tests may share what they draw their cases from, and have no name by which to import it but a relative one.
    """
    wrong = [
        f"{name(m)}: {'.' * level}{what}"
        for m in modules()
        for level, what in imported(m)
        if (level and not name(m).startswith("tests/"))
        or what.partition(".")[0] in (*LEAVES, "scenarios", "src", "tests")
    ]
    assert wrong == []


def test_sinks_load_nothing_of_the_harness() -> None:
    """They run inside the user's job: only each other, the root of the errors, and the service's client."""
    allowed = {
        "onceproof.sinks",
        "onceproof.base.errors",
        "psycopg",
        "confluent_kafka",
        "pyarrow",
        "pyspark",
        *sys.stdlib_module_names,
    }
    foreign = [
        f"{name(m)}: {what}"
        for m in shipped()
        if name(m).startswith("sinks/")
        for _, what in imported(m)
        if not {what, what.partition(".")[0], ".".join(what.split(".")[:2])} & allowed
    ]
    assert foreign == []


def test_no_module_loads_under_two_names() -> None:
    """Every module at once, as a process of its own loads them."""
    script = """
import collections, importlib, json, pkgutil, sys
from pathlib import Path
import onceproof
for found in pkgutil.walk_packages(onceproof.__path__, "onceproof."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
names = collections.defaultdict(list)
for module, loaded in list(sys.modules.items()):
    if module != "__main__" and getattr(loaded, "__file__", None):
        names[str(Path(loaded.__file__).resolve())].append(module)
here = str(Path(onceproof.__file__).resolve().parents[2])
print(json.dumps({path: n for path, n in names.items() if path.startswith(here) and "site-packages" not in path}))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0, told.stderr
    names: dict[str, list[str]] = json.loads(told.stdout)
    assert len(names) > 50
    assert {path: known for path, known in names.items() if len(known) > 1} == {}


@pytest.mark.parametrize(
    ("folder", "package", "registry"),
    [
        ("chaos", "onceproof.chaos", faults),
        ("checkers", "onceproof.checkers", checkers),
        ("src/onceproof/oracle", "onceproof.oracle", oracles),
        ("src/onceproof/data", "onceproof.data", datasets),
    ],
)
def test_no_file_is_dead(folder: str, package: str, registry: Registry[Any]) -> None:
    """Adding is one file: each file registers something, so that listings, schema and legend show it."""
    files = {f"{package}.{path.stem}" for path in (ROOT / folder).glob("[!_]*.py")}
    registering = {item.__module__ for _, item in registry.items()}
    assert files, f"nothing in {folder}"
    assert files - registering == set()


def hosts(line: str) -> set[str]:
    return set(ADDRESS.findall(line))


def test_no_address_of_a_package_registry_and_no_home_of_a_machine() -> None:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if ABSOLUTE_HOME.search(line) or not hosts(line) <= HOSTS:
                found.append(f"{name(path)}:{number}: {line.strip()[:120]}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("from https:" + "//packages.example/simple", True),
        ("index = https:" + "//me:token@packages.example", True),
        ("cd /ho" + "me/somebody/onceproof", True),
        ("github.com/Shopify/toxiproxy/v2 v2.12.0", False),
        ("postgresql://pipeline@127.0.0.1:5432/pipeline", False),
        ("{here}/work/job.py and $SPARK_HOME/work/", False),
    ],
)
def test_the_search_for_addresses_finds_them(line: str, wrong: bool) -> None:
    assert bool(ABSOLUTE_HOME.search(line) or not hosts(line) <= HOSTS) is wrong


def test_nothing_goes_through_a_shell() -> None:
    through = [
        f"{name(m)}:{call.lineno}"
        for m in modules()
        for call in calls(m)
        if any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in call.keywords
        )
        or ast.unparse(call.func) in ("os.system", "os.popen")
    ]
    assert through == []


def test_nothing_sleeps_for_a_guessed_time() -> None:
    sleepers = {
        name(m)
        for m in modules()
        for call in calls(m)
        if ast.unparse(call.func) in ("time.sleep", "sleep", "asyncio.sleep")
    }
    assert sleepers - set(WAITS) == set()


@pytest.mark.parametrize("tool", ["whats_here.py", "anomalies.py"])
def test_a_written_page_is_complete_and_true(tool: str) -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_link_in_the_documents_leads_somewhere() -> None:
    broken = []
    for path in tracked():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
                if not (path.parent / target).exists():
                    broken.append(f"{name(path)}: {target}")
    assert broken == []
