"""The text of schemas, what they may be, and which may follow which."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import DEPTH_MAX, FIELDS_MAX, changes, parse, why_incompatible


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("id BIGINT,price  double", "id bigint, price double"),
        ("id long NOT NULL, ok bool", "id bigint not null, ok boolean"),
        ("a array<struct<b: integer, c date>>", "a list<struct<b int, c date>>"),
        ("total double alias sum alias amount", "total double alias sum alias amount"),
        ("struct struct<list list<int>>, x date", "struct struct<list list<int>>, x date"),
    ],
)  # fmt: skip
def test_a_text_is_written_in_one_way(text: str, written: str) -> None:
    assert str(parse(text)) == written
    assert parse(written) == parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "in place of a name"),
        ("id", "id has no type"),
        ("id number", "id: there is no type 'number'"),
        ("price decimal(10, 2)", "there is no type|goes on with"),
        ("id int, ID int", "two fields ID"),
        ("id int alias id", "two fields id"),
        ("offset bigint", "offset_ bigint alias offset"),
        ("_error string", "a column that every stream has"),
        ("Leader_Epoch int", "Leader_Epoch_ int alias Leader_Epoch"),
        ("a list<int", "in place of '>'"),
        ("a struct<>", "in place of a name"),
        ("a int;drop", "cannot be read at ';drop'"),
        ("a int b", "goes on with 'b'"),
        (f"{'a' * 65} int", "in place of a name|at most 64"),
        ("a " + "list<" * DEPTH_MAX + "int" + ">" * DEPTH_MAX, "levels deep"),
        ("a " + "list<" * 3000, "levels deep"),
        (", ".join(f"a{number} int" for number in range(FIELDS_MAX + 1)), "at most 500 fields"),
        ("a int," * 5000, "at most 16384 characters"),
        ("a int" + "".join(f" alias b{number}" for number in range(9)), "at most 8 aliases"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("a int", "a bigint", ""),
        ("a int", "a double", ""),
        ("a int", "b date, a int", ""),
        ("a int", "b bigint alias a", ""),
        ("b int alias a", "c int alias b alias a", ""),
        ("a int not null", "a int", ""),
        ("a list<struct<b int>>", "a list<struct<c bigint alias b, d date>>", ""),
        ("a bigint", "a int", "a cannot change from bigint to int"),
        ("a bigint", "a double", "a cannot change from bigint to double"),
        ("a int", "a string", "from int to string: int can become bigint or double"),
        ("a int, b int", "a int", "b is gone"),
        ("b int alias a", "b int", "b has lost its alias a"),
        ("b int alias a", "c int alias b", "b has lost its alias a"),
        ("a int", "a int not null", "cannot become not null"),
        ("a int", "a int, b int not null", "b is new, so it cannot be not null"),
        ("a int, b int", "a int alias b", "b would be one field with another"),
        ("a list<int>", "a list<string>", r"a\[\] cannot change from int to string"),
        ("a struct<b int>", "a struct<c int>", "a.b is gone"),
    ],
)
def test_a_schema_follows_another_or_the_reason_is_said(before: str, after: str, why: str) -> None:
    found = why_incompatible(parse(before), parse(after))
    assert why in found if "\\" not in why else found.startswith("a[] cannot change")
    assert bool(found) == bool(why)


def test_changes_are_told_by_field() -> None:
    assert changes(parse("a int, b int"), parse("b bigint, c date")) == [
        "- a int",
        "~ b int  ->  b bigint",
        "+ c date",
    ]
