"""From stored runs to verdicts: what is held, what is inconclusive, and that a violation outranks a doubt."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from onceproof.base.errors import HistoryError
from onceproof.judge.findings import Outcome
from onceproof.judge.relations import expected
from onceproof.judge.verdict import check, judge


def test_clean_run_is_held(clean_run: Any) -> None:
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD, verdict.reasons
    assert verdict.word == "held, no fault injected"
    assert verdict.reasons == ("no fault injected: All 24 output rows from 12 input records match the claim",)
    assert verdict.findings == ()
    assert verdict.not_evaluated == {}
    assert verdict.counts == {
        "input": 12,
        "expected.rows": 12,
        "effects.rows": 12,
        "expected.events": 12,
        "effects.events": 12,
        "batches": 2,
        "restarts": 0,
    }


def test_a_run_is_held_if_its_fault_hit(clean_run: Any) -> None:
    clean_run.scenario["chaos"] = [{"fault": "crash"}]
    clean_run.fault(batch=1)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert verdict.word == "held"
    assert [(f.fault, f.batch, f.hit) for f in verdict.faults] == [("crash", 1, True)]


def test_check_gives_the_same_verdict_in_another_folder(clean_run: Any, tmp_path: Any) -> None:
    clean_run.record("events", {"p": 9, "o": 9, "k": "k", "n": 1})
    here = clean_run.save()
    there = tmp_path / "elsewhere"
    shutil.copytree(here, there)
    documents = []
    for folder in (here, there):
        check(folder)
        documents.append(json.loads((folder / "verdict.json").read_text()))
        documents[-1].pop("seconds")
    assert documents[0] == documents[1]
    assert documents[0]["verdict"] == "violated"
    assert documents[0]["anomalies"] == {"unexplained": 1}
    assert not list(here.glob(".judge-*"))


def test_a_run_that_did_not_drain_is_inconclusive(clean_run: Any) -> None:
    clean_run.document.update(drained=False, drain_note="stuck at 3")
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "did not drain, so more output may still come: stuck at 3" in verdict.reasons[0]


def test_an_allowed_stale_tail_does_not_excuse_an_output_that_must_recover(clean_run: Any) -> None:
    clean_run.document["drained"] = False
    clean_run.scenario["outputs"]["events"]["claim"] = {"liveness": "none"}
    kept = [row for row in clean_run.tables["output"] if (row["output"], row["offset"]) != ("events", 5)]
    clean_run.tables["output"] = kept
    clean_run.tables["progress"].clear()
    clean_run.progress({0: 4, 1: 4})
    verdict = judge(clean_run.save())
    assert all(f.allowed is not None for f in verdict.findings), verdict.findings
    assert any(f.anomaly == "stale-tail" for f in verdict.findings)
    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.reasons


def test_the_log_of_a_job_that_ended_too_early_is_shown(clean_run: Any) -> None:
    clean_run.document.update(drained=False, drain_note="no checkpoint in 60 s")
    clean_run.document["job"]["traceback"] = "AnalysisException: no such topic"
    (reason,) = judge(clean_run.save()).reasons
    assert reason.endswith("no checkpoint in 60 s; from the job's log:\nAnalysisException: no such topic")


def test_a_job_that_cannot_start_is_reported_with_the_cause_first_and_a_hint(clean_run: Any) -> None:
    refused = "org.postgresql.util.PSQLException: Connection to localhost:5432 refused."
    clean_run.document["job"] |= {
        "died_before_fault": True,
        "traceback": "\n".join(f"at frame {n}" for n in range(70)),
        "failure": {"causes": [refused], "foreign_address": "localhost:5432", "log": "logs/driver-0.log"},
    }
    (reason,) = judge(clean_run.save()).reasons
    first, cause, log, hint = reason.splitlines()
    assert first == "the job died before any fault, so the job itself is broken:"
    assert cause == refused
    assert log == "full log: logs/driver-0.log in the run directory"
    assert hint.startswith("localhost:5432 is not an address of this run") and "{postgres.jdbc}" in hint


def test_a_job_that_fails_without_an_exception_is_reported_with_its_last_lines(clean_run: Any) -> None:
    failure = {"causes": [], "foreign_address": None, "log": "logs/driver-0.log", "hint": "install it"}
    clean_run.document["job"] |= {"died_before_fault": True, "failure": failure, "log_tail": "no table named x"}
    (reason,) = judge(clean_run.save()).reasons
    assert reason.splitlines()[1:] == [
        "no table named x",
        "full log: logs/driver-0.log in the run directory",
        "install it",
    ]


def test_a_job_that_never_reads_its_topic_has_no_other_reason(clean_run: Any) -> None:
    clean_run.document.update(
        drained=False, stuck=False, never_reads=True, drain_note="the job never reads topic in: query q reads x"
    )
    clean_run.document["job"]["traceback"] = "waiting for x"
    clean_run.tables["output"].clear()
    clean_run.tables["progress"].clear()
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    (reason,) = verdict.reasons
    assert reason == "the job never reads topic in: query q reads x; from the job's log:\nwaiting for x"


def test_a_job_that_wrote_nothing_has_this_as_first_reason_with_its_last_lines(clean_run: Any) -> None:
    clean_run.document["job"]["log_tail"] = "batch 1: dry run"
    clean_run.tables["output"] = [row for row in clean_run.tables["output"] if row["output"] != "events"]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.reasons[0] == (
        "nothing was written to output events, where 12 records are expected; the job's last log lines:\nbatch 1: dry run"
    )
    assert not any("output rows" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("outcome", [Outcome.HELD, Outcome.INCONCLUSIVE, Outcome.VIOLATED])
def test_a_restart_by_the_harness_is_reported(clean_run: Any, outcome: Outcome) -> None:
    clean_run.document["nudged"] = True
    clean_run.scenario["limits"] = {"stuck_s": 45}
    if outcome is Outcome.VIOLATED:
        clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0})
    elif outcome is Outcome.INCONCLUSIVE:
        clean_run.fault(batch=1, hit=False)
    verdict = judge(clean_run.save())
    assert verdict.outcome is outcome
    assert verdict.reasons[-1] == "the job was restarted by the harness after 45 s of silence"
    assert len(verdict.reasons) == (3 if outcome is Outcome.VIOLATED else 2)


@pytest.mark.parametrize(
    ("fired", "reason"), [(True, "fired but did not hit: it was seen"), (False, "was armed and never fired")]
)
def test_a_fault_that_did_not_hit_is_inconclusive(clean_run: Any, fired: bool, reason: str) -> None:
    clean_run.fault(batch=1, hit=False, fired=fired)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "crash driver (batch 1 at after-sink-commit)" in verdict.reasons[0]
    assert reason in verdict.reasons[0]


def test_a_fault_that_the_history_does_not_mention_is_inconclusive(clean_run: Any) -> None:
    clean_run.scenario["chaos"] = [{"fault": "crash"}]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "does not mention 1 of the scenario's faults" in verdict.reasons[0]


def test_a_broken_job_is_neither_held_nor_violated(clean_run: Any) -> None:
    clean_run.document["job"] = {"starts": 1, "died_before_fault": True, "traceback": "SyntaxError: oops"}
    clean_run.document["drained"] = False
    clean_run.tables["output"].clear()
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    assert "SyntaxError: oops" in verdict.reasons[0]


def test_a_violation_outranks_doubts_and_lists_them(clean_run: Any) -> None:
    clean_run.fault(batch=1, hit=False)
    clean_run.record("events", {"p": 0, "o": 0, "k": "k0", "n": 0})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.VIOLATED
    assert verdict.reasons[0].startswith("duplicate in output events")
    assert any("did not hit" in reason for reason in verdict.reasons[1:])


def test_a_run_without_committed_input_is_inconclusive(stored_run: Any) -> None:
    stored_run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["n"]}}
    stored_run.scenario["oracle"] = {"kind": "sql", "queries": {"events": 'SELECT 1 AS n FROM "in"'}}
    stored_run.send("k", {"n": 1}, visibility="aborted")
    verdict = judge(stored_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "no committed record" in verdict.reasons[0]


def test_if_no_input_was_fed_the_reason_for_this_is_the_only_one(stored_run: Any) -> None:
    stored_run.scenario["chaos"] = [{"fault": "crash"}]
    stored_run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["n"]}}
    stored_run.scenario["oracle"] = {"kind": "sql", "queries": {"events": 'SELECT n FROM "in"'}}
    stored_run.document.update(drained=False, drain_note="the query has no checkpoint")
    verdict = judge(stored_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == ("no input was fed: the query has no checkpoint",)


def test_an_oracle_that_expects_nothing_is_inconclusive(clean_run: Any) -> None:
    clean_run.scenario["outputs"].pop("rows")
    clean_run.scenario["oracle"] = {
        "kind": "sql",
        "queries": {"events": 'SELECT *, 1 AS p, 1 AS o FROM "in" WHERE n > 999'},
    }
    clean_run.tables["output"].clear()
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "expects nothing in output events" in verdict.reasons[0]


def test_an_undecodable_record_is_inconclusive(clean_run: Any) -> None:
    clean_run.record("events", "{not json")
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "1 record has no JSON object as value, the first at events/0@6" in verdict.reasons[0]


def test_a_column_that_the_oracle_does_not_give_is_inconclusive(clean_run: Any) -> None:
    for change in clean_run.tables["output"]:
        if change["output"] == "events":
            change["content"] = json.dumps({**json.loads(change["content"]), "loaded_at": "now"})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "loaded_at" in verdict.reasons[0]
    clean_run.scenario["outputs"]["events"]["ignore"] = ["loaded_at"]
    assert judge(clean_run.save()).outcome is Outcome.HELD


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ('SELECT p, o FROM "nowhere"', "nowhere"),
        ('SELECT n AS p FROM "in"', "no column 'o', which is part of its identity"),
        ('SELECT _partition AS p, _offset AS o, _offset FROM "in"', "it needs both"),
        ("SELECT * FROM read_text('/etc/hostname')", "read_text() is not a function of the input"),
        ("SELECT 1 AS p, 2 AS o); DROP TABLE judge.expected; SELECT (1", "this is not SQL"),
        ("SELECT 1 AS p, 2 AS o; SELECT 1", "2 statements"),
    ],
)
def test_an_oracle_that_fails_is_inconclusive(clean_run: Any, query: str, reason: str) -> None:
    clean_run.scenario["oracle"]["queries"]["events"] = query
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "output 'events'" in verdict.reasons[0]
    assert reason in verdict.reasons[0]


def test_a_crashed_checker_makes_the_run_inconclusive(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceproof.checkers.unexplained import Unexplained

    def crash(self: Any, case: Any) -> Any:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(Unexplained, "check", crash)
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "checker unexplained crashed: by design" in verdict.reasons[0]
    assert "ZeroDivisionError" in verdict.not_evaluated["unexplained"]


def test_commits_that_do_not_replay_to_the_snapshot_are_not_used(clean_run: Any) -> None:
    clean_run.snapshot["rows"] = [*clean_run._replayed("rows")]
    clean_run.tables["output"] = [c for c in clean_run.tables["output"] if c["output"] != "rows" or c["commit_order"]]
    verdict = judge(clean_run.save())
    # The snapshot is still judged; its rows have no order.
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.findings == ()
    assert list(verdict.not_evaluated) == ["reordered@rows"]
    clean_run.scenario["claim"] = {"order": "none"}
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_deleted_and_rewritten_rows_are_correct_effects(clean_run: Any) -> None:
    """A sink that deletes a batch's rows before it writes them again is correct."""
    last = [json.loads(c["content"]) for c in clean_run.tables["output"] if c["output"] == "rows" and c["commit_order"]]
    clean_run.commit("rows", *(("delete", row, None) for row in last), *(("insert", None, row) for row in last))
    verdict = judge(clean_run.save())
    # The remaining rows do not show in which order they first became visible.
    assert (verdict.outcome, verdict.findings) == (Outcome.INCONCLUSIVE, ())
    assert list(verdict.not_evaluated) == ["reordered@rows"]
    clean_run.scenario["claim"] = {"order": "none"}
    assert judge(clean_run.save()).outcome is Outcome.HELD


def test_updates_and_truncates_are_replayed(clean_run: Any) -> None:
    clean_run.scenario["claim"] = {"order": "none"}  # the updated row has the position of its last commit
    first, *others = clean_run._replayed("rows")
    clean_run.commit("rows", ("truncate", None, None))
    clean_run.insert("rows", {**first, "n": "99"}, *others)
    clean_run.commit("rows", ("update", {**first, "n": "99"}, first))
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert list(verdict.not_evaluated) == ["reordered@rows"]


def test_an_output_may_have_its_own_claim(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["events"]["claim"] = {"delivery": "at-least-once"}
    clean_run.tables["batches"][-1]["committed_by"] = clean_run.tables["batches"][-2]["committed_by"] = 1
    clean_run.record("events", {"p": 0, "o": 4, "k": "k0", "n": 10})
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert verdict.findings[0].allowed == "at-least-once allows a duplicate whose cause is known: batch replay"
    assert verdict.claim.outputs["events"]["delivery"] == "at-least-once"


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Any) -> None:
    with pytest.raises(HistoryError, match="is not a run: it is an empty folder"):
        judge(tmp_path)


def test_a_damaged_history_is_refused(clean_run: Any) -> None:
    folder = clean_run.save()
    file = folder / "history" / "output.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(HistoryError, match=r"output\.parquet is damaged"):
        judge(folder)


def test_the_verdict_on_an_import_says_that_no_fault_was_exercised(clean_run: Any) -> None:
    clean_run.document["imported"] = True
    clean_run.scenario["claim"] = {"order": "none"}  # a snapshot shows no order
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.HELD
    assert verdict.reasons[0].endswith("match the claim; imported history: no fault was exercised")


def test_ignored_columns_are_always_listed(clean_run: Any) -> None:
    clean_run.scenario["outputs"]["events"]["compare_key"] = None
    for record in clean_run.tables["output"]:
        record["key"] = json.loads(record["content"])["k"].encode() if record["output"] == "events" else None
    assert judge(clean_run.save()).ignored == {}
    clean_run.scenario["outputs"]["rows"]["ignore"] = ["loaded_at", "id"]
    assert judge(clean_run.save()).to_json()["ignored"] == {"rows": ["loaded_at", "id"]}


def test_the_counts_include_those_of_the_oracle(clean_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "check_identities", lambda case: case.notes.update({"late.in": 3}))
    assert judge(clean_run.save()).counts["late.in"] == 3


def test_an_identity_that_is_expected_twice_is_a_doubt_in_addition_to_findings(clean_run: Any) -> None:
    for output in ("rows", "events"):
        clean_run.scenario["outputs"][output]["identity"] = ["k"]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "identity: [k] does not name a single row" in verdict.reasons[0]
    assert {batch.verdict for batch in verdict.batches} == {Outcome.INCONCLUSIVE}


@pytest.mark.parametrize("claim", [{"liveness": "none"}, {"delivery": "at-most-once", "liveness": "none"}])
def test_an_empty_output_is_not_held(stored_run: Any, claim: dict[str, str]) -> None:
    run = stored_run
    run.scenario["outputs"] = {"rows": {"table": "rows", "identity": ["n"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": 'SELECT n, _partition, _offset FROM "in"'}}
    run.scenario["claim"] = claim
    run.document |= {"drained": False, "stuck": True}
    for n in range(2):
        run.send("k", {"n": n})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert "output rows is empty" in verdict.reasons[0]
    run.insert("rows", {"n": 0})
    assert judge(run.save()).outcome == "held"


def test_an_input_topic_may_be_named_input(stored_run: Any) -> None:
    run = stored_run
    run.scenario["input"] = [{"topic": topic, "dataset": "numbers"} for topic in ("input", "other")]
    run.scenario["outputs"] = {"rows": {"table": "rows", "identity": ["n"]}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"rows": 'SELECT n FROM "input" UNION ALL SELECT n FROM other'}}
    for n, topic in enumerate(("input", "other")):
        run.send("k", {"n": n}, topic=topic)
        run.insert("rows", {"n": n})
    run.add("batches", {"query": "q", "batch": 0, "topic": "input", "partition": 0, "start_offset": 0, "end_offset": 1})
    verdict = judge(run.save())
    assert verdict.outcome == "held"
    assert verdict.counts["input"] == 2
    assert verdict.batches[0].records == 1


def test_a_table_that_does_not_exist_is_not_judged(clean_run: Any) -> None:
    """A scenario that misspells it looks the same as a job that lost everything."""
    note = "there is no table 'row': nothing created it, or it has another name (did you mean 'rows'?)"
    clean_run.document["outputs"] = {"rows": {"columns": None, "note": note, "rows": 0}}
    clean_run.tables["output"] = [row for row in clean_run.tables["output"] if row["output"] != "rows"]
    verdict = judge(clean_run.save())
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == (f"output rows cannot be judged: {note}",)
    assert not any(finding.output == "rows" for finding in verdict.findings)


def test_an_empty_table_that_exists_is_judged(clean_run: Any) -> None:
    clean_run.document["outputs"] = {"rows": {"columns": {"p": "integer"}, "note": None, "rows": 0}}
    clean_run.tables["output"] = [row for row in clean_run.tables["output"] if row["output"] != "rows"]
    assert judge(clean_run.save()).outcome is Outcome.VIOLATED
