"""Typed columns of a DataFrame after its streams' schema has changed."""

from __future__ import annotations

import pytest

from jetstream_protocol.schema import parse
from pyspark_jetstream.errors import OptionError
from pyspark_jetstream.typed import _followed


@pytest.mark.parametrize(
    ("before", "now", "decoded"),
    [
        ("a int", "a int not null, b date", "a int not null, b date"),
        ("a int", "b bigint alias a", "a int alias b"),
        ("b int", "c int alias b alias a", "b int alias c alias a"),
        (
            "a list<struct<b int>>",
            "a list<struct<c bigint alias b, d date>>",
            "a list<struct<b int alias c>>",
        ),
    ],
)
def test_columns_keep_their_names_and_types(before: str, now: str, decoded: str) -> None:
    found = _followed(parse(before).fields, parse(now).fields, "orders")
    assert found == parse(decoded).fields


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ("a int", "b int", "a is gone"),
        ("a int", "a string", "a cannot change from int to string"),
        ("a struct<b int>", "a struct<c int>", "a.b is gone"),
    ],
)
def test_other_changes_end_the_query_with_the_reason(before: str, now: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"'orders' is another one now .{why}"):
        _followed(parse(before).fields, parse(now).fields, "orders")
