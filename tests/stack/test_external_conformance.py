"""The same scenarios on an external cluster, with TLS, logins and access rules: the same verdicts and anomalies as embedded.

``tox -e external`` writes what they show into the table of docs/stacks.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceproof.base.errors import ScenarioError
from onceproof.run import run
from onceproof.scenario_files.load import load_file
from onceproof.scenario_files.shipped import find
from onceproof.stack.external import journal
from onceproof.stack.external.profile import StackProfile, load_profile
from onceproof.stack.fetch import components
from onceproof.stack.processes.owner import Owner

from ..conformance import SCENARIOS, record, record_n_a
from ..foreign_cluster import ForeignKafka, ForeignPostgres
from ..gate import assert_as_expected
from . import secured

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

#: The gate runs this one, with both services. Transactions through the protocol proxy: tests/instruments/proxy/test_cluster_real.py.
IN_GATE = ("naive-append",)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignKafka, ForeignPostgres]]:
    with Owner() as owner:
        kafka = ForeignKafka(owner, tmp_path_factory.mktemp("kafka"), components.ensure())
        postgres = ForeignPostgres(owner, tmp_path_factory.mktemp("postgres"))
        secured.create_role(postgres)
        yield kafka, postgres


@pytest.fixture
def profile(
    services: tuple[ForeignKafka, ForeignPostgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StackProfile:
    monkeypatch.setenv("ONCEPROOF_STATE_DIR", str(tmp_path / "state"))
    for name, value in secured.VARIABLES.items():
        monkeypatch.setenv(name, value)
    return load_profile("staging", file=secured.write(tmp_path, *services))


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, id=Path(each).stem, marks=() if each in IN_GATE else pytest.mark.full) for each in SCENARIOS],
)
def test_a_scenario_has_the_verdict_of_the_embedded_stack(
    services: tuple[ForeignKafka, ForeignPostgres], profile: StackProfile, name: str, tmp_path: Path
) -> None:
    before = secured.left_on(*services)
    try:
        loaded = load_file(find(name), profile)
    except ScenarioError as refused:
        record_n_a("external", name, refused)
        return
    done = run(loaded, runs_dir=tmp_path / "runs")
    assert_as_expected(name, done.verdict, done.run_dir)
    assert secured.left_on(*services) == before, "everything that the run created is removed"
    assert [*journal.folder().iterdir()] == []
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in done.run_dir.rglob("*.json*")}
    assert [path for path, text in texts.items() if any(secret in text for secret in secured.SECRETS)] == []
    versions = {"kafka": components.ensure().versions["kafka"], "postgres": services[1].version()}
    record("external", name, done.verdict, done.run_dir, versions)
