"""Classes of a program as schemas of streams, and their objects as records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_client import InvalidRequestError, Message, RecordType, SchemaMismatchError
from jetstream_client.values.records import value_to_bytes
from jetstream_client.values.types import StreamSchema
from jetstream_protocol.schema import parse


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    sku: str
    count: int = 1


@dataclass
class Order:
    id: int
    price: float
    items: list[Item]
    at: datetime
    day: date | None
    paid: bool = False
    colour: Colour | None = None
    total: Decimal = Decimal(0)
    token: UUID | None = None
    photo: bytes = b""
    size: Literal["small", "large"] = "small"
    tags: tuple[str | None, ...] = ()
    notes: list[str] = field(default_factory=list)


class ItemModel(pydantic.BaseModel):
    sku: str
    count: int = 1


class OrderModel(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="id")
    items: list[ItemModel]
    photo: bytes = b""
    at: datetime | None = None


SCHEMA = (
    "id bigint not null, price double not null, "
    "items list<struct<sku string not null, count bigint>> not null, at timestamp not null, "
    "day date, paid boolean, colour string, total string, "
    "token string, photo binary, size string, tags list<string>, notes list<string>"
)


def message(value: bytes | None) -> Message:
    return Message("orders", 7, 0, "orders.eu", None, value)


def test_a_dataclass_has_a_schema() -> None:
    assert RecordType(Order).schema == str(parse(SCHEMA))


def test_the_key_of_a_record_is_its_alias_and_a_columns_name_is_given_another() -> None:
    @dataclass
    class Reading:
        key: str

    assert RecordType(OrderModel).schema == (
        "id bigint not null, items list<struct<sku string not null, count bigint>> not null, "
        "photo binary, at timestamp"
    )
    assert RecordType(Reading).schema == "key_ string not null alias key"
    assert message(b'{"key":"a"}').row(Reading) == Reading("a")


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
orders = st.builds(
    Order,
    id=st.integers(-(2**63), 2**63 - 1),
    price=st.floats(allow_nan=False, allow_infinity=False),
    items=st.lists(st.builds(Item, texts, st.integers(0, 9)), max_size=2),
    at=st.datetimes(
        datetime(1, 1, 3), datetime(9999, 12, 29),
        timezones=st.sampled_from([UTC]),
    ),
    day=st.none() | st.dates(date(1, 1, 2), date(9999, 12, 30)),
    paid=st.booleans(),
    colour=st.none() | st.sampled_from(Colour),
    total=st.decimals(allow_nan=False),
    token=st.none() | st.uuids(),
    photo=st.binary(max_size=5),
    size=st.sampled_from(["small", "large"]),
    tags=st.lists(st.none() | texts, max_size=2).map(tuple),
    notes=st.lists(texts, max_size=2),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(orders)
def test_an_object_is_read_as_it_was_published(order: Order) -> None:
    value = value_to_bytes(order)
    assert value is not None
    assert RecordType(Order)(value) == order
    assert message(value).row(Order) == order
    assert message(value).row(StreamSchema(1, (SCHEMA,)))["_error"] is None


def test_models_are_read_as_they_were_published() -> None:
    order = OrderModel(id=3, items=[ItemModel(sku="a")], photo=b"\xff", at=datetime(2026, 1, 31))
    value = value_to_bytes(order)
    assert value == (
        b'{"id":3,"items":[{"sku":"a","count":1}],"photo":"/w==","at":"2026-01-31T00:00:00"}'
    )
    read = RecordType(OrderModel)(value)
    assert read.at == datetime(2026, 1, 31, tzinfo=UTC)
    assert read.model_copy(update={"at": order.at}) == order


def test_structs_are_read_as_they_were_published() -> None:
    class Part(msgspec.Struct):
        sku: str

    class Packed(msgspec.Struct, rename="camel"):
        order_id: int
        parts: list[Part]
        photo: bytes | None = None

    # What is local to a test cannot be found by its name.
    Packed.__annotations__.update(order_id=int, parts=list[Part], photo=bytes | None)
    order = Packed(3, [Part("a")], b"\xff")
    value = value_to_bytes(order)  # type: ignore[arg-type]
    assert value == b'{"orderId":3,"parts":[{"sku":"a"}],"photo":"/w=="}'
    assert RecordType(Packed)(value) == order
    assert RecordType(Packed).schema == (
        "orderId bigint not null, parts list<struct<sku string not null>> not null, photo binary"
    )


def test_what_is_not_there_has_its_default() -> None:
    row = message(b'{"id":1,"price":2,"items":[{"sku":"a"}],"at":"2026-01-31 10:00"}').row(Order)
    at = datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert row == Order(1, 2.0, [Item("a")], at, None)
    assert message(None).row(Order) is None


@pytest.mark.parametrize(
    ("value", "why"),
    [(b'{"id":1.5}', "id is not a bigint"), (b"{}", "id is missing"), (b"x", "not JSON")],
)
def test_a_record_that_does_not_fit_says_why(value: bytes, why: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"the record is no Order: .*{why}"):
        message(value).row(Order)


class Named(NamedTuple):
    id: int


@dataclass
class Recursive:
    inner: Recursive | None


@dataclass
class Anything:
    other: Any


@dataclass
class Either:
    other: int | str


@pytest.mark.parametrize("cls", [int, Named, Recursive, Anything, Either])
def test_other_classes_are_refused(cls: type) -> None:
    with pytest.raises(InvalidRequestError, match=r"neither|nested|no column can have"):
        RecordType(cls)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Item("a", "three"), "read again as Item: count is not a bigint"),  # type: ignore[arg-type]
        (Item("a", 2**70), "read again as Item: count is not a bigint"),
        (Item(None), "read again as Item: sku is missing"),  # type: ignore[arg-type]
    ],
)
def test_an_object_that_could_not_be_read_again_is_not_published(given: Item, why: str) -> None:
    """It would stop every consumer of the class, at this record."""
    with pytest.raises(SchemaMismatchError, match=why):
        value_to_bytes(given)


def test_an_object_of_a_class_that_is_no_schema_is_not_published() -> None:
    @dataclass
    class Labelled:
        labels: dict[str, str]

    with pytest.raises(InvalidRequestError, match=r"labels: no column .* as json.dumps makes them"):
        value_to_bytes(Labelled({"a": "b"}))


def test_a_record_type_that_is_given_an_object_says_which_way_it_goes() -> None:
    with pytest.raises(TypeError, match=r"as value_serializer take RecordType\(Item\)\.dumps"):
        RecordType(Item)(Item("a"))  # type: ignore[arg-type]


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="an object of Item cannot be JSON"):
        value_to_bytes(Item("a", float("nan")))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"Anything\.other: no column can have"):
        value_to_bytes(Anything({1}))
    with pytest.raises(TypeError, match="a value must be bytes"):
        value_to_bytes(3)  # type: ignore[arg-type]
