"""Which queries take bytes for text."""

from __future__ import annotations

import json

import duckdb
import pytest

from jetstream_client.sql.misused_bytes import Misused, misused_bytes


def misused(query: str) -> Misused | None:
    (text,) = duckdb.connect().execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
    tree = json.loads(text)
    assert not tree["error"], tree
    return misused_bytes(tree)


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("select value->>'$.x' from t", "value"),
        ("select value->>'$.x' as value from t", "value"),
        ("select json_extract(value, '$.x') as value from t", "value"),
        ("select t.value->'$.x' from t", "value"),
        ("select 1 from t where value->>'x' = '1'", "value"),
        ("select count(*) from t group by value->>'x'", "value"),
        ("select max(value)->>'x' from t", "value"),
        ("select coalesce(value, key)->>'x' from t", "value"),
        ("select (case when true then value end)->>'x' from t", "value"),
        ("select last(value order by \"offset\")->>'x' from t", "value"),
        ("select lag(value) over ()->>'x' from t", "value"),
        ("select v->>'x' from (select value as v from t)", "v"),
        ("select w->>'x' from (select v as w from (select value as v from t))", "w"),
        ("select v->>'x' from (select value from t) as s(v)", "v"),
        ("with a as (select value v from t) select v->>'x' from a", "v"),
        ("with a(v) as (select value from t) select v->>'x' from a", "v"),
        ("with a as (select * from t) select value->>'x' from a", "value"),
        ("with a as (select decode(value) as value from t) select value->>'x' from t", "value"),
        ("select value->>'x' as value from a union all select 'x' as value", "value"),
        ("select 'x' as value union all select value->>'x' as value from b", "value"),
        ("select x.value->>'a' from t x, (select '{}' as value) y", "value"),
        ("select * from t, json_each(value)", "value"),
        ("select 1 where exists (select 1 from t where key->>'x' = '1')", "key"),
        ("select (select value->>'x') from t", "value"),
        ("select to_json(value) from t", "value"),
        ("select value::json from t", "value"),
        ("select try_cast(value as json) from t", "value"),
        ("from t select value->>'x'", "value"),
        ("select value from t order by value->>'x'", "value"),
        ("select decode(value) as value from t order by value->>'$.x'", "value"),
    ],
)
def test_bytes_given_to_a_function_of_json_are_found(query: str, column: str) -> None:
    assert misused(query) == Misused(column, as_json=True)


@pytest.mark.parametrize(
    "query",
    [
        "select value::varchar from t",
        "select 1 from t where cast(value as text) = '{}'",
        "select concat(value, '!') from t",
        "select string_agg(value, ',') from t",
    ],
)
def test_bytes_made_text_are_found(query: str) -> None:
    assert misused(query) == Misused("value", as_json=False)


@pytest.mark.parametrize(
    "query",
    [
        "select value, key from t",
        "select decode(value)->>'$.x' from t",
        "select decode(value)->>'$.x' as value from t",
        "select decode(max(value))->>'x' from t",
        "with t as (select decode(value) as value from s) select value->>'a' from t",
        "with a as (select * replace (decode(value) as value) from t) select value->>'a' from a",
        "select value->>'a' from (select decode(value) as value from t)",
        "select y.value->>'a' from t x, (select '{}' as value) y",
        "select x.value->>'k' from (select {'value': '1'} as x)",
        "select stream->>'x', value from (select '{}' as stream, value from t)",
        'select hex(value)::varchar, length(value)::varchar, "offset"::varchar from t',
        "select list_transform([1], lambda x: x + 1), value from t",
    ],
)
def test_text_is_not_taken_for_bytes(query: str) -> None:
    assert misused(query) is None
