"""Where a query takes bytes for text, as a parsed query shows it (`json_serialize_sql`).

DuckDB makes text of a BLOB with escapes: `{\\x22price\\x22:1}`. A JSON function finds nothing in it
and answers NULL, and a comparison is never true. So such a query is refused. Columns are followed
through subqueries, WITH, aliases, and the functions that pass a value on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

BLOBS = ("value", "key")
"""The columns of bytes that every stream has."""

_OF_JSON = ("->", "->>", "from_json", "from_json_strict", "to_json")
_OF_TEXT = ("concat", "concat_ws", "string_agg", "group_concat", "listagg", "format", "printf")
_TEXTS = {"VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR", "NVARCHAR"}
_PASS_ON = {
    *("any_value", "arbitrary", "arg_max", "arg_min", "coalesce", "first", "first_value"),
    *("greatest", "ifnull", "lag", "last", "last_value", "lead", "least", "max", "max_by"),
    *("min", "min_by", "nth_value", "nullif"),
}
"""Functions whose answer is one of the values that they are given."""

Tree = Any
Columns = Mapping[str, bool]
"""Whether each column is of bytes."""


@dataclass(frozen=True, slots=True)
class Misused:
    """as_json: given to a function of JSON; else made text of."""

    column: str
    as_json: bool


@dataclass(slots=True)
class _Scope:
    """The tables that expressions of one SELECT see. outer: of the SELECT that it is within."""

    tables: list[tuple[str, Columns]] = field(default_factory=list)
    outer: _Scope | None = None

    def is_bytes(self, path: list[str]) -> bool:
        *table, column = [name.lower() for name in path]
        found = [
            columns[column]
            for name, columns in self.tables
            if column in columns and (not table or table[-1] == name)
        ]
        if found or self.outer is None:
            return any(found)
        return self.outer.is_bytes(path)


def misused_bytes(tree: Tree) -> Misused | None:
    """The first column of bytes that the query gives to a function of JSON, or makes text of."""
    for statement in tree.get("statements", ()):
        found = _in_query(statement.get("node"), {}, None)
        if found is not None:
            return found
    return None


def nodes_of(tree: Tree) -> Iterator[dict[str, Any]]:
    """Every object in it, in order."""
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from nodes_of(each)


def _in_query(query: Tree, ctes: Mapping[str, Tree], outer: _Scope | None) -> Misused | None:
    """query: a SELECT, or several of them put together."""
    if not isinstance(query, dict):
        return None
    ctes = {**ctes, **_ctes_of(query)}
    parts = [_cte_query(each) for each in _ctes_of(query).values()]
    if query.get("type") != "SELECT_NODE":
        parts += [query.get("left"), query.get("right"), *query.get("children", ())]
        return _first(_in_query(part, ctes, outer) for part in parts)
    scope = _Scope(list(_tables(query.get("from_table"), ctes)), outer)
    # Also in an expression of ORDER BY, a column comes before a name of the answer.
    own = {name: each for name, each in query.items() if name != "cte_map"}
    found = _first(_in_query(part, ctes, outer) for part in parts)
    return found or _in_expressions(own, ctes, scope)


def _in_expressions(tree: Tree, ctes: Mapping[str, Tree], scope: _Scope) -> Misused | None:
    if isinstance(tree, list):
        return _first(_in_expressions(each, ctes, scope) for each in tree)
    if not isinstance(tree, dict):
        return None
    kind = _misuse(tree)
    if kind:
        for given in _given_to(tree):
            column = _bytes_in(given, scope)
            if column is not None:
                return Misused(column, kind == "json")
    return _first(
        _in_query(each, ctes, scope) if _is_query(each) else _in_expressions(each, ctes, scope)
        for each in tree.values()
    )


def _first(found: Iterator[Misused | None]) -> Misused | None:
    return next((each for each in found if each is not None), None)


def _is_query(tree: Tree) -> bool:
    return isinstance(tree, dict) and "modifiers" in tree and "cte_map" in tree


def _tables(source: Tree, ctes: Mapping[str, Tree]) -> Iterator[tuple[str, Columns]]:
    """The tables of a FROM, each with its name there."""
    if not isinstance(source, dict):
        return
    name = str(source.get("table_name") or "").lower()
    alias = str(source.get("alias") or "").lower() or name
    if source.get("type") == "SUBQUERY":
        yield alias, _renamed(_columns((source.get("subquery") or {}).get("node"), ctes), source)
    elif source.get("type") == "BASE_TABLE" and name in ctes:
        rest = {each: query for each, query in ctes.items() if each != name}
        yield alias, _renamed(_columns(_cte_query(ctes[name]), rest), ctes[name], source)
    elif source.get("type") == "BASE_TABLE":
        yield alias, _renamed(_STREAM, source)
    else:
        for part in ("left", "right", "source"):
            yield from _tables(source.get(part), ctes)


_STREAM: Columns = {
    name: name in BLOBS
    for name in ("stream", "subject", "offset", "timestamp", "key", "value", "headers")
}


def _renamed(columns: Columns, *sources: Tree) -> Columns:
    """With the names of `t(a, b)`."""
    for source in sources:
        names = source.get("column_name_alias") or source.get("aliases") or ()
        before = list(columns.items())
        after = [(str(name).lower(), each[1]) for name, each in zip(names, before, strict=False)]
        columns = dict(after + before[len(after) :])
    return columns


def _columns(query: Tree, ctes: Mapping[str, Tree]) -> Columns:
    """The columns of a query's answer."""
    if not isinstance(query, dict):
        return {}
    ctes = {**ctes, **_ctes_of(query)}
    if query.get("type") != "SELECT_NODE":
        parts = [query.get("left"), *query.get("children", ())]
        return next((_columns(part, ctes) for part in parts if part), {})
    scope = _Scope(list(_tables(query.get("from_table"), ctes)))
    columns: dict[str, bool] = {}
    for item in query.get("select_list", ()):
        if item.get("class") == "STAR":
            replaced = {str(each["key"]).lower(): each["value"] for each in _replaced(item)}
            for table, names in scope.tables:
                if item.get("relation_name") in (None, "", table):
                    columns |= names
            columns |= {name: _bytes_in(each, scope) is not None for name, each in replaced.items()}
        else:
            name = str(item.get("alias") or (item.get("column_names") or [""])[-1]).lower()
            columns[name] = _bytes_in(item, scope) is not None
    return columns


def _replaced(star: Tree) -> list[Tree]:
    return [each for each in star.get("replace_list") or () if "key" in each and "value" in each]


def _ctes_of(query: Tree) -> dict[str, Tree]:
    entries = (query.get("cte_map") or {}).get("map") or ()
    return {str(each["key"]).lower(): each["value"] for each in entries}


def _cte_query(cte: Tree) -> Tree:
    """As releases of DuckDB say it."""
    return cte.get("query_node") or (cte.get("query") or {}).get("node")


def _misuse(node: Tree) -> str:
    """ "json", "text", or "": what an expression makes of what it is given."""
    if node.get("class") == "CAST":
        kinds = _values([node.get("cast_type"), node.get("type_expr")])
        names = {str(each).upper() for each in kinds}
        return "json" if "JSON" in names else "text" if names & _TEXTS else ""
    if node.get("class") == "LAMBDA":  # For the parser `a -> 'b'` is one.
        return "json" if (node.get("expr") or {}).get("class") == "CONSTANT" else ""
    name = str(node.get("function_name"))
    if name in _OF_JSON or name.startswith("json"):
        return "json"
    return "text" if name in _OF_TEXT else ""


def _values(tree: Tree) -> Iterator[object]:
    if isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from _values(each)
    else:
        yield tree


def _given_to(node: Tree) -> list[Tree]:
    """What a function or a cast is given, as releases of DuckDB say it."""
    given = [*node.get("children", ()), node.get("child"), node.get("lhs")]
    return given + [each.get("expression") for each in node.get("arguments", ())]


def _bytes_in(node: Tree, scope: _Scope) -> str | None:
    """The column whose bytes an expression's value may be."""
    if not isinstance(node, dict):
        return None
    kind = node.get("class")
    if kind == "COLUMN_REF":
        return str(node["column_names"][-1]) if scope.is_bytes(node["column_names"]) else None
    if kind == "CASE":
        given = [each.get("then_expr") for each in node.get("case_checks", ())]
        given.append(node.get("else_expr"))
    elif "COALESCE" in str(node.get("type")) or node.get("function_name") in _PASS_ON:
        given = _given_to(node)
    else:
        return None
    return next((found for each in given if (found := _bytes_in(each, scope))), None)
