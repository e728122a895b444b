"""The hooks that pytest calls. Imports the rest of onceproof only once there is a scenario to run: every pytest loads this file."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceproof.pytest_plugin.listed import Listed, check_collected, read_listed

if TYPE_CHECKING:
    from onceproof.pytest_plugin.harness import Harness
    from onceproof.pytest_plugin.items import ScenarioFile

SUFFIXES = (".onceproof.yaml", ".onceproof.yml")
_LISTED = pytest.StashKey[Listed]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("onceproof", "scenarios of onceproof")
    group.addoption(
        "--onceproof-runs", metavar="DIR", help="Folder for run directories (default: onceproof-runs in the rootdir)."
    )
    group.addoption(
        "--onceproof-fresh-stack",
        action="store_true",
        help="Start new services for each run, instead of cleaning and reusing them.",
    )
    group.addoption(
        "--onceproof-inconclusive",
        choices=("fail", "skip"),
        help="What an inconclusive run does to its test (default: the ini-option, or fail).",
    )
    parser.addini(
        "onceproof_inconclusive", "what an inconclusive run of onceproof does to its test: fail or skip", default="fail"
    )
    parser.addini(
        "onceproof_junit_properties",
        "whether --junitxml gets onceproof's properties; Jenkins's xUnit plugin refuses any in a test case",
        type="bool",
        default=True,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "onceproof: a scenario file of onceproof")
    if (wanted := config.getini("onceproof_inconclusive")) not in ("fail", "skip"):
        raise pytest.UsageError(f"onceproof_inconclusive = {wanted}: use fail or skip")
    config.stash[_LISTED] = listed = read_listed(config.rootpath)
    here = config.invocation_params.dir
    if listed and config.args_source is not pytest.Config.ArgsSource.ARGS and here == config.rootpath:
        # Without arguments every listed scenario is a test, also outside of `testpaths`.
        given = [Path(os.path.abspath(config.rootpath / arg)) for arg in config.args]  # noqa: PTH100
        check_collected(config, listed, given)
        config.args += [str(path) for path in listed if not any(path.is_relative_to(top) for top in given)]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    markers = parent.config.stash[_LISTED].get(file_path)
    if markers is None and not file_path.name.endswith(SUFFIXES):
        return None
    from onceproof.pytest_plugin.items import ScenarioFile

    return ScenarioFile.of(parent, file_path, markers or ())


@pytest.fixture(name="onceproof")
def onceproof_fixture(request: pytest.FixtureRequest) -> Harness:
    """Runs scenarios of onceproof: ``onceproof.run("orders.yaml", chaos=[...]).assert_held()``."""
    from onceproof.pytest_plugin.harness import Harness

    return Harness(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a problem of the machine or of a scenario file as an error, without traceback: the pipeline did not fail."""
    report = yield
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        from onceproof.base.errors import OnceproofError

        if isinstance(call.excinfo.value, OnceproofError):
            report.longrepr = f"error: {call.excinfo.value}"
            if report.when == "call":
                report.when = "setup"  # pytest calls a failure outside of the call an error
    return report
