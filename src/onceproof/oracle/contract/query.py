"""Checks the scenario's own SQL before it is run: it must be one SELECT over the input that gives the same rows each time.

DuckDB's parser shows the parts of a query, and DuckDB's catalogue shows which functions are consistent; nothing is run.
`select_problem` refuses what cannot be an oracle. `unordered` finds the parts that depend on an order of rows that nothing fixes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb

# Tables that the pipeline wrote: an oracle that reads them would find everything right.
_OBSERVED = {"output", "snapshot"}

# The table functions that make rows from their arguments. All others read files, the catalogue, or a query given as text.
_TABLE_FUNCTIONS: tuple[str, ...] = (
    "unnest",
    "range",
    "generate_series",
    "generate_subscripts",
    "json_each",
    "json_tree",
)
_TABLE_FUNCTIONS += ("repeat", "repeat_row")

# Functions that DuckDB's catalogue calls consistent although their value can differ at the next check.
_VOLATILE = {"current_localtimestamp", "current_localtime", "reservoir_quantile"}
# This function ends the query, so it has no value.
_NO_VALUE = {"error"}
# Such functions that are written without parentheses.
_VOLATILE_WORDS = {"current_timestamp", "current_date", "current_time", "localtimestamp", "localtime"}
_VOLATILE_WORDS |= {"current_schema", "current_catalog"}

# Aggregates whose value depends on the order of their rows. DuckDB's catalogue does not show this.
_TAKES_ONE = {"first", "last", "any_value", "arbitrary", "mode"}
_TAKES_ALL = {"list", "array_agg", "string_agg", "group_concat", "listagg", "json_group_array", "json_group_object"}
_TAKES_ALL |= {"variant_group_array"}
_TAKES_BY = {"arg_max", "arg_min", "argmax", "argmin", "max_by", "min_by", "arg_max_null", "arg_min_null"}
_TAKES_BY |= {"arg_max_nulls_last", "arg_min_nulls_last"}
_APPROXIMATES = {"approx_quantile", "approx_top_k"}
_NUMBERS_ROWS = {"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"}
# Functions that sort a list.
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
    hint: str

    def __str__(self) -> str:
        return f"`{self.part}` (line {self.line}) {self.why}"


def statement_problem(text: str) -> tuple[str, str | None] | None:
    """Return why this text is not exactly one SELECT, as message and hint; None if it is."""
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        return f"this is not SQL: {error}", None
    if len(statements) != 1:
        return f"one SELECT is wanted here, and there are {len(statements)} statements", "join them, or use WITH"
    if statements[0].type != duckdb.StatementType.SELECT:
        several = statements[0].type == duckdb.StatementType.MULTI
        hint = _PIVOT if several else "an oracle only reads: its rows are what the output must hold"
        return f"a SELECT is wanted here, not {statements[0].type.name}", hint
    return None


def select_problem(query: str, before: str = "", after: str = "") -> tuple[str, str | None] | None:
    """Return why this text cannot be an oracle's SELECT, as message and hint; None if it can.

    ``before`` and ``after`` make an expression a SELECT.
    """
    text = before + query + after
    if problem := statement_problem(text):
        return problem
    tree = _parsed(text)
    if tree.get("error"):
        return f"onceproof cannot examine this query: {tree.get('error_message')}", _PIVOT
    for node, _ in _nodes(tree):
        if refused := _forbidden_read(node) or _volatile(node):
            message, hint = refused
            return f"{message}{_line_of(node, text, before)}", hint
    return None


def unordered(query: str, before: str = "", after: str = "") -> list[Unordered]:
    """Return each part of a query (one that `select_problem` accepts) that depends on an order that the query does not fix."""
    text = before + query + after
    found = []
    for node, parents in _nodes(_parsed(text)):
        for why, hint in _order_dependence(node, parents):
            part, line = _part(node, parents, text, before)
            found.append(Unordered(part, line, why, hint))
        for modifier in node.get("modifiers") or []:
            for what, why, hint in _limit(node, modifier):
                found.append(Unordered(what, _part(modifier, (node,), text, before)[1], why, hint))
    return list(dict.fromkeys(found))


def as_decimals(expression: str) -> set[str]:
    """Return the columns, in lower case, that a SELECT or expression casts to DECIMAL or to whole numbers of 128 bits."""
    names = set()
    for query in (expression, f"SELECT (\n{expression}\n)"):
        for node, _ in _nodes(_parsed(query)):
            child = node.get("child")
            if node.get("type") != "OPERATOR_CAST" or not isinstance(child, dict) or not child.get("column_names"):
                continue
            if any(str(inner.get("type_name", "")).upper() in _EXACT for inner, _ in _nodes(node.get("type_expr"))):
                names.add(str(child["column_names"][-1]).lower())
    return names


def several_records(query: str, topics: Collection[str]) -> str | None:
    """Return why a row of a query (one that `select_problem` accepts) may depend on several input records; None if it cannot.

    The query must be one plain SELECT over one of ``topics``, without anything that combines rows.
    """
    statements = _parsed(query).get("statements") or [{}]
    node = statements[0].get("node") or {}
    if node.get("type") != "SELECT_NODE" or (node.get("cte_map") or {}).get("map"):
        return "is not one plain SELECT (a WITH or a UNION, for example)"
    source = node.get("from_table") or {}
    path = (source.get("qualified_name") or {}).get("path") or [""]
    known = {topic.lower() for topic in topics}
    if source.get("type") != "BASE_TABLE" or len(path) > 1 or path[0].lower() not in known:
        return "does not read one input topic alone"
    if node.get("group_expressions") or node.get("having") or node.get("aggregate_handling") != "STANDARD_HANDLING":
        return "has GROUP BY or HAVING"
    if node.get("modifiers") or node.get("qualify"):
        return "has ORDER BY, LIMIT, DISTINCT or QUALIFY"
    return combines_rows(query)


def combines_rows(query: str) -> str | None:
    """Return which expression of a query takes several rows: an aggregate, a window function, a subquery. None if none does."""
    for node, _ in _nodes(_parsed(query)):
        name = str(node.get("function_name", "")).lower()
        if node.get("class") == "WINDOW":
            return f"has a window function, {name or 'OVER'}()"
        if node.get("class") == "SUBQUERY":
            return "has a subquery"
        if name and _aggregates(name):
            return f"has an aggregate, {name}()"
    return None


def selected(query: str) -> set[str] | None:
    """Return the names, in lower case, of the columns of one plain SELECT; None if a `*` is among them."""
    statements = _parsed(query).get("statements") or [{}]
    columns = (statements[0].get("node") or {}).get("select_list") or []
    if any(column.get("class") == "STAR" for column in columns):
        return None
    return {str(column.get("alias") or (column.get("column_names") or [""])[-1]).lower() for column in columns}


@lru_cache(maxsize=512)
def _aggregates(name: str) -> bool:
    """Whether the function, or one that this macro calls, takes several rows."""
    known = _catalogue()
    inside = [
        str(node.get("function_name", "")).lower()
        for definition in known.macros.get(name, ())
        for node, _ in _nodes(_parsed(f"SELECT {definition}"))
    ]
    return name in known.aggregates or any(_aggregates(inner) for inner in inside if inner and inner != name)


@lru_cache(maxsize=128)
def _parsed(query: str) -> Any:
    """Return DuckDB's tree of a SELECT; it has ``error`` if DuckDB gives none (a PIVOT without IN)."""
    with _parser().cursor() as parser:
        row = parser.execute("SELECT json_serialize_sql($query::VARCHAR)", {"query": query}).fetchone()
    return json.loads(row[0]) if row else {"error": True}


@lru_cache(maxsize=1)
def _parser() -> duckdb.DuckDBPyConnection:
    """Return the database that only parses and describes itself: starting one takes longer than parsing hundreds of queries."""
    return duckdb.connect(config={"threads": 1})


def _nodes(tree: Any, parents: tuple[Any, ...] = ()) -> Iterator[tuple[dict[str, Any], tuple[Any, ...]]]:
    """Yield every node with the nodes around it, the nearest last."""
    if isinstance(tree, dict):
        yield tree, parents
        parents = (*parents, tree)
    for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _nodes(branch, parents)


def _forbidden_read(node: dict[str, Any]) -> tuple[str, str] | None:
    """Return why a query must not read what this node names, and a hint; None if it may."""
    kind = node.get("type")
    hint = "an oracle reads the input topics, input, history.input and the static tables"
    if kind == "BASE_TABLE":
        path = [part.lower() for part in node["qualified_name"]["path"]]
        if path[-2:-1] == ["history"] and path[-1] in _OBSERVED:
            why = f"it reads history.{path[-1]}, which is what the pipeline wrote: compared with itself, it is always right"
            return why, "derive the rows from the input"
        if len(path) > 2 or (len(path) == 2 and path[0] != "main" and path != ["history", "input"]):
            return f"it reads {'.'.join(path)}, which is not the input", hint
        if path[-1] in _catalogue().views:
            return f"it reads {path[-1]}, which is DuckDB's own catalogue", hint
    if kind == "SHOW_REF":
        return (
            f"{node.get('show_type', 'SHOW').partition('_')[0]} describes tables, not the rows that must be there",
            hint,
        )
    if kind == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS:
            what = (
                "runs a query given as text" if name in ("query", "query_table") else "is not a function of the input"
            )
            return f"{name}() {what}", f"{hint}; allowed table functions: {', '.join(_TABLE_FUNCTIONS)}"
    return None


def _volatile(node: dict[str, Any]) -> tuple[str, str] | None:
    hint = "take it from the input"
    if node.get("sample"):
        return (
            "a sample has other rows at each check, so the verdict could change",
            "choose the rows by a condition",
        )
    name = str(node.get("function_name", "")).lower()
    arguments = node.get("arguments") or node.get("children") or []
    if name == "age" and len(arguments) == 1:
        return (
            "age() of one time counts from today: it gives another value at each check, so the verdict could change",
            "use age(later, earlier)",
        )
    if name and _is_volatile(name):
        return f"{name}() gives another value at each check, so the verdict could change", hint
    words = node.get("column_names") or [""]
    word = str(words[0]).lower()
    if len(words) == 1 and word in _VOLATILE_WORDS and node.get("class") == "COLUMN_REF":
        return f"{word} gives another value at each check, so the verdict could change", hint
    return None


@dataclass(frozen=True)
class _Catalogue:
    volatile: frozenset[str]
    macros: dict[str, tuple[str, ...]]
    views: frozenset[str]
    aggregates: frozenset[str]


@lru_cache(maxsize=1)
def _catalogue() -> _Catalogue:
    """Read DuckDB's own functions and views from its catalogue: the functions once, because that takes longest."""
    with _parser().cursor() as db:
        functions = db.execute("""SELECT lower(function_name), function_type, macro_definition,
            stability <> 'CONSISTENT' OR has_side_effects FROM duckdb_functions()""").fetchall()
        views = db.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
    macros: dict[str, tuple[str, ...]] = {}
    for name, kind, definition, _ in functions:
        if kind == "macro" and definition is not None:
            macros[name] = (*macros.get(name, ()), definition)
    return _Catalogue(
        frozenset({name for name, _, _, differs in functions if differs} - _NO_VALUE | _VOLATILE),
        macros,
        frozenset(name for (name,) in views),
        frozenset(name for name, kind, *_ in functions if kind == "aggregate"),
    )


@lru_cache(maxsize=512)
def _is_volatile(name: str) -> bool:
    """Whether the function can give another value at the next check, by DuckDB's catalogue; for a macro, by what it calls."""
    known = _catalogue()
    if name in known.volatile:
        return True
    seen, todo = {name}, list(known.macros.get(name, ()))
    while todo:
        for node, _ in _nodes(_parsed(f"SELECT {todo.pop()}")):
            inner = str(node.get("function_name", "")).lower()
            if inner not in seen and inner in known.macros:
                seen.add(inner)
                todo += known.macros[inner]
            if inner in known.volatile or (inner not in known.macros and _is_volatile_node(node)):
                return True
    return False


def _is_volatile_node(node: dict[str, Any]) -> bool:
    words = node.get("column_names") or [""]
    return node.get("type") == "TABLE_FUNCTION" or (len(words) == 1 and str(words[0]).lower() in _VOLATILE_WORDS)


def _order_dependence(node: dict[str, Any], parents: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield why the value of this node depends on the order of rows, and what would fix that."""
    name = str(node.get("function_name", "")).lower()
    if node.get("type") == "JOIN" and node.get("ref_type") == "POSITIONAL":
        yield "POSITIONAL JOIN pairs rows by an order that nothing fixes", "join by columns"
    if node.get("class") == "WINDOW":
        yield from _window(node, name)
    elif node.get("class") == "FUNCTION":
        yield from _aggregate(node, name, parents)


def _limit(node: dict[str, Any], modifier: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield for a modifier that keeps some rows of a SELECT: its name, why it depends on their order, what would fix that."""
    kind = str(modifier.get("type"))
    if kind.startswith("LIMIT"):
        what = "LIMIT"
    elif kind == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
        what = "DISTINCT ON"
    else:
        return
    orders = [order for m in node["modifiers"] if m.get("type") == "ORDER_MODIFIER" for order in m.get("orders", [])]
    if not orders:
        yield what, "without ORDER BY takes arbitrary rows", "add ORDER BY ..., _offset"
    elif not _total(orders, ()):
        yield what, "takes any of several rows that are equal in its ORDER BY", _BY_POSITION


def _window(node: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    by_rows = "ROWS" in f"{node.get('start')} {node.get('end')}" and name not in _NUMBERS_ROWS
    if name not in _NUMBERS_ROWS | _TAKES_ONE | _TAKES_ALL and not by_rows:
        return
    orders = [*(node.get("arg_orders") or []), *(node.get("orders") or [])]
    if not orders:
        if not by_rows or "UNBOUNDED" not in str(node.get("start")) or "UNBOUNDED" not in str(node.get("end")):
            yield "has no ORDER BY, so the order of its rows is arbitrary", "add ORDER BY ..., _offset to its OVER"
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
            takes = "takes an arbitrary row" if name in _TAKES_ONE else "has no ORDER BY"
            yield takes, f"write {name}(... ORDER BY ..., _offset)"
        elif not _total(orders, arguments):
            yield "depends on the order of rows that are equal in its ORDER BY", _BY_POSITION


def _total(orders: Sequence[dict[str, Any]], arguments: Sequence[Any]) -> bool:
    """Whether rows that are equal in these orders are certainly equal in ``arguments``: ordered by position, or by the arguments."""
    by = [order.get("expression") for order in orders]
    if any(_is_all(each) for each in by):
        return True
    names = {
        str(node["column_names"][-1]).lower() for each in by for node, _ in _nodes(each) if node.get("column_names")
    }
    return bool(names & _POSITIONS) or (bool(arguments) and _bare(arguments[0]) in [_bare(each) for each in by])


def _is_all(expression: Any) -> bool:
    """Whether the expression is that of ORDER BY ALL."""
    return isinstance(expression, dict) and expression.get("type") == "STAR"


def _bare(expression: Any) -> str:
    """Return an expression as JSON, without its places in the text."""

    def strip(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {
                k: strip(v) for k, v in tree.items() if k not in ("query_location", "query_location_length", "alias")
            }
        return [strip(each) for each in tree] if isinstance(tree, list) else tree

    return json.dumps(strip(expression), sort_keys=True)


def _part(node: dict[str, Any], parents: Sequence[Any], text: str, before: str) -> tuple[str, int]:
    """Return the text of the node as the user wrote it, and its line in the user's text."""
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
    """Return the start of the node in bytes, and its length; of its first part with a place if the node has none itself."""
    for each, _ in _nodes(node):
        start = each.get("query_location", _NOWHERE)
        if isinstance(start, int) and start != _NOWHERE:
            return start, int(each.get("query_location_length") or 0)
    return None, 0
