"""Reading through the SDK: positions, bounds, waiting, consuming, Arrow."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client import (
    AsyncClient,
    At,
    Client,
    InvalidRequestError,
    Last,
    OffsetAt,
    OffsetOutOfRangeError,
    StreamNotFoundError,
)
from jetstream_client.reading import consumer as consumers
from jetstream_client.reading import reader
from jetstream_client.transport.data_connection import DataConnection, Fetched
from jetstream_protocol.generated.dataplane_pb2 import DataFetchRequest
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

COUNT = 2000


@pytest.fixture(scope="module")
def filled(server: ServerProcess) -> str:
    """A stream of COUNT numbered records, in many batches."""

    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("filled", "filled.*")

            def publish(number: int) -> Coroutine[Any, Any, object]:
                return client.publish(f"filled.{number % 3}", b"%d" % number, key=str(number % 7))

            for number in range(100):
                await publish(number)
            for start in range(100, COUNT, 100):
                await asyncio.gather(*map(publish, range(start, start + 100)))

    asyncio.run(fill())
    return "filled"


def test_a_fetch_returns_all_there_is(client: Client, filled: str) -> None:
    messages = client.fetch(filled)
    assert messages.offsets() == list(range(COUNT))
    assert messages.values() == [b"%d" % n for n in range(COUNT)]
    assert (messages.next_offset, messages.high_watermark) == (COUNT, COUNT)
    assert [m.subject for m in messages[:3]] == ["filled.0", "filled.1", "filled.2"]


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (5, 10), (150, 250), (COUNT - 1, 5)])
def test_a_fetch_is_trimmed_at_both_ends(
    client: Client, filled: str, offset: int, count: int
) -> None:
    messages = client.fetch(filled, offset, max_messages=count)
    assert messages.offsets() == list(range(offset, min(offset + count, COUNT)))
    assert messages.next_offset == min(offset + count, COUNT)


def test_a_fetch_stops_near_its_bytes_but_brings_something(client: Client, filled: str) -> None:
    messages = client.fetch(filled, 0, max_bytes=1)
    assert 0 < len(messages) < COUNT
    assert client.fetch(filled, messages.next_offset)[0].offset == messages.next_offset


def test_fetching_on_reads_everything_once(client: Client, filled: str) -> None:
    offset, epoch, values = 0, -1, []
    while offset < COUNT:
        messages = client.fetch(filled, offset, max_messages=333, last_epoch=epoch)
        values += messages.values()
        offset, epoch = messages.next_offset, messages.last_epoch
    assert values == [b"%d" % n for n in range(COUNT)]


def test_at_the_end_a_fetch_is_empty_at_once_or_after_its_wait(
    client: Client, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    fetch = DataConnection.fetch

    async def noted(own: DataConnection, request: DataFetchRequest, timeout: float) -> Fetched:
        waits.append(request.wait_ms_max)
        return await fetch(own, request, timeout)

    monkeypatch.setattr(DataConnection, "fetch", noted)
    assert len(client.fetch(filled, COUNT)) == 0
    assert waits == [0]
    began = time.monotonic()
    assert client.fetch(filled, COUNT, max_wait=0.3).next_offset == COUNT
    assert time.monotonic() - began > 0.25


def test_a_waiting_fetch_returns_with_the_first_record(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_WAIT_SECONDS_MAX", 300.0)
    client.create_stream("awaited", "awaited.>")
    publisher = threading.Timer(0.2, client.publish, ("awaited.x", b"now"))
    publisher.start()
    # No test waits for so long.
    assert client.fetch("awaited", 0, max_messages=10, max_wait=300.0).values() == [b"now"]
    publisher.join()


def test_beyond_the_log_is_an_error_with_the_range(client: Client, filled: str) -> None:
    with pytest.raises(OffsetOutOfRangeError) as caught:
        client.fetch(filled, COUNT + 1_000_000)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, COUNT)


@pytest.mark.parametrize(
    "arguments",
    [{"start": -1}, {"max_messages": 0}, {"max_bytes": 0}, {"max_wait": -1.0}, {"start": "mid"}],
)
def test_impossible_fetches_are_refused(client: Client, filled: str, arguments: dict) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidRequestError):
        client.fetch(filled, **arguments)


def test_positions_resolve_to_offsets(client: Client, filled: str) -> None:
    moment = client.fetch(filled, 700, max_messages=1)[0].timestamp
    earliest, latest, at = client.list_offsets(
        [(filled, "earliest"), (filled, "latest"), (filled, moment)]
    )
    assert (earliest.offset, latest.offset) == (0, COUNT)
    assert client.fetch(filled, at.offset)[0].timestamp >= moment
    assert at.offset <= 700
    assert isinstance(latest, OffsetAt)
    assert client.offset_at(filled, "latest") == COUNT
    assert client.fetch(filled, moment - timedelta(days=1))[0].offset == 0


def test_a_naive_time_is_refused(client: Client, filled: str) -> None:
    with pytest.raises(InvalidRequestError, match="time zone"):
        client.offset_at(filled, datetime(2026, 1, 1))


def test_a_time_that_is_still_to_come_is_the_end(client: Client, filled: str) -> None:
    assert client.offset_at(filled, datetime.now(UTC) + timedelta(days=1)) == COUNT


def test_positions_of_an_unknown_stream_are_an_error(client: Client) -> None:
    with pytest.raises(StreamNotFoundError):
        client.list_offsets([("nowhere", "latest")])


def test_consuming_to_the_end_reads_everything_once(client: Client, filled: str) -> None:
    assert [m.offset for m in client.consume(filled, stop="latest")] == list(range(COUNT))
    assert [m.offset for m in client.consume(filled, 10, stop=15)] == [10, 11, 12, 13, 14]


def test_the_last_records_and_times_bound_what_is_read(client: Client, filled: str) -> None:
    assert client.fetch(filled, Last(5)).offsets() == list(range(COUNT - 5, COUNT))
    assert client.fetch(filled, Last(COUNT * 2), stop=3).offsets() == [0, 1, 2]
    tail = client.consume(filled, Last(10), stop=Last(4))
    assert [m.offset for m in tail] == list(range(COUNT - 10, COUNT - 4))
    moment = client.fetch(filled, 700, max_messages=1)[0].timestamp_us
    before = [m.timestamp_us for m in client.consume(filled, stop=At(moment))]
    after = [m.timestamp_us for m in client.consume(filled, At(moment), stop="latest")]
    assert max(before) < moment <= min(after)
    assert len(before) + len(after) == COUNT


def test_a_stop_at_latest_is_the_high_watermark_when_the_call_began(client: Client) -> None:
    client.create_stream("bounded", "bounded.>")
    client.publish("bounded.x", b"before")
    consumer = client.consume("bounded", stop="latest")
    client.publish("bounded.x", b"after")
    assert [message.value for message in consumer] == [b"before"]


def test_consuming_goes_on_with_what_is_published(client: Client) -> None:
    client.create_stream("endless", "endless.>")
    with client.consume("endless", "latest") as consumer:
        for number in range(5):
            client.publish("endless.x", b"%d" % number)
            assert next(consumer).value == b"%d" % number
        assert consumer.position == 5


def test_latest_means_from_the_call_on(client: Client) -> None:
    client.create_stream("from-now", "from-now.>")
    client.publish("from-now.x", b"before")
    consumer = client.consume("from-now", "latest")
    client.publish("from-now.x", b"after")
    assert next(consumer).value == b"after"
    consumer.close()


def test_batches_are_the_same_records(client: Client, filled: str) -> None:
    with client.consume(filled, stop="latest") as consumer:
        tables = [messages.to_arrow() for messages in consumer.batches()]
    assert [n for table in tables for n in table["offset"].to_pylist()] == list(range(COUNT))
    assert [v for table in tables for v in table["value"].to_pylist()] == [
        b"%d" % n for n in range(COUNT)
    ]


def test_a_consumer_can_be_left_in_the_middle(client: Client, filled: str) -> None:
    for message in client.consume(filled):
        if message.offset == 3:
            break
    gc.collect()
    assert client.fetch(filled, 0, max_messages=1)[0].offset == 0


def test_a_consumer_of_a_deleted_stream_is_told(client: Client) -> None:
    client.create_stream("doomed", "doomed.>")
    client.publish("doomed.x", b"1")
    with client.consume("doomed") as consumer:
        assert next(consumer).value == b"1"
        client.delete_stream("doomed")
        client.create_stream("doomed", "doomed.>")
        client.publish("doomed.x", b"a stranger's")
        with pytest.raises(StreamNotFoundError):
            next(consumer)


@on_loop
async def test_a_hundred_idle_consumers_do_not_hold_up_a_fetch(
    server: ServerProcess, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "WAIT_SECONDS", 200.0)
    async with AsyncClient(server.grpc, timeout=60) as client:
        idle = [client.consume(filled, "latest") for _ in range(100)]
        waiting = [asyncio.ensure_future(anext(consumer)) for consumer in idle]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(60):
            assert len(await client.fetch(filled, 0)) == COUNT
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@on_loop
async def test_fetches_of_one_client_run_side_by_side(server: ServerProcess, filled: str) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        answers = await asyncio.gather(
            *[client.fetch(filled, n, max_messages=10) for n in range(0, COUNT, 20)]
        )
    assert [m.offsets()[0] for m in answers] == list(range(0, COUNT, 20))


@on_loop
async def test_a_cancelled_fetch_leaves_the_connection_usable(
    server: ServerProcess, filled: str
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.fetch(filled, COUNT, max_wait=30.0)
        assert len(await client.fetch(filled, 0)) == COUNT


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, range(COUNT - 1, -1, -1)),
        ({"start": Last(3)}, range(COUNT - 1, COUNT - 4, -1)),
        ({"start": 10, "stop": 1500}, range(1499, 9, -1)),
        ({"start": 5, "stop": 5}, range(0)),
        ({"start": COUNT - 2, "stop": COUNT + 50}, range(COUNT - 1, COUNT - 3, -1)),
    ],
)
def test_the_same_records_are_read_newest_first(
    client: Client, filled: str, bounds: dict[str, Any], expected: range
) -> None:
    with client.consume(filled, reverse=True, **bounds) as consumer:
        found = [message.offset for message in consumer]
    assert found == list(expected)
    first = bounds.pop("start", "earliest")
    messages = client.fetch(filled, first, reverse=True, **bounds)
    assert messages.offsets() == list(expected)
    assert messages.values() == [b"%d" % offset for offset in expected]


def test_reading_newest_first_goes_on_where_it_stopped(client: Client, filled: str) -> None:
    found: list[int] = []
    stop: int | None = None
    while stop != 0:
        messages = client.fetch(filled, reverse=True, stop=stop, max_messages=300)
        found += messages.offsets()
        stop = messages.next_offset
        assert stop == found[-1]
    assert found == list(range(COUNT - 1, -1, -1))
    table = client.fetch(filled, reverse=True, max_messages=150).to_arrow(["offset", "value"])
    assert table["offset"].to_pylist() == found[:150]
    assert table["value"].to_pylist() == [b"%d" % offset for offset in found[:150]]


def test_newest_first_takes_filters_and_is_sought_and_left(client: Client, filled: str) -> None:
    newest = [offset for offset in range(COUNT - 1, -1, -1) if offset % 3 == 1 and offset % 7 == 2]
    both = {"filter": "filled.1", "key": "2", "reverse": True}
    assert client.fetch(filled, max_messages=5, **both).offsets() == newest[:5]  # type: ignore[arg-type]
    with client.consume(filled, **both) as consumer:  # type: ignore[arg-type]
        assert next(consumer).offset == consumer.position == newest[0]
        consumer.seek(newest[8])
        assert [next(consumer).offset for _ in range(3)] == newest[9:12]


def test_what_newest_first_cannot_mean_is_refused(client: Client, filled: str) -> None:
    with pytest.raises(InvalidRequestError, match="reverse=True takes neither"):
        client.fetch(filled, reverse=True, max_wait=1.0)
    with pytest.raises(InvalidRequestError, match="reverse=True takes neither last_epoch nor"):
        client.consume(filled, reverse=True, last_epoch=3)
