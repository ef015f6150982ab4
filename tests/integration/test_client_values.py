"""Values as programs work with them: text, JSON, (de)serialisers, data frames; moving a reader."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pytest

from jetstream_client import AsyncClient, Client, InvalidRequestError, Message
from tests.support.loops import on_loop
from tests.support.odd_errors import odd_errors
from tests.support.server import ServerProcess

ORDERS = [{"id": number, "total": number * 1.5} for number in range(5)]


@pytest.fixture(scope="module", autouse=True)
def filled(server: ServerProcess) -> None:
    """`orders`: JSON with keys, a tombstone at offset 5."""
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.>")
        with client.publisher("orders.eu", value_serializer=json.dumps) as publisher:
            for order in ORDERS:
                publisher.send(order, key=str(order["id"]))
            publisher.send(None, key="0")


def test_a_message_reads_its_value_as_text_and_as_json(client: Client) -> None:
    *messages, tombstone = client.fetch("orders")
    assert [message.json() for message in messages] == ORDERS
    assert messages[1].text == '{"id": 1, "total": 1.5}'
    assert (tombstone.text, tombstone.json()) == (None, None)


def test_what_is_no_text_or_json_is_not_read_as_such() -> None:
    message = Message("orders", 0, 0, "x", None, b"\xff")
    with pytest.raises(UnicodeDecodeError):
        message.text  # noqa: B018
    with pytest.raises(ValueError, match="utf-8"):
        message.json()


def test_a_serialiser_serves_whole_lists_and_its_failure_is_the_callers(client: Client) -> None:
    client.create_stream("lists", "lists")
    with client.publisher("lists", value_serializer=json.dumps) as publisher:
        publisher.publish_many([1, [2], None])
        with pytest.raises(TypeError, match="not JSON serializable"):
            publisher.send(b"bytes")
        assert publisher.send("text").result().offset == 3
    assert [message.json() for message in client.fetch("lists")] == [1, [2], None, "text"]


def test_a_serialiser_of_keys_serves_every_way_to_send(client: Client) -> None:
    client.create_stream("keyed", "keyed")
    with client.publisher("keyed", key_serializer=str) as publisher:
        publisher.send("a", key=7).result()
        publisher.publish_many(["b", "c", "d"], keys=iter([8, None, 0])).result()
    assert client.fetch("keyed").keys() == [b"7", b"8", None, b"0"]
    with client.table("keyed", key_deserializer=int) as table:
        assert table.snapshot() == {7: b"a", 8: b"b", 0: b"d"}


def test_a_consumer_hands_out_what_the_deserialisers_make(client: Client) -> None:
    with client.consume(
        "orders", stop="latest", key_deserializer=int, value_deserializer=json.loads
    ) as consumer:
        found = [(message.key, message.value) for message in consumer]
    assert found == [*((order["id"], order) for order in ORDERS), (0, None)]


def test_a_record_that_cannot_be_deserialised_is_named_and_not_passed_over(client: Client) -> None:
    def small(value: bytes) -> Any:
        if json.loads(value)["id"] == 2:
            raise RuntimeError("too large")
        return json.loads(value)

    with client.consume("orders", value_deserializer=small) as consumer:
        assert [next(consumer).value for _ in range(2)] == ORDERS[:2]
        for _ in range(2):
            with pytest.raises(RuntimeError) as raised:
                next(consumer)
            assert "record 2 of stream 'orders'" in raised.value.__notes__[0]
            assert consumer.position == 2
        consumer.seek(3)
        assert next(consumer).value == ORDERS[3]


@odd_errors
def test_an_odd_exception_of_a_deserialiser_is_the_one_that_is_raised(
    client: Client, error: Exception
) -> None:
    def refuse(value: bytes) -> Any:
        raise error

    with client.consume("orders", value_deserializer=refuse) as consumer:
        with pytest.raises(type(error)) as raised:
            next(consumer)
        assert raised.value is error
        assert consumer.position == 0
    with pytest.raises(
        InvalidRequestError, match=rf"of stream 'orders'.* failed: {type(error).__name__}: "
    ):
        client.table("orders", value_deserializer=refuse)


def test_a_table_is_of_what_the_deserialisers_make(client: Client) -> None:
    with client.table("orders", key_deserializer=int, value_deserializer=json.loads) as table:
        assert table.snapshot() == {order["id"]: order for order in ORDERS[1:]}
        assert table[4]["total"] == 6.0
        assert 0 not in table
        assert "4" not in table


def test_a_table_that_cannot_be_deserialised_says_which_record_it_was(client: Client) -> None:
    with pytest.raises(
        InvalidRequestError, match=r"record 0 of stream 'orders' failed: ValueError"
    ):
        client.table("orders", value_deserializer=int)


@on_loop
async def test_the_asynchronous_client_serialises_alike(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("awaited", "awaited")
        async with client.publisher("awaited", value_serializer=json.dumps) as publisher:
            await publisher.publish_many([{"a": 1}, {"a": 2}])
        async with client.consume("awaited", value_deserializer=json.loads) as consumer:
            assert (await anext(consumer)).value == {"a": 1}
            await consumer.seek(1)
            assert (await anext(consumer)).value == {"a": 2}
        async with client.table("orders", key_deserializer=int) as table:
            assert sorted(table) == [1, 2, 3, 4]
        frame = await client.scan("orders", columns=["offset"]).to_polars()
        assert frame["offset"].to_list() == list(range(6))
        pandas_frame = await client.scan("orders", columns=["offset"]).to_pandas()
        assert pandas_frame["offset"].tolist() == list(range(6))


def test_a_paused_reader_waits_until_another_thread_resumes_it(client: Client) -> None:
    with client.consume("orders", stop="latest") as consumer:
        assert next(consumer).offset == 0
        consumer.pause()
        assert consumer.paused
        found: list[int] = []
        reader = threading.Thread(target=lambda: found.extend(each.offset for each in consumer))
        reader.start()
        reader.join(timeout=0.3)
        assert reader.is_alive()
        assert found == []
        consumer.resume()
        reader.join(timeout=60)
        assert found == [1, 2, 3, 4, 5]


def test_records_become_frames_of_polars_and_pandas(client: Client) -> None:
    pandas = pytest.importorskip("pandas")
    columns = ["offset", "value"]
    messages, scan = client.fetch("orders"), client.scan("orders", columns=columns)
    polars_frames = [messages.to_polars(columns), scan.to_polars()]
    pandas_frames = [messages.to_pandas(columns), scan.to_pandas()]
    for frame in [*polars_frames, *pandas_frames]:
        assert list(frame.columns) == columns
        assert list(frame["offset"]) == list(range(6))
        assert json.loads(frame["value"][1]) == ORDERS[1]
    assert isinstance(pandas_frames[0], pandas.DataFrame)


@pytest.mark.parametrize("package", ["polars", "pandas"])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(
    client: Client, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    messages = client.fetch("orders")
    with pytest.raises(ImportError, match=f"pip install {package}") as raised:
        getattr(messages, f"to_{package}")()
    assert raised.value.name == package


def test_headers_may_be_pairs_as_kafkas_clients_take_them(client: Client) -> None:
    client.create_stream("pairs", "pairs")
    pairs = [("a", b"1"), ("b", "2"), ("a", "3")]
    client.publish("pairs", b"", headers=pairs)
    with client.publisher("pairs") as publisher:
        publisher.send(b"", headers=pairs)
        with pytest.raises(TypeError, match=r"header 'a' must be str, bytes .* not int"):
            publisher.send(b"", headers={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"header 'a' must be str, bytes .* not int"):
        client.publish("pairs", b"", headers=[("a", 1)])  # type: ignore[list-item]
    found = [message.headers.multi_items() for message in client.fetch("pairs")]
    assert found == [[("a", "1"), ("a", "3"), ("b", "2")]] * 2


def test_several_streams_where_one_belongs_are_refused_by_type(client: Client) -> None:
    two: Any = ["orders", "lists"]
    for call in (client.scan, client.consume, client.fetch, client.describe_stream):
        with pytest.raises(TypeError, match="the stream's name must be one str, not list"):
            call(two)
    with pytest.raises(TypeError, match="the source must be one str, not list"):
        client.consume_group(two, "g")
