"""What a claim allows, rule by rule. A claim that no checker judges is never held."""

from __future__ import annotations

from typing import Any

import pytest

from onceproof.judge.checker import Checker, checkers
from onceproof.judge.claims import allowance, breaks, needs, unjudged
from onceproof.judge.findings import Finding, Outcome
from onceproof.judge.verdict import judge
from onceproof.scenario.outputs import Claim

STRICT = Claim(delivery="effectively-once", order="per-key", atomic="batch", liveness="recovers")
LOOSE = Claim(delivery="effectively-once", order="none", atomic="none", liveness="none")
OF_AN_OPTIONAL_PROMISE = ["reordered", "stale-tail", "torn-batch"]
OTHERS = [
    *("aborted-read", "commit-ahead-of-effect", "diverged-replay", "duplicate", "hanging-transaction", "input-lost"),
    *(
        "lost-write",
        "misplaced",
        "precommitted-read",
        "sink-disagreement",
        "unexplained",
        "wrong-value",
        "zombie-write",
    ),
    "of-a-third-party",
]
ON_THE_WAY = ["commit-ahead-of-effect", "diverged-replay", "sink-disagreement", "zombie-write"]


def allowed(claim: Claim, anomaly: str, source: str | None = None, *, transient: bool = False) -> str | None:
    return allowance(Finding(anomaly, "out", 1, "", source=source, transient=transient), claim)


@pytest.mark.parametrize("anomaly", checkers.names())
def test_strictest_claim_allows_no_lasting_anomaly(anomaly: str) -> None:
    for source in (None, "fault", "no fault", "batch", "transaction", "duplicate", "unknown"):
        assert allowed(STRICT, anomaly, source) is None


@pytest.mark.parametrize("anomaly", [*OF_AN_OPTIONAL_PROMISE, *OTHERS])
def test_a_lasting_anomaly_violates_unless_its_promise_is_left_out(anomaly: str) -> None:
    assert (allowed(LOOSE, anomaly) is None) == (anomaly in OTHERS)


@pytest.mark.parametrize("anomaly", ON_THE_WAY)
def test_a_transient_anomaly_is_allowed(anomaly: str) -> None:
    for claim in (STRICT, LOOSE):
        assert (allowed(claim, anomaly, transient=True) or "").startswith("transient: ")


@pytest.mark.parametrize("anomaly", sorted({*OTHERS} - {*ON_THE_WAY}))
def test_no_other_anomaly_can_be_transient(anomaly: str) -> None:
    assert allowed(LOOSE, anomaly, transient=True) is None


def test_the_reason_names_a_disagreement_before_a_quiet_point() -> None:
    assert "no quiet point" in (allowed(STRICT, "sink-disagreement", transient=True) or "")


@pytest.mark.parametrize(
    ("atomic", "source", "transient", "violates"),
    [
        ("batch", "batch", True, True),
        ("batch", "batch", False, True),
        ("batch", "transaction", False, True),
        ("transaction", "batch", True, False),
        ("transaction", "batch", False, False),
        ("transaction", "transaction", False, True),
        ("none", "batch", True, False),
        ("none", "batch", False, False),
        ("none", "transaction", False, False),
    ],
)
def test_torn_batch_against_atomic(atomic: Any, source: str, transient: bool, violates: bool) -> None:
    claim = STRICT.model_copy(update={"atomic": atomic})
    assert (allowed(claim, "torn-batch", source, transient=transient) is None) == violates


@pytest.mark.parametrize(("order", "violates"), [("per-key", True), ("per-partition", True), ("none", False)])
def test_reordering_against_the_claimed_order(order: Any, violates: bool) -> None:
    claim = STRICT.model_copy(update={"order": order})
    assert (allowed(claim, "reordered") is None) == violates
    assert (allowed(claim, "zombie-write", "older state", transient=True) is None) == violates


@pytest.mark.parametrize("source", ["batch replay", "task retry", "producer retry", "zombie", "input", "fault"])
def test_at_least_once_allows_duplicates_with_a_cause(source: str) -> None:
    claim = STRICT.model_copy(update={"delivery": "at-least-once"})
    assert source in (allowed(claim, "duplicate", source) or "")


@pytest.mark.parametrize(
    ("anomaly", "source"),
    [
        ("duplicate", "unknown"),
        ("duplicate", None),
        ("lost-write", "fault"),
        ("zombie-write", "wrong"),
        ("wrong-value", None),
        ("unexplained", None),
    ],
)
def test_at_least_once_allows_nothing_else(anomaly: str, source: str | None) -> None:
    assert allowed(STRICT.model_copy(update={"delivery": "at-least-once"}), anomaly, source) is None


def test_at_least_once_allows_copies_by_a_zombie() -> None:
    assert allowed(STRICT.model_copy(update={"delivery": "at-least-once"}), "zombie-write", "duplicate") is not None


@pytest.mark.parametrize("anomaly", ["lost-write", "sink-disagreement", "commit-ahead-of-effect"])
def test_at_most_once_allows_losses_in_a_fault_window(anomaly: str) -> None:
    claim = LOOSE.model_copy(update={"delivery": "at-most-once"})
    assert "a fault struck" in (allowed(claim, anomaly, "fault") or "")
    assert allowed(claim, anomaly, "no fault") is None


@pytest.mark.parametrize("anomaly", ["duplicate", "wrong-value", "unexplained", "input-lost", "hanging-transaction"])
def test_at_most_once_allows_nothing_else(anomaly: str) -> None:
    assert allowed(LOOSE.model_copy(update={"delivery": "at-most-once"}), anomaly, "fault") is None


@pytest.mark.parametrize(("liveness", "violates"), [("recovers", True), ("none", False)])
def test_stale_tail_against_the_claimed_liveness(liveness: Any, violates: bool) -> None:
    assert (allowed(STRICT.model_copy(update={"liveness": liveness}), "stale-tail") is None) == violates


def test_which_anomalies_a_claim_needs_evaluated() -> None:
    known = [*OF_AN_OPTIONAL_PROMISE, *OTHERS]
    assert {name for name in known if not needs(name, STRICT)} == {*ON_THE_WAY, "precommitted-read"}
    left_out = {*ON_THE_WAY, "precommitted-read", *OF_AN_OPTIONAL_PROMISE}
    assert {name for name in known if not needs(name, LOOSE)} == left_out


def test_which_anomalies_break_a_promise() -> None:
    assert [breaks(name, "liveness") for name in OF_AN_OPTIONAL_PROMISE] == [False, True, False]
    assert not any(breaks(name, promise) for name in OTHERS for promise in ("order", "atomic", "liveness"))


def test_registered_checkers_judge_every_promise() -> None:
    assert unjudged(STRICT) == []


class Silent(Checker):
    meaning = "nothing is ever torn"
    rule = checkers.get("torn-batch").rule

    def check(self, _case: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("atomic", ["batch", "transaction"])
def test_a_claim_that_no_checker_judges_is_inconclusive(
    clean_run: Any, monkeypatch: pytest.MonkeyPatch, atomic: str
) -> None:
    checkers.names()  # load the registered checkers before hiding them
    known = {(name,): checkers.get(name) for name in checkers.names() if name != "torn-batch"}
    monkeypatch.setattr(checkers, "_items", known)
    clean_run.scenario["claim"] = {"order": "per-key", "atomic": atomic}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    # One reason, although two outputs have the claim.
    assert verdict.reasons == (f"claim atomic: {atomic} is not judged: no registered checker looks for what breaks it",)
    monkeypatch.setattr(checkers, "_items", {**known, ("torn-batch",): Silent})
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_an_output_s_own_claim_that_no_checker_judges_is_inconclusive(
    clean_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {(name,): checkers.get(name) for name in checkers.names() if name != "stale-tail"}
    monkeypatch.setattr(checkers, "_items", known)
    clean_run.scenario["claim"] = {"order": "none", "liveness": "none"}
    assert judge(clean_run.save()).outcome is Outcome.HELD
    clean_run.scenario["outputs"]["rows"]["claim"] = {"order": "none", "liveness": "recovers"}
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "claim liveness: recovers is not judged" in verdict.reasons[0]
