"""Large histories are reduced to digests first: which bits they see, and what a checker may rely on."""

from __future__ import annotations

import duckdb
import pytest

from onceproof.judge.checker import Checker, Results, checkers
from onceproof.judge.findings import Outcome
from onceproof.judge.open import open_case
from onceproof.judge.relations import digests
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.inputs import InputRecords
from onceproof.values import digest

from .conftest import StoredRun

CONTENT = '{"id":"4711","carrier":"AA","delay":"-20","fare":"12.5","note":null}'


@pytest.fixture
def by_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST_WHOLE", -1)
    monkeypatch.setattr(InputRecords, "is_cheap", lambda _inputs: False)


def test_every_single_bit_changes_both_digests_and_the_sums() -> None:
    # Seven bits of each byte: with the eighth, the text would not be UTF-8.
    flipped = [
        CONTENT[:n] + chr(ord(CONTENT[n]) ^ (1 << bit)) + CONTENT[n + 1 :]
        for n in range(len(CONTENT))
        for bit in range(7)
    ]
    one, two = digest.of_content("content")
    with duckdb.connect() as db:
        rows = db.execute(f"SELECT {one}, {two} FROM (SELECT unnest($t) AS content)", {"t": [CONTENT, *flipped]})
        firsts, seconds = zip(*rows.fetchall(), strict=True)
        assert len(set(firsts)) == len(set(seconds)) == 1 + len(flipped)
        db.execute("CREATE TABLE sides (flip BIGINT, content VARCHAR, sign INTEGER)")
        pairs = [(n, text, sign) for n, other in enumerate(flipped) for text, sign in ((CONTENT, 1), (other, -1))]
        db.executemany("INSERT INTO sides VALUES (?, ?, ?)", pairs)
        unequal = f"""SELECT flip FROM (SELECT flip, sign, {one} AS digest_1, {two} AS digest_2 FROM sides)
                      GROUP BY flip HAVING {digest.DIFFERENT}"""
        assert len(db.execute(unequal).fetchall()) == len(flipped)


def test_sums_are_exact_and_a_repeated_pair_does_not_cancel() -> None:
    """Two rows too many of the same content, and sums far beyond 64 bits and beyond the digits of a double."""
    one, two = digest.of_content("content")
    rows = f"""SELECT sign, {one} AS digest_1, {two} AS digest_2 FROM (
        SELECT 'r' || range AS content, 1 AS sign FROM range(100000) UNION ALL SELECT 'r' || range, -1 FROM range(100000)"""
    query = f"SELECT {digest.DIFFERENT} FROM ({{}})"
    with duckdb.connect() as db:
        assert db.execute(query.format(f"{rows})")).fetchone() == (False,)
        more = " UNION ALL SELECT 'r7', 1 UNION ALL SELECT 'r7', 1 UNION ALL SELECT 'r8', -1 UNION ALL SELECT 'r8', -1)"
        assert db.execute(query.format(f"{rows}{more}")).fetchone() == (True,)


@pytest.mark.usefixtures("by_digest")
@pytest.mark.parametrize("bit", range(7))
def test_a_flipped_bit_is_never_held(clean_run: StoredRun, bit: int) -> None:
    row = clean_run.tables["output"][-1]
    content = row["content"]
    assert judge(clean_run.save()).outcome is Outcome.HELD
    at = content.index(":") + 1
    row["content"] = content[:at] + chr(ord(content[at]) ^ (1 << bit)) + content[at + 1 :]
    assert judge(clean_run.save()).outcome is not Outcome.HELD


@pytest.mark.usefixtures("by_digest")
def test_a_clean_run_loads_no_row(clean_run: StoredRun) -> None:
    with open_case(clean_run.save()) as case:
        for name in checkers.names():
            assert list(checkers.get(name)().check(case)) == []
        assert case.digest_first
        assert case.number("SELECT count(*) FROM judge.effect_digests") > 0
        assert (
            case.number("SELECT (SELECT count(*) FROM judge.expected) + (SELECT count(*) FROM judge.effect_rows)") == 0
        )


@pytest.mark.usefixtures("by_digest")
def test_a_checker_that_does_not_load_rows_gets_all_of_them(
    clean_run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader(Checker):
        meaning = "reads every row"
        seen: int | None = None

        def check(self, case: object) -> Results:
            number = case.number(
                "SELECT (SELECT count(*) FROM judge.effects) - (SELECT count(*) FROM judge.effect_digests)"
            )  # type: ignore[attr-defined]
            rows = case.number("SELECT count(*) FROM judge.expected")  # type: ignore[attr-defined]
            Reader.seen = rows if number == 0 else None
            yield from ()

    monkeypatch.setattr(checkers, "get", lambda name, get=checkers.get: Reader if name == "unexplained" else get(name))
    assert judge(clean_run.save()).outcome is Outcome.HELD
    assert Reader.seen
