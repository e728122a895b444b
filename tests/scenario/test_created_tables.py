"""Which tables the statements of ``prepare.sql`` or ``--schema`` create."""

from __future__ import annotations

import pytest

from onceproof.scenario_files.created_tables import CreatedTable, created_tables, creates_only_these, folded

TOTALS = """
-- CREATE TABLE not_this (id int);
CREATE TABLE IF NOT EXISTS public.Totals (
    customer text PRIMARY KEY, /* a comment; with a semicolon */
    "Order Count" bigint NOT NULL DEFAULT 0 CHECK ("Order Count" >= 0),
    note text DEFAULT 'a, ''b''); CREATE TABLE x (',
    total numeric(12, 2),
    updated_at timestamptz NOT NULL DEFAULT now()
);
"""


def test_columns_key_and_varying_columns_are_read() -> None:
    columns = ("customer", "Order Count", "note", "total", "updated_at")
    assert created_tables(TOTALS) == [CreatedTable("totals", columns, ("customer",), ("updated_at",))]


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("create unlogged table t (a int, b int, primary key (b, a))", CreatedTable("t", ("a", "b"), ("b", "a"))),
        ("CREATE TABLE s.t (a int, CONSTRAINT p PRIMARY KEY (a))", CreatedTable("s.t", ("a",), ("a",))),
        ("CREATE TABLE t (id bigserial, x int)", CreatedTable("t", ("id", "x"), (), ("id",))),
        (
            "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY, at timestamp DEFAULT CURRENT_TIMESTAMP)",
            CreatedTable("t", ("id", "at"), (), ("id", "at")),
        ),
        ("CREATE TABLE t AS SELECT 1 AS a", CreatedTable("t")),
        ('CREATE TABLE "T" (LIKE other INCLUDING ALL)', CreatedTable("T")),
        ("CREATE TABLE t (", CreatedTable("t")),
        ("CREATE TABLE", CreatedTable("")),
    ],
)
def test_one_statement(sql: str, table: CreatedTable) -> None:
    assert created_tables(sql) == [table]


def test_a_primary_key_that_is_added_later_is_read() -> None:
    """As pg_dump writes it."""
    sql = """
        SET default_tablespace = '';
        CREATE TABLE public.orders (id bigint NOT NULL, at timestamp with time zone DEFAULT now(), state text DEFAULT 'new'::text);
        ALTER TABLE public.orders OWNER TO me;
        ALTER TABLE ONLY public.orders ADD CONSTRAINT orders_pkey PRIMARY KEY (id);
    """
    assert created_tables(sql) == [CreatedTable("orders", ("id", "at", "state"), ("id",), ("at",))]


@pytest.mark.parametrize(
    ("sql", "only"),
    [
        (TOTALS + "CREATE INDEX i ON totals (note); INSERT INTO totals VALUES ('a')", True),
        ("CREATE TABLE a (x int); ALTER TABLE a RENAME TO b", False),
        ("CREATE TABLE a (x int); ALTER TABLE a REPLICA IDENTITY FULL", True),
        ("CREATE TABLE a (x int); DO $$ BEGIN CREATE TABLE b (x int); END $$", False),
        ("CREATE TABLE a (x int); SELECT * INTO b FROM a", False),
        ("CREATE TABLE a (x int); CREATE VIEW b AS SELECT * FROM a", False),
    ],
)
def test_other_ways_to_create_a_table_are_noticed(sql: str, only: bool) -> None:
    assert creates_only_these(sql) is only


@pytest.mark.parametrize(
    ("name", "stored"), [("Orders", "orders"), ('public."Orders"', "Orders"), ("Shop.o", "shop.o")]
)
def test_names_are_folded_as_postgres_folds_them(name: str, stored: str) -> None:
    assert folded(name) == stored


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE t (a text DEFAULT 'x", "/* never closed", "DO $$ x", 'CREATE TABLE "t (']
)
def test_text_that_cannot_be_split_into_statements_creates_nothing(sql: str) -> None:
    assert created_tables(sql) == [] and not creates_only_these(sql)


@pytest.mark.parametrize("name", ["", 'a."B'])
def test_what_is_not_the_name_of_a_table_stays(name: str) -> None:
    assert folded(name) == name
