"""A scenario, or a stack profile, that names an external Spark cluster: what is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onceproof.api.faults import Crash
from onceproof.api.scenarios import load as load_for_api
from onceproof.api.scenarios import with_chaos
from onceproof.base.errors import ScenarioError, UsageError
from onceproof.scenario.stack import SparkStack
from onceproof.scenario_files.load import LoadedScenario, load_file, warnings
from onceproof.scenario_files.plan import plan
from onceproof.scenario_files.shipped import find
from onceproof.stack.external.profile import KafkaProfile, StackProfile, load_profile

MASTER = "spark://127.0.0.1:7077"
SUBMIT = f"{sys.executable}"


def written(folder: Path, spark: str, base: str = "naive-kafka-sink", more: str = "") -> Path:
    path = folder / "mine.yaml"
    path.write_text(f"base: {base}\nstack:\n  spark: {spark}\n{more}", encoding="utf-8")
    return path


def loaded(folder: Path, spark: str, base: str = "naive-kafka-sink", more: str = "") -> LoadedScenario:
    return load_file(written(folder, spark, base, more))


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        ("{master: k8s://https://h:6443}", r"k8s is not supported, see docs/your-spark\.md"),
        ("{master: yarn}", "yarn is not supported"),
        ("{master: 'local[4]'}", "local mode needs no cluster"),
        ("{master: 'spark://h'}", "the address of your own master: spark://HOST:PORT"),
        ("{master: 'spark://h:70000'}", "the address of your own master: spark://HOST:PORT"),
        (f"{{master: '{MASTER}', workers: 3}}", f"workers is for a standalone Spark of the run: {MASTER} has its own"),
        (f"{{master: '{MASTER}', bind: 0.0.0.0}}", "executors cannot connect to 0.0.0.0"),
        (f"{{master: '{MASTER}', bind: my-host}}", "write an IPv4 address of this machine"),
        ("{bind: 10.0.0.7}", "bind is for a Spark on other machines"),
        (f"{{master: '{MASTER}', submit: [no-such-submit]}}", "program 'no-such-submit' was not found"),
        (f"{{master: '{MASTER}', submit: ['{SUBMIT}', --deploy-mode, cluster]}}", "neither see nor end it"),
        (f"{{master: '{MASTER}', submit: ['{SUBMIT}', --deploy-mode=cluster]}}", "neither see nor end it"),
        (f"{{master: '{MASTER}', submit: ['{SUBMIT}', '{{spark.mastr}}']}}", r"unknown template \{spark.mastr\}"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_its_line(spark: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=rf"mine\.yaml:3:.*{says}"):
        loaded(tmp_path, spark)


def test_submit_takes_the_place_of_python(tmp_path: Path) -> None:
    scenario = loaded(tmp_path, f"{{master: '{MASTER}', submit: ['{SUBMIT}', --master, '{{spark.master}}']}}").scenario
    words = scenario.job_command()
    assert words[:3] == [SUBMIT, "--master", "{spark.master}"] and words[3:] == scenario.pipeline.command[1:]
    assert scenario.pipeline.command[0] == "{python}" and plan(scenario).command == tuple(words)
    assert any("spark://127.0.0.1:7077, an external cluster" in line for line in plan(scenario).stack)


def test_submit_with_a_command_that_does_not_begin_with_python_is_refused(tmp_path: Path) -> None:
    more = f"pipeline: {{command: ['{SUBMIT}', '{{here}}/mine.yaml']}}\n"
    with pytest.raises(
        ScenarioError, match=r"submit starts the job instead of \{python\}, but the command starts with"
    ):
        loaded(tmp_path, f"{{submit: ['{SUBMIT}']}}", more=more)


@pytest.mark.parametrize("base", ["executor-crash", "python-worker-crash", "speculation"])
def test_a_fault_in_the_middle_of_a_task_is_n_a(base: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"{{master: '{MASTER}'}}", base)
    with pytest.raises(ScenarioError, match=f"is n/a on Spark {MASTER}: it needs control of the executors' processes"):
        load_file(path)
    placed = [fault.placement for fault in plan(load_file(path, runs=False).scenario).faults]
    assert {(one.exactness, one.proof) for one in placed} == {("n/a", "none: `onceproof run` refuses this fault")}
    assert load_file(find(base)).scenario.chaos, "with executors of the run it is possible"


def test_a_fault_of_the_python_api_is_n_a_too(tmp_path: Path) -> None:
    ours = load_for_api(written(tmp_path, f"{{master: '{MASTER}'}}", "naive-append"))
    with pytest.raises(UsageError, match="it needs control of the executors' processes"):
        with_chaos(ours, [Crash("python-worker", batch=2, point="in-tasks")])
    assert with_chaos(ours, [Crash("driver", batch=2, point="after-sink-commit")]).scenario.chaos


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        (f"{{master: '{MASTER}'}}", None),
        (
            "{master: 'spark://spark-1:7077'}",
            "executors on other machines reach neither the driver nor the proxies",
        ),
        (
            "{master: 'spark://spark-1:7077', bind: 10.0.0.7}",
            "Every machine that can connect to that address can use them",
        ),
    ],
)
def test_what_others_reach_or_executors_do_not_is_a_warning(spark: str, says: str | None, tmp_path: Path) -> None:
    found = [problem.message for problem in warnings(loaded(tmp_path, spark)) if "bind" in problem.message]
    assert (says is None and not found) or (says is not None and says in found[0])


def profile(folder: Path, spark: str) -> StackProfile:
    file = folder / "onceproof.toml"
    file.write_text(
        '[stack.staging]\nprovider = "external"\nchaos = "allowed"\n'
        f'kafka = {{bootstrap = "127.0.0.1:1"}}\nspark = {{{spark}}}\n',
        encoding="utf-8",
    )
    return load_profile("staging", file=file)


def test_the_spark_of_a_profile_runs_every_scenarios_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_OF_STAGING", MASTER)
    staging = profile(tmp_path, f'master = "${{MASTER_OF_STAGING}}", submit = ["{SUBMIT}"]')
    scenario = load_file(find("naive-kafka-sink"), staging).scenario
    assert scenario.stack.spark == SparkStack(master=MASTER, submit=[SUBMIT])
    assert scenario.job_command()[0] == SUBMIT


@pytest.mark.parametrize(
    ("spark", "says"),
    [
        ("workers = 3", r"\[stack.staging\]: spark: spark needs the address|spark needs the address of your master"),
        ('master = "yarn"', r"\[stack.staging\]: spark.master: yarn is not supported"),
    ],
)
def test_a_wrong_spark_of_a_profile_names_its_key(spark: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        profile(tmp_path, spark)


def test_a_profiles_submit_that_is_missing_names_the_stack(tmp_path: Path) -> None:
    staging = profile(tmp_path, f'master = "{MASTER}", submit = ["no-such-submit"]')
    with pytest.raises(ScenarioError, match="program 'no-such-submit' was not found"):
        load_file(find("naive-kafka-sink"), staging)


def test_a_profile_without_spark_changes_nothing() -> None:
    staging = StackProfile(name="s", provider="external", chaos="allowed", kafka=KafkaProfile(bootstrap="127.0.0.1:1"))
    own = load_file(find("naive-kafka-sink")).scenario
    assert load_file(find("naive-kafka-sink"), staging).scenario == own
