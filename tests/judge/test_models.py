"""What counts as an effect depends on the output's model: kind, compared columns, tolerance, decoding, identity."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceproof.judge.open import open_case
from onceproof.judge.verdict import judge

LAST = """SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k"""
STATES = """SELECT k, sum(n) OVER (PARTITION BY k ORDER BY _offset) AS total, _partition, _offset, _key FROM "in" """


def scenario(run: Any, query: str, **output: Any) -> Any:
    run.scenario["outputs"] = {"out": {"identity": ["k"], **output}}
    run.scenario["oracle"] = {"kind": "sql", "queries": {"out": query}}
    run.progress({0: 100})
    return run


def put(run: Any, key: str | None, row: Any) -> None:
    run.record("out", row)
    run.tables["output"][-1]["key"] = key and key.encode()


def anomalies(run: Any) -> dict[str, int]:
    verdict = judge(run.save())
    assert not any("Error" in why for why in verdict.not_evaluated.values()), verdict.not_evaluated
    return verdict.anomalies()


def test_upsert_into_a_topic_keeps_the_last_of_each_key(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, topic="out", kind="upsert")
    for n in (1, 2, 3):
        run.send("a", {"k": "a", "n": n})
        put(run, "a", {"k": "a", "n": n})
    assert anomalies(run) == {}
    put(run, "a", {"k": "a", "n": 2})
    assert anomalies(run) == {"wrong-value": 1}


def test_a_tombstone_leaves_nothing(stored_run: Any) -> None:
    run = scenario(stored_run, LAST + " HAVING max_by(n, _offset) >= 0", topic="out", kind="upsert")
    for key, n in (("a", 1), ("b", 1), ("a", -1)):
        run.send(key, {"k": key, "n": n})
        put(run, key, {"k": key, "n": n} if n > 0 else None)
    assert anomalies(run) == {}
    put(run, "b", None)
    assert anomalies(run) == {"lost-write": 1}


def test_upsert_without_keys_goes_by_identity(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, topic="out", kind="upsert")
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
        put(run, None, {"k": "a", "n": n})
    assert anomalies(run) == {}


@pytest.mark.parametrize(
    ("query", "first", "again"),
    [
        ('SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k', "1", "1.0"),
        ('SELECT k, max_by(n, _offset) AS n FROM "in" GROUP BY k', "1", "10e-1"),
        (
            'SELECT k::TIMESTAMPTZ AS k, max_by(n, _offset) AS n FROM "in" GROUP BY ALL',
            '"2026-01-01T00:00:00Z"',
            '"2026-01-01T01:00:00.000+01:00"',
        ),
    ],
)
def test_upsert_without_keys_knows_an_identity_that_is_written_in_another_way(
    stored_run: Any, query: str, first: str, again: str
) -> None:
    run = scenario(stored_run, query, topic="out", kind="upsert")
    for n, written in enumerate((first, again)):
        run.send("a", {"k": json.loads(first), "n": n})
        put(run, None, f'{{"k": {written}, "n": {n}}}')
    assert anomalies(run) == {}
    put(run, None, f'{{"k": {first}, "n": 0}}')
    assert anomalies(run) == {"wrong-value": 1}


def test_upsert_without_keys_tells_apart_numbers_that_are_the_same_double(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k::DECIMAL(38, 3) AS k, n FROM "in"', topic="out", kind="upsert")
    for n, k in enumerate(("12345678901234567.125", "12345678901234567.25")):
        run.send("a", json.dumps({"k": k, "n": n}).encode())
        put(run, None, f'{{"k": {k}, "n": {n}}}')
    assert anomalies(run) == {}


def test_upsert_with_and_without_keys(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, topic="out", kind="upsert")
    for key, k, n in (("a", "a", 1), (None, "b", 1), ("a", "a", 2), (None, "b", 2)):
        run.send("x", {"k": k, "n": n})
        put(run, key, {"k": k, "n": n})
    assert anomalies(run) == {}
    put(run, None, {"k": "a", "n": 2})  # under no key, so it replaces nothing
    assert anomalies(run) == {"duplicate": 1}


def test_identities_with_nulls_in_different_places_are_different(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k, l FROM "in"', topic="out", kind="upsert", identity=["k", "l"])
    for row in ({"k": None, "l": "x"}, {"k": "x", "l": None}):
        run.send("a", row)
        put(run, None, row)
    assert anomalies(run) == {}


def test_effects_of_an_upserted_table_are_its_rows(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, table="out", kind="upsert")
    run.send("a", {"k": "a", "n": 1})
    run.send("a", {"k": "a", "n": 2})
    run.insert("out", {"k": "a", "n": 1})
    run.commit("out", ("update", {"k": "a", "n": 1}, {"k": "a", "n": 2}))
    assert anomalies(run) == {}
    run.commit("out", ("update", {"k": "a", "n": 2}, {"k": "a", "n": 1}))
    assert anomalies(run) == {"wrong-value": 1}


def test_an_upsert_whose_identity_is_expected_twice_is_not_judged(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k, n FROM "in"', table="out", kind="upsert")
    run.send("a", {"k": "a", "n": 1})
    run.send("a", {"k": "a", "n": 2})
    run.insert("out", {"k": "a", "n": 2})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert any("outputs: out: identity: [k] does not name a single row" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("where", ["topic", "table"])
def test_a_changelog_may_leave_out_states_except_the_last(stored_run: Any, where: str) -> None:
    run = scenario(stored_run, STATES, kind="changelog", **{where: "out"})

    def write(total: int) -> None:
        if where == "topic":
            put(run, "a", {"k": "a", "total": total})
        else:
            run.insert("out", {"k": "a", "total": total})

    for n in (1, 2, 3):  # states 1, 3, 6
        run.send("a", {"k": "a", "n": n})
    write(3)
    assert anomalies(run) == {"lost-write": 1}
    write(6)
    assert anomalies(run) == {}
    write(6)
    assert anomalies(run) == {"duplicate": 1}
    write(7)
    assert anomalies(run) == {"duplicate": 1, "wrong-value": 1}


@pytest.mark.parametrize(("found", "left_out"), [("1366", 1), ("36", 2), ("16", 1), ("1363", 0)])
def test_how_many_states_the_oracle_gives_does_not_depend_on_what_a_changelog_leaves_out(
    stored_run: Any, found: str, left_out: int
) -> None:
    """The gate compares this number: how many states a batch merges must not look like less coverage."""
    run = scenario(stored_run, STATES, kind="changelog", topic="out")
    for n in (1, 2, 3, -3):  # states 1, 3, 6, 3
        run.send("a", {"k": "a", "n": n})
    for total in found:
        put(run, "a", {"k": "a", "total": int(total)})
    counts = judge(run.save()).counts
    assert (counts["expected.out"], counts.get("oracle.out", counts["expected.out"])) == (4 - left_out, 4)


def test_a_value_that_is_expected_twice_stays_although_another_is_near(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k, n FROM "in"', topic="out", tolerance={"n": {"absolute": 0.01}})
    for n in (1, 1.005):
        run.send("a", {"k": "a", "n": n})
        put(run, "a", {"k": "a", "n": n})
    assert anomalies(run) == {}


def test_a_changelog_that_goes_back_is_reordered(stored_run: Any) -> None:
    run = scenario(stored_run, STATES, kind="changelog", topic="out")
    run.scenario["claim"] = {"order": "per-key"}
    for n in (1, 2, 3):
        run.send("a", {"k": "a", "n": n})
    for total in (1, 6, 3):
        put(run, "a", {"k": "a", "total": total})
    assert anomalies(run) == {"reordered": 1}


@pytest.mark.parametrize(
    ("states", "found", "expected"),
    [
        ("ABAC", "ABC", {}),
        ("ABAC", "BAC", {}),
        ("ABAC", "AAC", {}),
        ("ABA", "BA", {}),
        ("ABA", "A", {}),
        ("ABA", "AB", {"reordered": 1}),
        ("ABA", "BAA", {"reordered": 1}),
        ("ABA", "AAB", {"reordered": 1}),
        ("ABA", "AAA", {"duplicate": 1}),
        ("ABA", "B", {"lost-write": 1}),
        ("ABAC", "ABAAC", {"duplicate": 1}),
        ("ABAC", "BAAC", {"reordered": 1}),
    ],
)
def test_a_changelog_that_returns_to_a_state(
    stored_run: Any, states: str, found: str, expected: dict[str, int]
) -> None:
    run = scenario(stored_run, 'SELECT k, s, _partition, _offset, _key FROM "in"', kind="changelog", topic="out")
    run.scenario["claim"] = {"order": "per-key"}
    for state in states:
        run.send("a", {"k": "a", "s": state})
    for state in found:
        put(run, "a", {"k": "a", "s": state})
    assert anomalies(run) == expected


@pytest.mark.parametrize(("twice", "found"), [('"n": 2, "n": 1', {}), ('"n": 1, "n": 2', {"wrong-value": 1})])
def test_the_last_of_two_members_with_the_same_name_counts(stored_run: Any, twice: str, found: dict[str, int]) -> None:
    run = scenario(stored_run, 'SELECT k, n FROM "in"', topic="out")
    run.send("a", {"k": "a", "n": 1})
    put(run, "a", f'{{"k": "a", {twice}}}')
    assert anomalies(run) == found


def test_a_changelog_whose_states_have_no_order_is_not_judged(stored_run: Any) -> None:
    run = scenario(stored_run, STATES, kind="changelog", topic="out")
    for partition, n in ((0, 1), (0, 2), (1, 3)):
        run.send("a", {"k": "a", "n": n}, partition=partition)
    for total in (1, 3, 6):
        put(run, "a", {"k": "a", "total": total})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert any("come from several input partitions" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("where", ["topic", "table"])
@pytest.mark.parametrize("name", ['a"b', "a.b", "a/b~c", "$", "a*"])
def test_columns_may_have_any_name(stored_run: Any, name: str, where: str) -> None:
    column = '"' + name.replace('"', '""') + '"'
    run = scenario(stored_run, f'SELECT k AS {column}, n FROM "in"', kind="upsert", identity=[name], **{where: "out"})
    for key in ("a", "b"):
        run.send(key, {"k": key, "n": 1})
    for key, n in (("a", 1), ("b", 2)):
        if where == "topic":
            put(run, None, {name: key, "n": n})
        else:
            run.insert("out", {name: key, "n": n})
    (finding,) = judge(run.save()).findings
    assert (finding.anomaly, finding.total, finding.witnesses[0].identity) == ("wrong-value", 1, {name: "b"})


def test_a_changelog_needs_causes(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, kind="changelog", topic="out")
    run.send("a", {"k": "a", "n": 1})
    put(run, "a", {"k": "a", "n": 1})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert any("must give _partition and _offset" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(
    ("tolerance", "found", "outcome"),
    [
        ({"absolute": 0.5}, 10.5, "held"),
        ({"absolute": 0.5}, 10.51, "violated"),
        ({"relative": 0.1}, 9.0, "held"),
        ({"relative": 0.1}, 8.9, "violated"),
        ({"absolute": 0.001}, 10.001, "held"),
        ({"absolute": 1.0}, None, "violated"),
        ({"absolute": 1.0}, "ten", "violated"),
    ],
)
def test_numbers_within_the_tolerance_are_equal(
    stored_run: Any, tolerance: dict[str, float], found: Any, outcome: str
) -> None:
    query = 'SELECT k, n::DOUBLE AS n, NULL::INT AS m FROM "in"'
    run = scenario(stored_run, query, table="out", tolerance={"n": tolerance})
    run.send("a", {"k": "a", "n": 10})
    run.insert("out", {"k": "a", "n": found, "m": None})
    assert judge(run.save()).outcome == outcome


@pytest.mark.parametrize(
    ("wanted", "tolerance", "found", "outcome"),
    [
        ("12345678901234567.89::DECIMAL(30, 2)", 0.01, "12345678901234567.90", "held"),
        ("12345678901234567.89::DECIMAL(30, 2)", 0.01, "12345678901234567.91", "violated"),
        ("0.1::DECIMAL(30, 20)", 0.001, "0.101", "held"),
        ("0.1::DECIMAL(30, 20)", 0.001, "0.10100000000000000001", "violated"),
        ("10000000.0000000000001::DECIMAL(30, 13)", 1e-13, "10000000.0000000000003", "violated"),
    ],
)
def test_tolerance_beyond_the_digits_of_a_double(
    stored_run: Any, wanted: str, tolerance: float, found: str, outcome: str
) -> None:
    query = f'SELECT k, {wanted} AS n FROM "in"'
    run = scenario(stored_run, query, table="out", tolerance={"n": {"absolute": tolerance}})
    run.send("a", {"k": "a"})
    run.insert("out", {"k": "a", "n": found})
    assert judge(run.save()).outcome == outcome


def test_a_tolerance_applies_to_its_column_only(stored_run: Any) -> None:
    query = 'SELECT k, n::DOUBLE AS n, n::DOUBLE AS m FROM "in"'
    run = scenario(stored_run, query, topic="out", tolerance={"n": {"absolute": 1}})
    run.send("a", {"k": "a", "n": 10})
    put(run, "a", {"k": "a", "n": 10.4, "m": 10.4})
    (finding,) = judge(run.save()).findings
    assert finding.anomaly == "wrong-value"
    assert "m" in finding.summary


def test_only_the_columns_under_compare_are_compared(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k, n FROM "in"', topic="out", compare=["n"])
    run.send("a", {"k": "a", "n": 1})
    put(run, "a", {"k": "a", "n": 1, "noise": 7})
    assert anomalies(run) == {}


def test_a_compared_column_that_the_oracle_lacks_is_inconclusive(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k FROM "in"', topic="out", compare=["n"])
    run.send("a", {"k": "a", "n": 1})
    put(run, "a", {"k": "a", "n": 1})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert any("has no column 'n'" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("decode", "of"), [("string", "decode(value)"), ("bytes", "value")])
def test_values_that_are_not_json(stored_run: Any, decode: str, of: str) -> None:
    query = f'SELECT {of} AS value, _topic, _partition, _offset, _key FROM (SELECT *, _value AS value FROM "in")'
    run = scenario(stored_run, query, topic="out", decode=decode, identity=["value"])
    for text in ("one", 'two"'):
        run.send("k", text.encode())
        put(run, "k", text)
    assert anomalies(run) == {}
    run.tables["output"].pop()
    assert anomalies(run) == {"lost-write": 1}


def test_bytes_that_are_not_text(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT _value AS value FROM "in"', topic="out", decode="bytes", identity=["value"])
    run.send("k", b"\xff\x00")
    put(run, "k", None)
    run.tables["output"][-1]["raw"] = b"\xff\x00"
    assert anomalies(run) == {}


def test_an_identity_that_is_expected_twice_is_inconclusive(stored_run: Any) -> None:
    run = scenario(stored_run, 'SELECT k, n FROM "in"', topic="out")
    for n in (1, 2):
        run.send("a", {"k": "a", "n": n})
        put(run, "a", {"k": "a", "n": n})
    verdict = judge(run.save())
    assert verdict.outcome == "inconclusive"
    assert any("expected more than once" in reason for reason in verdict.reasons)


def test_uncommitted_holds_what_only_uncommitted_input_explains(clean_run: Any) -> None:
    clean_run.send("k0", {"k": "k0", "n": 77}, visibility="aborted")
    with open_case(clean_run.save()) as case:
        assert case.uncommitted()
        rows = case.rows("SELECT * FROM judge.uncommitted ORDER BY output")
    assert [(r["output"], json.loads(r["content"])["n"], r["offset"]) for r in rows] == [
        ("events", "77", 8),
        ("rows", "77", 8),
    ]


def test_changes_lists_every_write_with_its_transaction_and_time(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, topic="out", kind="upsert")
    run.send("a", {"k": "a", "n": 1})
    for visibility, marker in (("committed", 10), ("aborted", 11), ("open", None)):
        run.record("out", {"k": "a", "n": 1}, visibility=visibility)
        producer = {"producer_id": 5, "producer_epoch": len(run.tables["output"]), "timestamp_ms": 50}
        ends = {"txn_end_offset": marker, "txn_end_ms": None if marker is None else 90 + marker}
        run.tables["output"][-1].update(producer | ends)
    with open_case(run.save()) as case:
        case.changes()
        rows = case.rows('SELECT visibility, txn, at_ms, op FROM judge.changes ORDER BY "offset"')
    assert [tuple(r.values()) for r in rows] == [
        ("committed", "5:1", 100, "insert"),
        ("aborted", "5:2", None, "insert"),
        ("open", "5:3", None, "insert"),
    ]


def test_changes_lists_deletes_with_their_identity(stored_run: Any) -> None:
    run = scenario(stored_run, LAST, table="out", kind="upsert")
    run.send("a", {"k": "a", "n": 1})
    run.insert("out", {"k": "a", "n": 1}, {"k": "b", "n": 1})
    run.commit("out", ("delete", {"k": "b", "n": 1}, None))
    with open_case(run.save()) as case:
        case.changes()
        rows = case.rows("SELECT id, content IS NULL AS gone, op FROM judge.changes ORDER BY pos, id")
    assert [(json.loads(r["id"])["k"], r["gone"], r["op"]) for r in rows] == [
        ("a", False, "insert"),
        ("b", False, "insert"),
        ("b", True, "delete"),
    ]


def test_caused_lists_causes_with_their_batches(clean_run: Any) -> None:
    again = clean_run.tables["output"][0]
    clean_run.add("output", {**again, "offset": 12, "xid": 900, "commit_order": 9})
    with open_case(clean_run.save()) as case:
        case.caused()
        rows = case.rows("""SELECT "partition", "offset", nth, batch, query FROM judge.caused WHERE output = 'rows'
                            ORDER BY ALL""")
    assert len(rows) == 13
    assert [tuple(r.values()) for r in rows[:2]] == [(0, 0, 1, 0, "q"), (0, 0, 2, 0, "q")]
    assert {r["batch"] for r in rows if r["offset"] > 3} == {1}


@pytest.mark.parametrize("expected", ["nan", "inf"])
def test_no_number_is_within_a_tolerance_of_nan_or_an_infinity(stored_run: Any, expected: str) -> None:
    tolerance = {"x": {"absolute": 0.5, "relative": 0.5}}
    query = f"""SELECT k, '{expected}'::DOUBLE AS x FROM "in" """
    run = scenario(stored_run, query, table="out", tolerance=tolerance)
    for k, found in (("a", "5.0"), ("b", expected)):
        run.send(k, {"k": k})
        run.insert("out", {"k": k, "x": found})
    assert anomalies(run) == {"wrong-value": 1}
