"""The scenario's own SQL, before it is run: one SELECT over the input that gives the same rows each time.

DuckDB's parser says what a query is made of, and DuckDB's catalogue which functions are steady; nothing is run.
`select_problem` refuses what cannot be an oracle. `unordered` names what depends on the order of rows that have none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

# What the pipeline did: an oracle that reads it expects whatever is there.
_OBSERVED = {"output", "snapshot"}

# The table functions that make rows of their arguments. All others read files, the catalogue, or a query that is a text.
_TABLE_FUNCTIONS: tuple[str, ...] = (
    "unnest",
    "range",
    "generate_series",
    "generate_subscripts",
    "json_each",
    "json_tree",
)
_TABLE_FUNCTIONS += ("repeat", "repeat_row")

# Functions that DuckDB's catalogue calls consistent although their value is another one at the next check.
_UNSTEADY = {"current_localtimestamp", "current_localtime", "reservoir_quantile"}
# A function that ends the query has no value.
_NO_VALUE = {"error"}
# Words without parentheses that stand for such functions.
_UNSTEADY_WORDS = {"current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}
_UNSTEADY_WORDS |= {"current_schema", "current_catalog"}

# Aggregates whose value depends on the order of their rows. DuckDB's catalogue does not say so.
_TAKES_ONE = {"first", "last", "any_value", "arbitrary", "mode"}
_TAKES_ALL = {"list", "array_agg", "string_agg", "group_concat", "listagg", "json_group_array", "json_group_object"}
_TAKES_ALL |= {"variant_group_array"}
_TAKES_BY = {"arg_max", "arg_min", "argmax", "argmin", "max_by", "min_by", "arg_max_null", "arg_min_null"}
_TAKES_BY |= {"arg_max_nulls_last", "arg_min_nulls_last"}
_APPROXIMATES = {"approx_quantile", "approx_top_k"}
_NUMBERS_ROWS = {"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"}
# Functions that put a list in order, whatever its order was.
_SORTS = {"list_sort", "array_sort", "list_reverse_sort", "array_reverse_sort"}
# Columns that differ from record to record of a partition.
_POSITIONS = {"_offset", "offset"}

_BY_POSITION = "add _offset to its ORDER BY, unless its values are unique already"
_PIVOT = "write a PIVOT with its values: FROM t PIVOT (sum(x) FOR c IN (1, 2)), or use GROUP BY with FILTER"
# Types that keep every digit of a number.
_EXACT = {"DECIMAL", "HUGEINT"}
_NOWHERE = 2**64 - 1
_LONGEST = 60


@dataclass(frozen=True)
class Unordered:
    """A part of a query that depends on an order that nothing fixes."""

    part: str
    line: int
    why: str
    mend: str

    def __str__(self) -> str:
        return f"`{self.part}` (line {self.line}) {self.why}"


def statement_problem(text: str) -> tuple[str, str | None] | None:
    """What makes this text something else than one SELECT, as message and hint."""
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        return f"this is not SQL: {error}", None
    if len(statements) != 1:
        return f"one SELECT is wanted here, and there are {len(statements)} statements", "join them, or use WITH"
    if statements[0].type != duckdb.StatementType.SELECT:
        several = statements[0].type == duckdb.StatementType.MULTI
        hint = _PIVOT if several else "the oracle only reads: it says what must be there"
        return f"a SELECT is wanted here, not {statements[0].type.name}", hint
    return None


def select_problem(query: str, before: str = "", after: str = "") -> tuple[str, str | None] | None:
    """What makes this text no oracle's SELECT, as message and hint. ``before`` and ``after`` make an expression a SELECT."""
    text = before + query + after
    if problem := statement_problem(text):
        return problem
    tree = _parsed(text)
    if tree.get("error"):
        return f"onceproof cannot see what this query is made of: {tree.get('error_message')}", _PIVOT
    for node, _ in _nodes(tree):
        if refused := _reads(node) or _unsteady(node):
            message, hint = refused
            return f"{message}{_line_of(node, text, before)}", hint
    return None


def unordered(query: str, before: str = "", after: str = "") -> list[Unordered]:
    """Each part of a query that `select_problem` accepts whose rows depend on an order that the query does not fix."""
    text = before + query + after
    found = []
    for node, parents in _nodes(_parsed(text)):
        for why, mend in _order_wanted(node, parents):
            part, line = _part(node, parents, text, before)
            found.append(Unordered(part, line, why, mend))
        for modifier in node.get("modifiers") or []:
            for what, why, mend in _cut(node, modifier):
                found.append(Unordered(what, _part(modifier, (node,), text, before)[1], why, mend))
    return list(dict.fromkeys(found))


def as_decimals(expression: str) -> set[str]:
    """The columns, in lower case, that a SELECT or an expression casts to DECIMAL or to whole numbers of 128 bits."""
    names = set()
    for query in (expression, f"SELECT (\n{expression}\n)"):
        for node, _ in _nodes(_parsed(query)):
            child = node.get("child")
            if node.get("type") != "OPERATOR_CAST" or not isinstance(child, dict) or not child.get("column_names"):
                continue
            if any(str(inner.get("type_name", "")).upper() in _EXACT for inner, _ in _nodes(node.get("type_expr"))):
                names.add(str(child["column_names"][-1]).lower())
    return names


@lru_cache(maxsize=128)
def _parsed(query: str) -> Any:
    """DuckDB's tree of a SELECT; with ``error`` where it gives none (a PIVOT without IN)."""
    with duckdb.connect() as parser:
        row = parser.execute("SELECT json_serialize_sql($query::VARCHAR)", {"query": query}).fetchone()
    return json.loads(row[0]) if row else {"error": True}


def _nodes(tree: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Every node, with the nodes around it, the nearest last."""
    if isinstance(tree, dict):
        yield tree, parents
        parents = (*parents, tree)
    for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(branch, parents)


def _reads(node: dict[str, Any]) -> tuple[str, str] | None:
    """Why a query may not read what this node names."""
    kind = node.get("type")
    hint = "an oracle reads the input topics, input, history.input and the static tables"
    if kind == "BASE_TABLE":
        path = [part.lower() for part in node["qualified_name"]["path"]]
        if path[-2:-1] == ["history"] and path[-1] in _OBSERVED:
            why = f"it reads history.{path[-1]}, which is what the pipeline wrote: whatever that is, it would be right"
            return why, "an oracle says from the input what must be there"
        if len(path) > 2 or (len(path) == 2 and path[0] != "main" and path != ["history", "input"]):
            return f"it reads {'.'.join(path)}, which is not the input", hint
        if path[-1] in _catalogue().views:
            return f"it reads {path[-1]}, which is DuckDB's own catalogue", hint
    if kind == "SHOW_REF":
        return (
            f"{node.get('show_type', 'SHOW').partition('_')[0]} says how tables are made, not what must be there",
            hint,
        )
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS:
            what = (
                "runs a query that is in a text"
                if name in ("query", "query_table")
                else "is not a function of the input"
            )
            return f"{name}() {what}", f"{hint}; of the table functions it may use {', '.join(_TABLE_FUNCTIONS)}"
    return None


def _unsteady(node: dict[str, Any]) -> tuple[str, str] | None:
    hint = "take it from the input"
    if node.get("sample"):
        return (
            "a sample holds other rows at each check, so the verdict would change",
            "choose the rows by a condition",
        )
    name = str(node.get("function_name", "")).lower()
    arguments = node.get("arguments") or node.get("children") or []
    if name == "age" and len(arguments) == 1:
        return (
            "age() of one time counts from today: it gives another value at each check, so the verdict would change",
            "use age(later, earlier)",
        )
    if name and _is_unsteady(name):
        return f"{name}() gives another value at each check, so the verdict would change", hint
    words = node.get("column_names") or [""]
    word = str(words[0]).lower()
    if len(words) == 1 and word in _UNSTEADY_WORDS and node.get("class") == "COLUMN_REF":
        return f"{word} gives another value at each check, so the verdict would change", hint
    return None


@dataclass(frozen=True)
class _Catalogue:
    unsteady: frozenset[str]
    macros: dict[str, tuple[str, ...]]
    views: frozenset[str]


@lru_cache(maxsize=1)
def _catalogue() -> _Catalogue:
    """What DuckDB says of its own functions and views."""
    with duckdb.connect() as db:
        unsteady = db.execute("""SELECT DISTINCT lower(function_name) FROM duckdb_functions()
            WHERE stability <> 'CONSISTENT' OR has_side_effects""").fetchall()
        macros = db.execute("""SELECT lower(function_name), list(macro_definition) FROM duckdb_functions()
            WHERE function_type = 'macro' AND macro_definition IS NOT NULL GROUP BY 1""").fetchall()
        views = db.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
    names = {name for (name,) in unsteady} - _NO_VALUE
    return _Catalogue(
        frozenset(names | _UNSTEADY), {n: tuple(d) for n, d in macros}, frozenset(name for (name,) in views)
    )


@lru_cache(maxsize=512)
def _is_unsteady(name: str) -> bool:
    """By DuckDB's catalogue; a macro is as steady as what it is made of."""
    known = _catalogue()
    if name in known.unsteady:
        return True
    seen, todo = {name}, list(known.macros.get(name, ()))
    while todo:
        for node, _ in _nodes(_parsed(f"SELECT {todo.pop()}")):
            inner = str(node.get("function_name", "")).lower()
            if inner not in seen and inner in known.macros:
                seen.add(inner)
                todo += known.macros[inner]
            if inner in known.unsteady or (inner not in known.macros and _unsteady_node(node)):
                return True
    return False


def _unsteady_node(node: dict[str, Any]) -> bool:
    words = node.get("column_names") or [""]
    return node.get("type") == "TABLE_FUNCTION" or (len(words) == 1 and str(words[0]).lower() in _UNSTEADY_WORDS)


def _order_wanted(node: dict[str, Any], parents: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Why this node's value depends on the order of rows, and what would fix that."""
    name = str(node.get("function_name", "")).lower()
    if node.get("type") == "JOIN" and node.get("ref_type") == "POSITIONAL":
        yield "POSITIONAL JOIN pairs rows by an order that they do not have", "join by columns"
    if node.get("class") == "WINDOW":
        yield from _window(node, name)
    elif node.get("class") == "FUNCTION":
        yield from _aggregate(node, name, parents)


def _cut(node: dict[str, Any], modifier: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """A modifier of a SELECT that keeps some of its rows: what it is, why it depends on their order, what would fix that."""
    kind = str(modifier.get("type"))
    if kind.startswith("LIMIT"):
        what = "LIMIT"
    elif kind == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
        what = "DISTINCT ON"
    else:
        return
    orders = [order for m in node["modifiers"] if m.get("type") == "ORDER_MODIFIER" for order in m.get("orders", [])]
    if not orders:
        yield what, "without ORDER BY takes whichever rows come first", "add ORDER BY ..., _offset"
    elif not _total(orders, ()):
        yield what, "takes any of several rows that are equal in its ORDER BY", _BY_POSITION


def _window(node: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    by_rows = "ROWS" in f"{node.get('start')} {node.get('end')}" and name not in _NUMBERS_ROWS
    if name not in _NUMBERS_ROWS | _TAKES_ONE | _TAKES_ALL and not by_rows:
        return
    orders = [*(node.get("arg_orders") or []), *(node.get("orders") or [])]
    if not orders:
        if not by_rows or "UNBOUNDED" not in str(node.get("start")) or "UNBOUNDED" not in str(node.get("end")):
            yield "has no ORDER BY: which row is which is left to chance", "add ORDER BY ..., _offset to its OVER"
    elif not _total(orders, ()):
        yield "depends on the order of rows that are equal in its ORDER BY", _BY_POSITION


def _aggregate(node: dict[str, Any], name: str, parents: Sequence[Any]) -> Iterator[tuple[str, str]]:
    arguments = [each.get("expression", each) for each in node.get("arguments") or []]
    orders = (node.get("order_bys") or {}).get("orders") or []
    if name in _APPROXIMATES:
        yield "depends on the order in which it sees the rows", f"use {name.removeprefix('approx_')}, which is exact"
    elif name in _TAKES_BY:
        if len(arguments) > 1 and not _total([{"expression": arguments[1]}], arguments[:1]):
            yield "takes any of several rows that are equal in its second argument", "break ties: (value, _offset)"
    elif name in _TAKES_ONE | _TAKES_ALL:
        sorted_ = any(str(p.get("function_name", "")).lower() in _SORTS for p in parents[-3:] if isinstance(p, dict))
        if sorted_ and name in _TAKES_ALL:
            return
        if not orders:
            takes = "takes whichever row comes first" if name in _TAKES_ONE else "has no ORDER BY"
            yield takes, f"write {name}(... ORDER BY ..., _offset)"
        elif not _total(orders, arguments):
            yield "depends on the order of rows that are equal in its ORDER BY", _BY_POSITION


def _total(orders: Sequence[dict[str, Any]], arguments: Sequence[Any]) -> bool:
    """Whether rows that these orders find equal are surely the same to ``arguments``: by position, or by themselves."""
    by = [order.get("expression") for order in orders]
    if any(_is_all(each) for each in by):
        return True
    names = {
        str(node["column_names"][-1]).lower() for each in by for node, _ in _nodes(each) if node.get("column_names")
    }
    return bool(names & _POSITIONS) or (bool(arguments) and _bare(arguments[0]) in [_bare(each) for each in by])


def _is_all(expression: Any) -> bool:
    """ORDER BY ALL."""
    return isinstance(expression, dict) and expression.get("type") == "STAR"


def _bare(expression: Any) -> str:
    """An expression without the places where it stands."""

    def strip(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {
                k: strip(v) for k, v in tree.items() if k not in ("query_location", "query_location_length", "alias")
            }
        return [strip(each) for each in tree] if isinstance(tree, list) else tree

    return json.dumps(strip(expression), sort_keys=True)


def _part(node: dict[str, Any], parents: Sequence[Any], text: str, before: str) -> tuple[str, int]:
    """The node's text as the user wrote it, and its line in the user's text."""
    start, length = next(
        (place for each in (node, *reversed(parents)) if (place := _place(each))[0] is not None), (None, 0)
    )
    raw = text.encode()
    if start is None:
        return "this query", 1
    part = " ".join(raw[start : start + length].decode(errors="replace").split())
    line = raw[:start].count(b"\n") - before.count("\n") + 1
    return (part if len(part) <= _LONGEST else f"{part[: _LONGEST - 3]}..."), max(line, 1)


def _line_of(node: dict[str, Any], text: str, before: str) -> str:
    start, _ = _place(node)
    if start is None or "\n" not in text[len(before) :].strip():
        return ""
    return f" (line {_part(node, (), text, before)[1]})"


def _place(node: dict[str, Any]) -> tuple[int | None, int]:
    """Where it begins, in bytes, and how long it is; for a node without a place, that of the first part that has one."""
    for each, _ in _nodes(node):
        start = each.get("query_location", _NOWHERE)
        if isinstance(start, int) and start != _NOWHERE:
            return start, int(each.get("query_location_length") or 0)
    return None, 0
