"""Postgres messages: the parser finds a COMMIT in each form, and its answer, and changes no byte."""

from __future__ import annotations

import time
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceproof.base.masking import hiding
from onceproof.instruments.proxy.frames import Answer, Encrypted, Frame, Piece
from onceproof.instruments.proxy.postgres import PostgresConversation, is_commit
from onceproof.stores.postgres.frames import PostgresFrames

from . import wire
from .wire import SYNC, WELCOME, Everything, bind, complete, cut, execute, joined, parse, pg, query, ready, split

BEGUN = query("BEGIN")
INSERT = parse("INSERT INTO departures VALUES ($1)") + bind() + execute()
COMMIT = parse("COMMIT") + bind() + execute()


def talk(*kinds: str) -> PostgresConversation:
    """A conversation after the start of its session."""
    conversation = PostgresConversation(Everything(*kinds))
    conversation.from_client(wire.startup())
    conversation.from_server(WELCOME)
    return conversation


def frames(pieces: list[Piece]) -> list[Frame]:
    return [piece for piece in pieces if isinstance(piece, Frame)]


def the_answer(pieces: list[Piece]) -> Answer:
    (found,) = [piece for piece in pieces if isinstance(piece, Answer)]
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "commit;",
        " end ",
        "COMMIT AND CHAIN",
        "/* job 7 */ COMMIT",
        "-- x\nCOMMIT",
        "insert into t values (1); commit",
        "COMMIT WORK",
        "INSERT INTO t VALUES ('" + "x" * 3000 + "'); COMMIT",
        "INSERT INTO t VALUES ('" + "x" * 30000 + "'); COMMIT",
        "COMMIT TRANSACTION AND NO CHAIN; -- done",
        "COMMIT /* of batch 2; really */;",
        "INSERT INTO t VALUES ('it''s'); END WORK;;",
        "DO $$ BEGIN PERFORM 1; END $$; COMMIT",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; END",
    ],
)
def test_texts_that_commit_are_recognised(sql: str) -> None:
    assert is_commit(sql.encode())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'COMMIT'",
        "COMMITTED",
        "INSERT INTO commit VALUES (1)",
        "COMMIT PREPARED 'x'",
        "ROLLBACK",
        "",
        "SELECT CASE WHEN a THEN b END",
        "COMMIT; SELECT 1",
        "SELECT '" + "x" * 505 + "' AS\nEND",
        "DO $$ BEGIN PERFORM 1; END $$",
        "DO $x$ BEGIN PERFORM 1; END; $x$",
        "DO $$ BEGIN PERFORM 1; COMMIT; END; $$ LANGUAGE plpgsql",
        "INSERT INTO t VALUES ('a;end')",
        "INSERT INTO t VALUES ('a; COMMIT -- ')",
        "INSERT INTO t VALUES (E'it\\'s; COMMIT -- ')",
        'SELECT 1 AS "a; END"',
        "SELECT 1 -- ; COMMIT",
        "CREATE FUNCTION f() RETURNS int AS $$ BEGIN RETURN 1; END $$ LANGUAGE plpgsql",
        "CREATE PROCEDURE p() BEGIN ATOMIC INSERT INTO t VALUES (1); END;",
        "COMMIT AND CHAINS",
    ],
)
def test_texts_that_do_not_commit_are_not_taken_for_a_commit(sql: str) -> None:
    assert not is_commit(sql.encode())


@given(st.data())
def test_no_byte_changes_whatever_is_sent(data: st.DataObject) -> None:
    up = wire.startup() + b"".join(data.draw(st.lists(wire.messages, max_size=8))) + data.draw(st.binary(max_size=40))
    down = WELCOME + b"".join(data.draw(st.lists(wire.answers, max_size=8))) + data.draw(st.binary(max_size=40))
    conversation = PostgresConversation(Everything(*data.draw(st.sampled_from([(), ("commit",), ("nothing",)]))))
    watching = data.draw(st.booleans())
    out = back = b""
    sent, received = data.draw(cut(up)), data.draw(cut(down))
    for part in sent:
        for piece in conversation.from_client(part):
            if isinstance(piece, Frame) and watching:
                conversation.watch(piece)
            out += joined([piece])
    for part in received:
        pieces = conversation.from_server(part)
        back += joined(pieces)
    assert out + conversation.rest_of_client() == up
    # The bytes of an awaited answer that never became complete stay with its watch.
    withheld = b"".join(bytes(watch.raw) for watch in conversation._watches)
    assert len(back) + len(withheld) + len(conversation.rest_of_server()) == len(down)
    if not withheld and not watching:
        assert down.startswith(back)


def test_held_bytes_go_first_when_the_other_direction_becomes_unreadable() -> None:
    conversation, sent = talk(), query("COMMIT")
    out = joined(conversation.from_client(sent[:7]))
    conversation.from_server(b"\xff" * 9)
    assert not conversation.readable
    assert out + joined(conversation.from_client(sent[7:])) + conversation.rest_of_client() == sent


def test_a_frame_has_the_time_at_which_its_connection_was_made() -> None:
    began = time.monotonic()
    conversation = talk()
    made = time.monotonic()
    (frame,) = frames(conversation.from_client(query("COMMIT")))
    assert began <= frame.connected_at <= made


@given(st.binary(max_size=300), st.integers(1, 40))
def test_noise_passes_unchanged(noise: bytes, size: int) -> None:
    for feed, rest in (("from_client", "rest_of_client"), ("from_server", "rest_of_server")):
        conversation = PostgresConversation(Everything())
        out = b""
        try:
            for part in split(noise, size):
                out += joined(getattr(conversation, feed)(part))
        except Encrypted:
            assert noise[:1] == b"\x16" or b"\x16" in noise
            continue
        assert out + getattr(conversation, rest)() == noise


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("sent", [query("COMMIT"), COMMIT + SYNC], ids=["simple", "extended"])
def test_a_commit_is_found_with_the_statements_of_its_transaction(sent: bytes, size: int) -> None:
    conversation = talk("commit")
    before = BEGUN + INSERT + SYNC
    assert frames([p for part in split(before, size) for p in conversation.from_client(part)]) == []
    (frame,) = frames([p for part in split(sent, size) for p in conversation.from_client(part)])
    assert frame.kind == "commit" and frame.facts["sql"].strip() == "COMMIT"
    assert frame.facts["backend_pid"] == 4711
    assert any("departures" in text for text in frame.facts["transaction"])


def test_statements_of_a_finished_transaction_are_forgotten() -> None:
    conversation = talk("commit")
    conversation.from_client(query("INSERT INTO old VALUES (1)"))
    conversation.from_server(complete("INSERT 0 1") + ready("I"))
    (frame,) = frames(conversation.from_client(query("COMMIT")))
    assert frame.facts["transaction"] == ["COMMIT"]


def test_a_prepared_commit_is_recognised_when_it_is_bound_later() -> None:
    conversation = talk("commit")
    conversation.from_client(parse("COMMIT", "S_1") + SYNC)
    conversation.from_server(pg("1") + ready("I"))
    (frame,) = frames(conversation.from_client(bind("S_1", "p") + execute("p") + SYNC))
    assert frame.facts["sql"] == "COMMIT"


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_in_a_pipeline_the_commit_gets_its_own_answer(size: int) -> None:
    conversation = talk()
    sent = conversation.from_client(INSERT + INSERT + COMMIT + SYNC)
    (frame,) = [f for f in frames(sent) if f.kind == "commit"]
    conversation.watch(frame)
    inserted = pg("1") + pg("2") + complete("INSERT 0 1")
    down = inserted + inserted + pg("1") + pg("2") + complete("COMMIT") + ready("I")
    pieces = [p for part in split(down, size) for p in conversation.from_server(part)]
    answer = the_answer(pieces)
    assert answer.facts == {"tags": ["COMMIT"], "sqlstate": None}
    assert joined(pieces) == down


def test_an_error_earlier_in_the_pipeline_is_the_commits_answer() -> None:
    conversation = talk()
    frame = frames(conversation.from_client(INSERT + COMMIT + SYNC))[-1]
    conversation.watch(frame)
    pieces = conversation.from_server(pg("1") + pg("2") + pg("E", b"SERROR\0C23505\0\0") + ready("E"))
    assert the_answer(pieces).facts == {"tags": [], "sqlstate": "23505"}


def test_a_simple_query_is_answered_when_the_server_is_ready() -> None:
    conversation = talk()
    earlier, frame = frames(
        conversation.from_client(query("SELECT 1") + query("BEGIN; INSERT INTO t VALUES (1); COMMIT"))
    )
    conversation.watch(frame)
    assert joined(conversation.from_server(complete("SELECT 1") + ready("I"))) == complete("SELECT 1") + ready("I")
    tags = complete("BEGIN") + complete("INSERT 0 1") + complete("COMMIT")
    assert conversation.from_server(tags) == []
    answer = the_answer(conversation.from_server(ready("I")))
    assert answer.facts["tags"] == ["BEGIN", "INSERT 0 1", "COMMIT"] and answer.raw == tags + ready("I")
    assert earlier.kind == "statement"


@pytest.mark.parametrize("eager", [True, False], ids=["Sync sent at once", "Sync after the data"])
def test_during_copy_in_the_extended_protocol_a_sync_gets_no_answer(eager: bool) -> None:
    conversation = talk()
    copy = parse("COPY t FROM STDIN") + bind() + execute() + (SYNC if eager else b"")
    conversation.from_client(copy)
    conversation.from_server(pg("1") + pg("2") + pg("G", pack(">bh", 0, 0)))
    conversation.from_client(pg("d", b"1\n") + pg("c") + SYNC)
    conversation.from_server(complete("COPY 1") + ready("T"))
    (frame,) = frames(conversation.from_client(query("COMMIT")))
    conversation.watch(frame)
    assert the_answer(conversation.from_server(complete("COMMIT") + ready("I"))).facts["tags"] == ["COMMIT"]


@pytest.mark.parametrize(("asked", "word"), [(wire.SSL_REQUEST, b"S"), (wire.GSS_REQUEST, b"G")])
def test_encryption_is_refused_where_the_server_would_grant_it(asked: bytes, word: bytes) -> None:
    conversation = PostgresConversation(Everything())
    assert joined(conversation.from_client(asked)) == asked
    with pytest.raises(Encrypted, match="sslmode=disable"):
        conversation.from_server(word)


def test_a_session_that_the_server_refuses_to_encrypt_is_read() -> None:
    conversation = PostgresConversation(Everything())
    for asked in (wire.GSS_REQUEST, wire.SSL_REQUEST):
        conversation.from_client(asked)
        assert joined(conversation.from_server(b"N")) == b"N"
    conversation.from_client(wire.startup())
    conversation.from_server(WELCOME)
    assert [f.kind for f in frames(conversation.from_client(query("COMMIT")))] == ["commit"]


def test_tls_without_an_ssl_request_is_refused() -> None:
    with pytest.raises(Encrypted, match="sslmode=disable"):
        PostgresConversation(Everything()).from_client(b"\x16\x03\x01\x02\x00" + bytes(20))


def test_a_cancel_request_passes() -> None:
    conversation = PostgresConversation(Everything())
    assert joined(conversation.from_client(wire.CANCEL)) == wire.CANCEL


def test_listeners_get_every_error_whatever_it_answers() -> None:
    """At the start of a connection, to a Parse, or unasked: none of these errors answers a statement that runs."""
    everything = Everything("commit")
    conversation = PostgresConversation(everything, "postgres")
    conversation.from_client(wire.startup())
    stream = b"".join(wire.error(code, f"no: {code}") for code in ("57P03", "42501", "57P01"))
    passed = joined([piece for part in split(stream, 7) for piece in conversation.from_server(part)])
    assert passed + conversation.rest_of_server() == stream
    assert [(r.what, r.code, r.message, r.route) for r in everything.replies] == [
        ("error", code, f"no: {code}", "postgres") for code in ("57P03", "42501", "57P01")
    ]


def test_a_portal_whose_binding_was_too_long_to_read_runs_an_unknown_statement() -> None:
    conversation = PostgresConversation(Everything("statement"))
    conversation.from_client(wire.startup())
    stream = parse("insert into a values ($1)", "s1") + bind("s1") + execute() + SYNC
    assert [f.facts["sql"] for f in conversation.from_client(stream) if isinstance(f, Frame)] == [
        "insert into a values ($1)"
    ]
    values = pack(">hhi", 0, 1, 9 << 20) + b"x" * (9 << 20) + bytes(2)
    stream = parse("insert into b values ($1)", "s2") + pg("B", b"\0s2\0" + values) + execute() + SYNC
    assert [f.facts["sql"] for f in conversation.from_client(stream) if isinstance(f, Frame)] == [""]


def test_a_secret_is_masked_before_its_statement_is_cut() -> None:
    conversation = PostgresConversation(Everything("statement"))
    conversation.from_client(wire.startup())
    with hiding(["hush-hush-hush"]):
        statement = "SELECT '" + "x" * 485 + "hush-hush-hush'"
        [frame] = [f for f in conversation.from_client(query(statement)) if isinstance(f, Frame)]
        assert "hush" not in f"{frame.facts}"
        late = Frame(b"", "statement", {"sql": "x" * 75 + "hush-hush-hush", "backend_pid": 1})
        assert "hush" not in PostgresFrames().describe(late)


@pytest.mark.parametrize(
    ("sent", "attempts"),
    [
        (query("SELECT 1"), False),
        (query(""), False),
        (query("/* ping */ select 1;"), False),
        (query("SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; RESET ALL;"), False),
        (parse("SELECT 1") + bind() + execute() + SYNC, False),
        (SYNC, False),
        (b"X\0\0\0\4", False),
        (BEGUN, True),
        (INSERT, True),
        (parse("INSERT INTO t VALUES ($1)") + SYNC, True),
        (bind() + execute() + SYNC, True),
        (query("SELECT 1; INSERT INTO t VALUES (1)"), True),
        (query("SELECT f(1)"), True),
        (query("SELECT 1")[:-3], True),
        (b"d\0\0\0\5x", True),
    ],
)
def test_a_client_that_checks_its_connection_attempts_nothing(sent: bytes, attempts: bool) -> None:
    conversation = talk("commit")
    conversation.from_server(ready("I"))
    assert conversation.attempts(sent) is attempts


def test_a_connection_is_in_use_while_a_statement_is_unanswered() -> None:
    conversation = talk("commit")
    assert not conversation.in_use
    conversation.from_client(query("SELECT 1"))
    assert not conversation.in_use
    conversation.from_server(complete("SELECT 1") + ready("I"))
    conversation.from_client(query("INSERT INTO t VALUES (1)"))
    assert conversation.in_use
    conversation.from_server(complete("INSERT 0 1") + ready("I"))
    assert not conversation.in_use
