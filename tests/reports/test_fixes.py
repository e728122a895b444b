"""Which advice a report shows first."""

from __future__ import annotations

from onceproof.history.run_record import RunRecord
from onceproof.reports import fixes


def test_what_stops_the_anomaly_after_the_fault_of_the_run_comes_first() -> None:
    def after(*chaos: dict[str, str]) -> tuple[str, ...]:
        return fixes.of_run("lost-write", RunRecord.model_validate({"scenario": {"chaos": list(chaos)}}))

    general = after()
    assert after({"fault": "retention", "target": "c1"})[0].startswith("A reader ends if its next record is gone")
    assert after({"fault": "crash", "target": "broker"})[0].startswith("Kafka: acks=all")
    assert after({"fault": "crash", "target": "driver"}) == general
    assert set(after({"fault": "retention", "target": "c1"})) == set(general), "nothing is left out"


def test_an_anomaly_of_another_package_may_have_no_advice() -> None:
    assert fixes.of_systems("theirs") == ()
