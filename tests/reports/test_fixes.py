"""Which advice a report shows first."""

from __future__ import annotations

from onceproof.history.run_record import RunRecord
from onceproof.reports import fixes
from onceproof.scenario_files.load import load
from onceproof.scenario_files.shipped import find


def test_what_stops_the_anomaly_after_the_fault_of_the_run_comes_first() -> None:
    def after(*chaos: dict[str, str]) -> tuple[str, ...]:
        return fixes.of_run("lost-write", RunRecord.model_validate({"scenario": {"chaos": list(chaos)}}))

    general = after()
    assert after({"fault": "retention", "target": "c1"})[0].startswith("A reader ends if its next record is gone")
    assert after({"fault": "crash", "target": "broker"})[0].startswith("Kafka: acks=all")
    assert after({"fault": "crash", "target": "driver"}) == general
    assert set(after({"fault": "retention", "target": "c1"})) == set(general), "nothing is left out"


def test_a_batch_lost_between_two_sinks_is_not_blamed_on_one_transaction_of_one_sink() -> None:
    crash = {"fault": "crash-at-frame", "target": "driver", "at": {"batch": 2, "point": "between-sinks"}}
    record = RunRecord.model_validate({"scenario": {"chaos": [crash]}})
    assert fixes.of_run("lost-write", record)[0].startswith("Let each of the two sinks keep its own progress, or")


def test_general_advice_on_a_lost_write_comes_before_that_for_one_system() -> None:
    assert fixes.of_systems("lost-write")[0].startswith("Write rows and progress in one transaction")


def test_the_advice_is_for_the_system_of_the_finding() -> None:
    scenario = load(find("between-sinks-shared-progress"))
    (table,) = [name for name, spec in scenario.outputs.items() if spec.table is not None]
    (topic,) = [name for name, spec in scenario.outputs.items() if spec.topic is not None]
    assert fixes.of_scenario("duplicate", scenario, output=topic)[0].startswith("Kafka: ")
    assert fixes.of_scenario("duplicate", scenario, output=table)[0].startswith("Postgres: ")
    assert fixes.of_scenario("duplicate", scenario, output="an input topic") == fixes.of_scenario("duplicate", scenario)


def test_an_anomaly_of_another_package_may_have_no_advice() -> None:
    assert fixes.of_systems("theirs") == ()
