"""The text of layouts, what they may be, and which may follow which."""

from __future__ import annotations

import pytest

from jetstream_protocol import typed_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.fitting import Fitting
from jetstream_protocol.schema import changes, parse, shown, why_incompatible
from jetstream_protocol.typed_values import columns_of

AVRO = "id bigint not null using avro (7) <id long>"


@pytest.mark.parametrize(
    "text",
    [
        AVRO,
        "id bigint using avro <id long>",
        'id bigint, note string not null default "none\'s" alias text using avro (7) <id long>, '
        "(8) <id union<null, long>, text string, kind enum(A, B), d fixed_decimal(16, 2)>",
        "tags list<struct<key string, value int>> using protobuf (1, 0) <1 tags repeated "
        "message<1 key string, 2 value optional sint32>, 4 kind oneof1 enum(A, 0, B, -1)>",
        "id bigint, tags list<struct<sku string>> using arrow <id uint16, tags fixed_list(3)<"
        "struct<sku bytes_view>>, more fixed_decimal(16, 2), at timestamp_ns>",
    ],
)
def test_a_layout_is_written_as_it_is_read(text: str) -> None:
    assert str(parse(text)) == text
    assert shown(text).startswith(text.partition(" using ")[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a int using csv <a int>", "there is no format 'csv': json, avro, protobuf, arrow"),
        ("a int using arrow <a int>", "arrow has no kind 'int'"),
        ("a int using arrow (7) <a int32>", "arrow has one layout, without an id"),
        ("a int using arrow <a int32>, <a int32>", "arrow has one layout, without an id"),
        ("a list<int> using arrow <a list>", "cannot have"),
        ("a int using arrow <a struct<int32>>", "cannot have"),
        ("a int using avro", "at least one part"),
        ("a int using avro <a int>, <b int>", "an id of its own"),
        ("a int using avro (7) <a int>, (7) <a int>", "an id of its own"),
        ("a int using avro (7, 8) <a int>", "has one id"),
        ("a int using avro (-1) <a int>", "has one id"),
        ("a int using avro (4294967296) <a int>", "in place of a number"),
        ("a int using avro <a number>", "avro has no kind 'number'"),
        ("a int using avro <int>", "cannot have 'int'"),
        ("a int using avro <1 a int>", "cannot have '1 a int'"),
        ("a int using avro <a int, a int>", "one name or number"),
        ("a int using avro <a array<int, int>>", "cannot have"),
        ("a int using avro <a record>", "at least one part"),
        ("a int using avro <a fixed>", "cannot have"),
        ("a int using avro <a fixed(x)>", "cannot have"),
        ("a string using avro <a decimal(39)>", "cannot have"),
        ("a int using avro <a enum>", "cannot have"),
        ("a int using avro <a optional int>", "cannot have"),
        ("a int using avro <a " + "array<" * 40 + "int" + ">" * 40 + ">", "levels deep"),
        ("a int using avro <" + ", ".join(f"f{n} int" for n in range(1200)) + ">, (1) <x int>",
         "an id of its own"),
        ("a int using avro <" + ", ".join(f"f{n} int" for n in range(1700)) + ">", "characters"),
        ("a int using protobuf <1 a int32>", "of one message"),
        ("a int using protobuf (0) <a int32>", "cannot have"),
        ("a int using protobuf (0) <536870912 a int32>", "cannot have"),
        ("a int using protobuf (0) <1 a many int32>", "cannot have"),
        ("a int using protobuf (0) <1 a enum(A)>", "cannot have"),
        ("a int using protobuf (0) <1 a int32, 1 b int32>", "one name or number"),
        ("a int using protobuf (0) <1 a int32>, (1) <1 a int32>", "one layout"),
        ("a int default 1", "only fields of Avro"),
        ("a int default {} using avro <a int>", "cannot be read at"),
        ("a int default null using avro <a int>", "cannot be the default"),
        ('a string default "\\ud800" using avro <a string>', "cannot be the default"),
        ("a int default 1e using avro <a int>", "cannot be the default"),
    ],
)  # fmt: skip
def test_what_is_no_layout_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (AVRO, f"{AVRO}, (8) <id long, more int>", ""),
        (AVRO, "id bigint not null, n int using avro (7) <id long>, (8) <id long, n int>", ""),
        (AVRO, "id bigint, n int not null default 3 using avro (7) <id long>, (8) <n int>", ""),
        (AVRO, "id bigint, n int not null using avro (7) <id long>, (8) <n int>", "n is new"),
        (AVRO, "number bigint alias id using avro (7) <id long>, (8) <number long>", ""),
        (AVRO, "id bigint using avro (8) <id long>", "the layout 7 is gone"),
        (AVRO, "id bigint using avro <id long>", "the layout 7 is gone"),
        (AVRO, "id bigint using avro (7) <id int>", "the layout 7 cannot change"),
        ("a int using avro <a int>", "a int using avro <a long>",
         "the layout without an id cannot change"),
        ("a int default 1 using avro <b int>", "a int using avro <b int>", "lost its default"),
        (AVRO, "id bigint", "its format cannot change from avro to json"),
        ("id bigint", AVRO, "its format cannot change from json to avro"),
        ("a int using protobuf (0) <1 a int32>", "a bigint using protobuf (0) <1 a int64>", ""),
        ("a int using protobuf (0) <1 a int32>",
         "b int alias a, c string using protobuf (0) <1 b int32, 2 c string>", ""),
        ("a bigint using protobuf (0) <1 a uint32>", "a bigint using protobuf (0) <1 a int64>", ""),
        ("a int using protobuf (0) <1 a int32>", "a int using protobuf (0) <2 a int32>",
         "a must keep the number 1"),
        ("a int, b int using protobuf (0) <1 a int32, 2 b int32>",
         "a int, b int using protobuf (0) <2 a int32, 1 b int32>", "a must keep the number 1"),
        ("a int using protobuf (0) <1 a int32>", "a int using protobuf (0) <1 a sint32>",
         "a cannot change from '1 a int32' to '1 a sint32'"),
        ("a int using protobuf (0) <1 a int32>", "a int using protobuf (1) <1 a int32>",
         "message 0 of its file"),
        ("a struct<b int> using protobuf (0) <1 a message<1 b int32>>",
         "a struct<b int> using protobuf (0) <1 a message<2 b int32>>",
         "a.b must keep the number 1"),
        ("a list<struct<b int>> using protobuf (0) <1 a repeated message<1 b int32>>",
         "a list<struct<b int>> using protobuf (0) <1 a repeated message<1 b sint32>>",
         "a.b cannot change"),
        ("a int using arrow", "a bigint, b date using arrow <a int32, b date32>", ""),
        ("a int using arrow", "a bigint using arrow", "batches without a schema stay a int32: put"),
        ("a int using arrow", "b date, a int using arrow", "batches without a schema stay a int32"),
    ],
)  # fmt: skip
def test_a_layout_follows_another_or_the_reason_is_said(before: str, after: str, why: str) -> None:
    found = why_incompatible(parse(before), parse(after))
    assert why in found
    assert bool(found) == bool(why)


def test_what_arrow_has_in_a_batch_follows_from_the_types_if_nothing_else_is_said() -> None:
    text = "a int, b list<struct<c string, d timestamp>>, e date not null"
    found = parse(f"{text} using arrow")
    batch = "<a int32, b list<struct<c bytes, d timestamp_us>>, e date32>"
    assert str(found) == f"{text} using arrow {batch}"
    assert parse(str(found)) == found
    assert found.using == "arrow"


def test_changes_name_new_layouts() -> None:
    assert changes(parse(AVRO), parse(f"{AVRO}, (8) <id long>")) == ["+ avro 8"]
    assert changes(parse("id bigint not null"), parse(AVRO)) == ["~ json  ->  avro", "+ avro 7"]


def test_without_compiled_code_nothing_is_read_and_nothing_is_let_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(typed_json, "compiled", None)
    with pytest.raises(InvalidRequestError, match="avro is read by compiled code"):
        columns_of(parse(AVRO))
    found = Fitting(AVRO).misfits([None, b"\0\0\0\0\7\2"])
    assert [*found] == [1]
    assert "avro is read by compiled code" in str(found[1])
