"""Rules for every file of this repository: sizes, imports, addresses, sleeping, links."""

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

#: Hosts that tracked files may name. Clients find packages by coordinates and their own settings, so no other is needed.
HOSTS = {"127.0.0.1", "keepachangelog.com", "semver.org", "www.apache.org", "www.w3.org"}
ADDRESS = re.compile(r"[a-z]+://(?:[^@/\s]*@)?([A-Za-z0-9.-]+\.[A-Za-z0-9-]+)")
# Character classes, so that this file does not match itself.
ABSOLUTE_HOME = re.compile(r"(?<![\w.*\-{}/])/(?:h[o]me|Us[e]rs|r[o]ot|w[o]rk)/[\w.-]+")

#: Modules that may sleep -> why they do not use `onceproof.base.waiting`.
WAITS = {
    "src/onceproof/base/waiting.py": "it is that module",
    "src/onceproof/instruments/proxy/accept.py": "looks again at the kernel's connections, on the loop of the proxies; ends with the held frame",
    "sinks/kafka_progress.py": "runs inside the user's job, which must not load the harness; bounded by its deadline",
    "scenarios/jobs/recovery/charge_through_failover.py": "a consumer under test, which must not load the harness; bounded by its deadline",
    "tests/scenarios/jobs/micro_batches.py": "the pace of a job under test, not a wait for another program",
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that is under version control or not ignored by it, without links."""
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
    """Modules that are installed: no tests, tools or benchmarks."""
    return [m for m in modules() if name(m).startswith(("src/", "scenarios/", *(f"{leaf}/" for leaf in LEAVES)))]


def calls(module: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(module)) if isinstance(node, ast.Call))


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """(level, dotted name) of each import, including those inside functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def test_the_shipped_modules_are_found() -> None:
    assert len(shipped()) > 50
    assert all((ROOT / "src/onceproof" / leaf).resolve() == ROOT / leaf for leaf in (*LEAVES, "scenarios"))


def test_every_module_has_a_docstring() -> None:
    without = [name(m) for m in modules() if not name(m).startswith("tests/") and not ast.get_docstring(tree(m))]
    assert without == []


def test_no_module_is_too_long() -> None:
    sizes = {name(m): len(m.read_text(encoding="utf-8").splitlines()) for m in modules()}
    assert {m: lines for m, lines in sizes.items() if lines > MOST_LINES} == {}


def test_imports_are_absolute_and_start_with_onceproof() -> None:
    """A plain ``import chaos`` would break for a user whose own repository has a folder of that name.

    Tests may import shared modules, for which they have only relative names. The sinks are a package under two names.
    """
    wrong = [
        f"{name(m)}: {'.' * level}{what}"
        for m in modules()
        for level, what in imported(m)
        if (level and not name(m).startswith(("tests/", "sinks/")))
        or (not level and what.partition(".")[0] in (*LEAVES, "scenarios", "src", "tests"))
    ]
    assert wrong == []


def test_sinks_do_not_import_the_harness() -> None:
    """They run inside the user's job, and import only each other and the service's client."""
    allowed = {
        "psycopg",
        "confluent_kafka",
        "pyarrow",
        "pyspark",
        "py4j",
        "typing_extensions",  # for type checkers only
        *sys.stdlib_module_names,
    }
    foreign = [
        f"{name(m)}: {what}"
        for m in shipped()
        if name(m).startswith("sinks/")
        for level, what in imported(m)
        # The folder `tasks` may go up to that of the sinks, and neither further.
        if level not in (1, name(m).count("/")) and what.partition(".")[0] not in allowed
    ]
    assert foreign == []


def test_no_module_loads_under_two_names() -> None:
    """Loads every module in one new process."""
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    names: dict[str, list[str]] = json.loads(done.stdout)
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
def test_each_file_registers_something(folder: str, package: str, registry: Registry[Any]) -> None:
    """So listings, schema and legend show it, and adding a file is all that is needed."""
    files = {f"{package}.{path.stem}" for path in (ROOT / folder).glob("[!_]*.py")}
    registering = {item.__module__ for _, item in registry.items()}
    assert files, f"nothing in {folder}"
    assert files - registering == set()


def hosts(line: str) -> set[str]:
    return set(ADDRESS.findall(line))


def test_no_file_names_a_package_registry_or_a_home_folder() -> None:
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


def test_no_code_uses_a_shell() -> None:
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


def test_no_code_sleeps_for_a_guessed_time() -> None:
    sleepers = {
        name(m)
        for m in modules()
        for call in calls(m)
        if ast.unparse(call.func) in ("time.sleep", "sleep", "asyncio.sleep")
    }
    assert sleepers - set(WAITS) == set()


def test_the_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, ROOT / "tools" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_link_in_the_documentation_is_broken() -> None:
    broken = []
    for path in tracked():
        if path.suffix == ".md":
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
                if not (path.parent / target).exists():
                    broken.append(f"{name(path)}: {target}")
    assert broken == []
