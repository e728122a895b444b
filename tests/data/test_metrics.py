from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime, timedelta

import pytest
from pydantic import ValidationError

from onceproof.data.metrics import SERVICES, Metrics, MetricsOptions


def make(seed: int = 7, **options: float) -> Metrics:
    return Metrics(MetricsOptions.model_validate({"rows": 3_000, **options}), seed=seed)


def test_each_measurement_has_its_agent_as_key_and_its_event_time_as_timestamp() -> None:
    for number, record in enumerate(make().records(0, 4_000)):
        found = json.loads(record.value)
        assert found["id"] == number and record.key == found["agent"].encode()
        assert found["agent"].rpartition("-")[0] == found["service"] and found["service"] in SERVICES
        assert record.timestamp_ms == round(datetime.fromisoformat(found["measured_at"]).timestamp() * 1000)
        assert isinstance(found["response_ms"], int) and found["response_ms"] > 0 and found["status"] in (200, 500)
    assert number == make().rows() - 1


def test_chunks_agree_with_the_whole_and_the_seed_decides() -> None:
    whole = list(make().records(0, 3_000))
    assert [r for start in range(0, 3_000, 77) for r in make().records(start, min(start + 77, 3_000))] == whole
    assert whole != list(make(8).records(0, 3_000))


def test_no_measurement_is_later_than_allowed() -> None:
    newest = 0
    for record in make(late_ms=2_000).records(0, 3_000):
        assert record.timestamp_ms > newest - 2_250  # the records come every 250 ms
        newest = max(newest, record.timestamp_ms)


def test_minutes_with_an_incident_stand_out() -> None:
    median, failed = defaultdict(list), defaultdict(list)
    for record in make(incidents=0.5).records(0, 3_000):
        found = json.loads(record.value)
        minute = (found["service"], found["measured_at"][:16])
        median[minute].append(found["response_ms"])
        failed[minute].append(found["status"] == 500)
    slow = [minute for minute, values in median.items() if sorted(values)[len(values) // 2] > 300]
    failing = [minute for minute, values in failed.items() if sum(values) > 0.1 * len(values)]
    assert len(slow) > 5 and len(failing) > 5 and not set(slow) & set(failing)


def test_closing_records_come_last_and_a_day_later() -> None:
    dataset = make(closing=3)
    real = [json.loads(record.value) for record in dataset.records(0, 3_000)]
    closing = [json.loads(record.value) for record in dataset.records(2_999, 9_000)][1:]
    assert dataset.rows() == 3_003 and [found["id"] for found in closing] == [3_000, 3_001, 3_002]
    (moment,) = {datetime.fromisoformat(found["measured_at"]) for found in closing}
    newest = max(datetime.fromisoformat(found["measured_at"]) for found in real)
    assert newest + timedelta(days=1) <= moment <= newest + timedelta(days=1, minutes=1)
    assert {found["service"] for found in closing} == {"closing"}


@pytest.mark.parametrize("options", [{"row": 3}, {"rows": 0}, {"incidents": 1.5}, {"late_ms": -1}])
def test_an_unknown_or_wrong_option_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        MetricsOptions.model_validate(options)
