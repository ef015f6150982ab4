"""What type checkers say of programs on the SDK. `scripts/check` runs mypy on it, which fails for
an error that is not expected here, and for one that is expected and does not come.

test_typed_sdk.py imports it: what is written here must be possible while a program runs, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_type

from jetstream_client import (
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    GroupConsumer,
    Message,
    Publisher,
    RecordType,
    StreamDescription,
    Table,
)


@dataclass
class Order:
    total: int


def order_of(data: bytes) -> Order:
    return Order(**json.loads(data))


def bytes_of(order: Order) -> bytes:
    return json.dumps(order.__dict__).encode()


def order_key(order: Order) -> str:
    return str(order.total)


Plain: TypeAlias = Message[bytes]
Orders: TypeAlias = Consumer[Order, str]


def creates(client: Client) -> int:
    client.create_stream("orders", subject="orders.>", replicas=1, flush="group")
    client.create_stream("orders", subject="orders.>", flush="sometimes")  # type: ignore[arg-type]
    assert_type(client.describe_stream("orders"), StreamDescription)
    client.publish(1, b"x")  # type: ignore[arg-type]
    offset: int = client.publish("orders.eu", b"x", key=b"42", headers={"source": "web"}).offset
    return offset


def reads(client: Client) -> None:
    consumer = client.consume("orders", value_deserializer=order_of, patience="30s")
    assert_type(consumer, Consumer[Order, bytes])
    for message in consumer:
        assert_type(message, Message[Order])
        if message.value is not None:
            message.value.total += 1
            message.value.totl += 1  # type: ignore[attr-defined]
        message.value.total += 1  # type: ignore[union-attr]
    keyed = client.consume("orders", key_deserializer=bytes.decode)
    assert_type(keyed, Consumer[bytes, str])
    assert_type(client.consume("orders", value_deserializer=json.loads), Consumer[Any, bytes])
    member = client.consume_group("orders", "billing", value_deserializer=order_of)
    assert_type(member, GroupConsumer[Order, bytes])
    assert_type(next(client.consume("orders")).value, bytes | None)
    assert_type(client.fetch("orders", max_wait="1s")[0], Message[bytes])
    assert client.fetch("orders", start=0).missing  # type: ignore[attr-defined]
    client.consume("orders", value_deserializer=bytes_of)  # type: ignore[arg-type]


def keeps(client: Client) -> None:
    table = client.table("orders", key_deserializer=bytes.decode, value_deserializer=order_of)
    assert_type(table, Table[str, Order])
    assert_type(table["one"].total, int)
    assert table["one"].totl  # type: ignore[attr-defined]
    plain = client.table("orders")
    assert_type(plain["text stands for its bytes"], bytes)


def writes(client: Client) -> None:
    with client.publisher("orders", value_serializer=bytes_of, linger="5ms") as publisher:
        assert_type(publisher, Publisher[Order])
        publisher.send(Order(1))
        publisher.send(None)
        publisher.send(b"bytes")  # type: ignore[arg-type]
        publisher.publish_many([Order(1), None])
    with client.publisher("orders") as plain:
        plain.send("text", key=b"\xff")
        plain.publish_many([b"one", b"two"])
        plain.send(Order(1))
        plain.send(1)  # type: ignore[arg-type]
    with client.publisher("orders", key_serializer=str, value_serializer=bytes_of) as keyed:
        keyed.send(Order(1), key=object())
    with client.publisher("orders", key_serializer=order_key) as by_order:
        by_order.publish_many(["one"], keys=[Order(1)])
        by_order.send("one", key="text")  # type: ignore[arg-type]
    client.publish("orders", Order(1))
    client.publish("orders", [1])  # type: ignore[arg-type]


def reads_objects(client: Client) -> None:
    consumer = client.consume("orders", value_deserializer=RecordType(Order))
    assert_type(consumer, Consumer[Order, bytes])
    assert_type(client.fetch("orders")[0].row(Order), Order | None)


async def reads_without_threads(client: AsyncClient) -> None:
    assert_type((await client.publish("orders.eu", "x", acks=["orders"])).offset, int)
    consumer = client.consume("orders", value_deserializer=order_of)
    assert_type(consumer, AsyncConsumer[Order, bytes])
    async for message in consumer:
        assert_type(message.value, Order | None)
