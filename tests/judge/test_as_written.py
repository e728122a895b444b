"""Values of a large history are first compared as they are written: this must never find more, or less, than decoding them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from onceproof.judge.open import open_case
from onceproof.judge.relations import as_written, digests
from onceproof.judge.verdict import judge
from onceproof.oracle.contract.inputs import InputRecords
from onceproof.values import digest, written
from onceproof.values.canonical import quote
from onceproof.values.written import Form, Member, form_of

from .conftest import StoredRun

FORM = Form((Member("id", quoted=False), Member("name", quoted=True), Member("fare", quoted=False, places=2)))
QUERY = 'SELECT _partition AS p, _offset AS o, name, n, fare, ok, note, _topic, _partition, _offset, _key FROM "in"'


def by_digest(path: Path, monkeypatch: pytest.MonkeyPatch, *, forms: bool = True) -> dict[str, Any]:
    """The verdict by digests; with ``forms=False``, after decoding every value."""
    with monkeypatch.context() as patch:
        patch.setattr(digests, "MOST_WHOLE", -1)
        patch.setattr(InputRecords, "is_cheap", lambda _inputs: False)
        if not forms:
            patch.setattr(written, "form_of", lambda _texts: None)
        return verdict(path)


def verdict(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(judge(path).to_json(), default=str))
    del document["seconds"]
    return document


def texts(form: Form, rows: list[dict[str, str | None]], leading: list[str | None] | None = None) -> list[str]:
    """The texts of rows of canonical texts, each with one more text before it."""
    names = [member.name for member in form.members]
    columns = [*names, *(["key"] if leading is not None else [])]
    fields = {name: quote(name) for name in names}
    made = form.text(fields, [quote("key")] if leading is not None else [])
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE rows ({', '.join(f'{quote(name)} VARCHAR' for name in columns)})")
        for number, row in enumerate(rows):
            values = [*(row[name] for name in names), *([leading[number]] if leading is not None else [])]
            db.execute(f"INSERT INTO rows VALUES ({', '.join('?' * len(values))})", values)
        return [text for (text,) in db.execute(f"SELECT {made} FROM rows").fetchall()]


def test_a_form_is_found() -> None:
    values = [f'{{"id":{n},"name":"n{n}","fare":{n}.{n % 100:02}}}' for n in range(100)]
    assert form_of(values) == FORM
    spaced = [value.replace(":", ": ").replace(",", ", ") for value in values]
    assert form_of(spaced) == Form(FORM.members, ": ", ", ")
    # Too few numbers to know that they all have two places.
    assert form_of(values[:10]) == Form((*FORM.members[:2], Member("fare", quoted=False)))


@pytest.mark.parametrize(
    "other", ['{"id":1}', '{"name":"a","id":1,"fare":1.00}', "[1]", "no json", '{"id":{},"name":"a","fare":1}']
)
def test_most_values_have_the_form(other: str) -> None:
    usual = [f'{{"id":{n},"name":"n","fare":{n}.00}}' for n in range(60)]
    assert form_of([*usual, other]) == FORM
    assert form_of([*usual, *[other] * 20]) is None


@pytest.mark.parametrize(
    "value", ['{"id":1,"name":[]}', '{"id":1,"name":null}', '{"id":1, "name":"a"}', '{"id":1,"id":2}', "{}", "1", "x"]
)
def test_values_without_a_form(value: str) -> None:
    assert form_of([value] * 60) is None
    assert form_of([]) is None


def test_a_text_is_what_the_job_writes() -> None:
    rows: list[dict[str, str | None]] = [
        {"id": "1", "name": "a", "fare": "12.3"},
        {"id": None, "name": "é", "fare": "12"},
        {"id": "3", "name": None, "fare": None},
        {"id": "4", "name": "", "fare": "12.345"},
    ]
    assert texts(FORM, rows) == [
        '{"id":1,"name":"a","fare":12.30}',
        '{"id":null,"name":"é","fare":12.00}',
        '{"id":3,"name":null,"fare":null}',
        '{"id":4,"name":"","fare":12.345}',
    ]
    assert texts(FORM, rows[:2], ["k", None]) == [
        '1:k{"id":1,"name":"a","fare":12.30}',
        '-{"id":null,"name":"é","fare":12.00}',
    ]


def test_different_rows_have_different_texts() -> None:
    """Also if the values hold parts of other values, and what is between them."""
    pieces = [
        None,
        "",
        "null",
        '"null"',
        "1",
        "1.5",
        "1.50",
        "1.500",
        "15",
        "a",
        '"',
        "\\",
        '","fare":1}',
        '{"id":1',
        ":",
        "1:",
        "-",
        "\n",
        "e",
        "1e5",
    ]
    dice = random.Random(5)
    rows, keys, seen = [], [], set()
    for _ in range(3_000):
        row = {name: dice.choice(pieces) for name in ("id", "name", "fare")}
        key = dice.choice(pieces)
        # Canonical numbers have no zeros at the end.
        row = {n: None if v is None else v.rstrip("0") if n != "name" and "." in v else v for n, v in row.items()}
        if (*row.values(), key) not in seen:
            seen.add((*row.values(), key))
            rows.append(row)
            keys.append(key)
    made = texts(FORM, rows, keys)
    assert len(set(made)) == len(made)


def test_a_text_that_no_json_holds_is_not_a_value() -> None:
    odd: list[dict[str, str | None]] = [
        {"id": "1", "name": name, "fare": "1.5"} for name in ('a"', "a\\", "a\nb", "a\x00b", "a\x1fb")
    ]
    odd += [{"id": "null", "name": "a", "fare": "1.5"}, {"id": "1", "name": "a", "fare": "null"}]
    assert all(text.startswith("x{") for text in texts(FORM, odd))


def test_every_single_bit_of_a_value_changes_its_digests() -> None:
    value = '{"id":4711,"name":"AA","fare":12.50}'
    flipped = {
        value[:n] + chr(ord(value[n]) ^ (1 << bit)) + value[n + 1 :] for n in range(len(value)) for bit in range(7)
    }
    text = written.observed("content", ["key"])
    one, two = digest.of_content(f"({text})")
    with duckdb.connect() as db:
        query = f"SELECT {one}, {two} FROM (SELECT unnest($t) AS content, 'k' AS key)"
        found = db.execute(query, {"t": [value, *sorted(flipped)]}).fetchall()
        expected = f"SELECT {digest.of_content('text')[0]}, {digest.of_content('text')[1]} FROM (SELECT $t AS text)"
        assert (
            found[0]
            == db.execute(
                expected, {"t": texts(FORM, [{"id": "4711", "name": "AA", "fare": "12.5"}], ["k"])[0]}
            ).fetchone()
        )
    # Without its first character, it is not an object: all of those have digest 0, and no row has it.
    objects = [pair for pair, other in zip(found[1:], sorted(flipped), strict=True) if other.startswith("{")]
    assert len(set(objects)) == len(objects) == len(flipped) - 7
    assert found[0] not in found[1:]
    assert {pair for pair, other in zip(found[1:], sorted(flipped), strict=True) if not other.startswith("{")} == {
        (0, 0)
    }


def record(run: StoredRun, number: int, writer: Callable[[dict[str, Any]], str], *, key: str | None) -> None:
    """Send one record, and write its row the way ``writer`` does."""
    value = {
        "name": f"n{number % 7}",
        "n": number,
        "fare": number + (number % 100) / 100,
        "ok": number % 3 == 0,
        "note": None if number % 4 else "x",
    }
    offset = run.send(key, value)
    run.record("events", writer({"p": 0, "o": offset, **value}), key=key)


def compact(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


def fixed(row: dict[str, Any]) -> str:
    return compact(row).replace(f'"fare":{row["fare"]}', f'"fare":{row["fare"]:.2f}')


STRANGE: list[Callable[[dict[str, Any]], str | None]] = [
    json.dumps,
    fixed,
    lambda row: compact(dict(reversed(row.items()))),
    lambda row: compact(row | {"more": 1}),
    lambda row: compact({name: value for name, value in row.items() if value is not None}),
    lambda row: compact(row | {"n": str(row["n"])}),
    lambda row: compact(row | {"n": None}),
    lambda row: compact(row | {"n": float(row["n"])}),
    lambda row: compact(row | {"name": 5}),
    lambda row: compact(row | {"name": "a\nb"}),
    lambda row: compact(row | {"name": "null"}),
    lambda row: compact(row | {"fare": "Infinity"}),
    lambda row: compact(row | {"fare": 1e300}),
    lambda row: compact(row).replace('"name":"', '"name":"a\nb'),
    lambda row: compact(row)[:-1] + ',"n":1}',
    lambda row: compact(row).replace("n", "\\u006e", 1),
    lambda row: compact(row) + " ",
    lambda row: "x" + compact(row),
    lambda row: "",
    lambda row: "null",
    lambda row: None,
]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("usual", [compact, json.dumps, fixed])
@pytest.mark.parametrize("seed", range(4))
def test_strange_values_are_judged_alike(
    stored_run: StoredRun,
    monkeypatch: pytest.MonkeyPatch,
    usual: Callable[[dict[str, Any]], str],
    keyed: bool,
    seed: int,
) -> None:
    """Some values are written otherwise, or wrong: the verdict is that of a history that is loaded whole."""
    dice = random.Random(f"{seed}{usual.__name__}{keyed}")
    stored_run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["p", "o"]}}
    stored_run.scenario["oracle"] = {"kind": "sql", "queries": {"events": QUERY}}
    stored_run.scenario["claim"] = {"order": "per-key" if keyed else "per-partition"}
    strange = dict.fromkeys(dice.sample(range(5, 80), dice.randrange(6)))
    for number in range(80):
        writer: Any = dice.choice(STRANGE) if number in strange else usual
        record(stored_run, number, writer, key=f"k{number % 5}" if keyed else None)
    rows = stored_run.tables["output"]
    for number in dice.sample(range(1, 79), dice.randrange(3)):
        rows[number]["content"], rows[number + 1]["content"] = rows[number + 1]["content"], rows[number]["content"]
    if keyed and dice.random() < 0.5:
        rows[dice.randrange(80)]["key"] = dice.choice([None, b"k9", b"\xff"])
    if dice.random() < 0.5:
        rows[dice.randrange(80)]["visibility"] = "aborted"
    stored_run.batch(0, {0: (0, 80)})
    stored_run.progress({0: 80})
    path = stored_run.save()
    used: list[str] = []
    settle = as_written.settle
    monkeypatch.setattr(
        as_written, "settle", lambda case, output, source: used.append(output) or settle(case, output, source)
    )
    assert by_digest(path, monkeypatch) == verdict(path) == by_digest(path, monkeypatch, forms=False)
    assert used == ["events"] or len(strange) > 2


def test_values_that_need_no_decoding_are_not_decoded(stored_run: StoredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["p", "o"]}}
    stored_run.scenario["oracle"] = {"kind": "sql", "queries": {"events": QUERY}}
    for number in range(60):
        record(stored_run, number, fixed if number != 7 else json.dumps, key="k")
    stored_run.batch(0, {0: (0, 60)})
    stored_run.progress({0: 60})
    monkeypatch.setattr(digests, "MOST_WHOLE", -1)
    monkeypatch.setattr(InputRecords, "is_cheap", lambda _inputs: False)
    with open_case(stored_run.save()) as case:
        assert case.forms["events"].members[4] == Member("fare", quoted=False, places=2)
        assert case.number("SELECT count(*) FROM judge.effect_digests WHERE cause_offset IS NOT NULL") == 59
        assert case.number("SELECT count(*) FROM judge.effect_digests WHERE cause_offset IS NULL") == 1
        case.compare()
        assert case.number("SELECT count(*) FROM judge.suspects") == 0


def _stored(path: Path, texts_of: Callable[[int, int, int], list[str]], **output: Any) -> Path:
    """A run with 60 records; ``texts_of`` gives what the job wrote for the offset, the number and the index of each."""
    run = StoredRun(path)
    run.scenario["outputs"] = {"events": {"topic": "events", "identity": ["p", "o"], "compare_key": False, **output}}
    query = 'SELECT _partition AS p, _offset AS o, n, _topic, _partition, _offset FROM "in"'
    run.scenario["oracle"] = {"kind": "sql", "queries": {"events": query}}
    for number in range(60):
        offset = run.send(None, {"n": number})
        for text in texts_of(offset, number, number):
            run.record("events", text, key=f"k{number}")
    run.batch(0, {0: (0, 60)})
    run.progress({0: 60})
    return run.save()


def _plain(offset: int, number: int) -> str:
    return json.dumps({"p": 0, "o": offset, "n": number}, separators=(",", ":"))


@pytest.mark.parametrize("garbage", ["not json", "[1]"])
def test_an_overwritten_value_that_is_no_object_is_seen_where_all_others_are_as_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, garbage: str
) -> None:
    path = _stored(tmp_path / "run", lambda o, n, i: [*([garbage] if i == 7 else []), _plain(o, n)], kind="upsert")
    found = by_digest(path, monkeypatch)
    assert found["verdict"] == "inconclusive" and "has no JSON object as value" in found["reasons"][0]
    assert found == verdict(path)


@pytest.mark.parametrize("more", [0, 1])
def test_a_copy_in_another_spelling_is_a_copy_and_not_another_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """All values have two decimal places, which are learned, and one more record of an identity has none."""

    def texts_of(offset: int, number: int, index: int) -> list[str]:
        usual = f'{{"p":0,"o":{offset},"n":{number}.00}}'
        return [usual, f'{{"p":0,"o":{offset},"n":{number + more}}}'] if index == 9 else [usual]

    path = _stored(tmp_path / "run", texts_of)
    found = by_digest(path, monkeypatch)
    assert more or found["anomalies"] == {"duplicate": 1}
    assert found == by_digest(path, monkeypatch, forms=False) == verdict(path)
