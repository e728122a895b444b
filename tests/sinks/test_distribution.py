"""onceproof-sinks brings the sinks and two clients, and nothing of the harness. Its wheel is built and installed for real."""

from __future__ import annotations

import json
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import onceproof
import onceproof.sinks

from .distribution import ROOT, SINKS, build, install, make_environment, run, uv

pytestmark = pytest.mark.sources

CLIENTS = {"confluent-kafka", "psycopg"}
#: What psycopg needs itself.
OF_PSYCOPG = {"typing-extensions"} if sys.version_info < (3, 13) else set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("onceproof-sinks"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel and what it needs."""
    python = make_environment(tmp_path_factory.mktemp("environment") / "alone")
    install(python, str(wheel))
    return python


@pytest.fixture(scope="module")
def with_libpq(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment in which psycopg works on every machine."""
    python = make_environment(tmp_path_factory.mktemp("environment") / "binary")
    install(python, f"{wheel}[binary]")
    return python


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def installed(python: Path) -> set[str]:
    return {package["name"] for package in json.loads(uv("pip", "list", "--format", "json", "--python", python))}


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """No file is in both distributions: that of the harness has none outside of its own package."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (licence,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    own = (*SINKS.glob("*.py"), *SINKS.glob("tasks/*.py"), SINKS / "py.typed")
    assert names == {f"onceproof_sinks/{path.relative_to(SINKS)}" for path in own}


def test_both_distributions_have_one_version(wheel: Path) -> None:
    assert metadata(wheel)["Version"] == onceproof.sinks.__version__ == onceproof.__version__


def test_the_metadata_have_the_page_and_the_dependencies(wheel: Path) -> None:
    found = metadata(wheel)
    assert (found["Name"], found["License-Expression"]) == ("onceproof-sinks", "Apache-2.0")
    assert found.get_payload() == (SINKS / "README.md").read_text(encoding="utf-8")
    required = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.partition(">")[0] for line in required} == CLIENTS


def test_it_installs_the_two_clients_and_no_part_of_the_harness(python: Path) -> None:
    assert installed(python) == {"onceproof-sinks", *CLIENTS, *OF_PSYCOPG}


def test_the_extra_binary_adds_libpq(with_libpq: Path) -> None:
    assert installed(with_libpq) == {"onceproof-sinks", *CLIENTS, *OF_PSYCOPG, "psycopg-binary"}
    assert run(with_libpq, "import psycopg; print(psycopg.pq.__impl__)") == "binary\n"


def test_every_module_imports_without_pyspark_pyarrow_and_the_clients(python: Path) -> None:
    """PySpark and pyarrow are not there at all. The clients are, and are loaded when a sink is made."""
    found = sorted(path.stem for path in SINKS.glob("*.py") if path.stem != "__init__")
    modules = [*found, "tasks", *(f"tasks.{path.stem}" for path in SINKS.glob("tasks/[!_]*.py"))]
    script = (
        "import importlib, json, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(f'onceproof_sinks.{name}')\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    loaded = set(json.loads(run(python, script, *modules)))
    assert "onceproof_sinks" in loaded
    assert loaded & {"confluent_kafka", "onceproof", "psycopg", "py4j", "pyarrow", "pyspark"} == set()


@pytest.mark.parametrize(
    ("made", "error", "client"),
    [
        ("postgres.PostgresAppend('port=1 host=127.0.0.1', 't', pipeline='p', checkpoint='c')", "OperationalError", "psycopg"),
        ("kafka.KafkaTransactional('b', 't', pipeline='p', progress_topic='t', checkpoint='c', config={'group.id': ''})", "SinkError", ""),
    ],
)  # fmt: skip
def test_a_sink_loads_the_client_that_it_uses(with_libpq: Path, made: str, error: str, client: str) -> None:
    script = (
        f"import sys\nfrom onceproof_sinks import kafka, postgres\ntry: {made}\nexcept Exception as error: print(type(error).__name__)\n"
        "print(*sorted({'confluent_kafka', 'psycopg', 'pyarrow'} & set(sys.modules)))"
    )
    assert run(with_libpq, script).splitlines() == [error, client]


def test_a_client_that_is_not_loaded_can_be_pickled(python: Path) -> None:
    """A job may ship the sinks' functions by value, to executors without the package."""
    script = "import pickle\nfrom onceproof_sinks._lazy import sql\nprint(pickle.loads(pickle.dumps(sql))._name)"
    assert run(python, script) == "psycopg.sql\n"
