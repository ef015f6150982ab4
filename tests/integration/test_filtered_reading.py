"""Readers that want some records only: what the server passes over, and what nobody misses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from jetstream_client import AsyncClient, Client, InvalidRequestError, Last
from jetstream_client.reading import consumer as consumers
from jetstream_client.reading import reader
from jetstream_protocol.batch import iterate
from tests.support.api import DataPlane
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

BATCHES = 300
RARE = [7, 150, 151, 299]
VALUE = b"x" * 4096
EACH = 10


@pytest.fixture(scope="module", autouse=True)
def filled(server: ServerProcess) -> None:
    """`orders`: batches of ten records of 4 KiB, compressed and not; a few batches are on `eu`,
    all others on `us`; key `k` is in every thirtieth. `mixed`: three subjects in turn."""

    async def fill() -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("orders", "orders.>", segment_bytes=1 << 20)
            publishers = {
                (region, compression): client.publisher(
                    f"orders.{region}.new", linger=0, compression=compression
                )
                for region in ("eu", "us")
                for compression in (None, "zstd")
            }
            for number in range(BATCHES):
                region = "eu" if number in RARE else "us"
                publisher = publishers[region, "zstd" if number % 2 else None]
                key = b"k" if number % 30 == 0 else b"other"
                await publisher.publish_many([VALUE] * EACH, [key] * EACH)
                await publisher.flush()
            await client.create_stream("mixed", "mixed.*")
            for number in range(300):
                await client.publish(f"mixed.{number % 3}", b"%d" % number, key=str(number % 7))

    asyncio.run(fill())


@pytest.fixture
def plane(server: ServerProcess) -> Iterator[DataPlane]:
    plane = DataPlane(server.data_address)
    yield plane
    plane.close()


def offsets_of(batches: list[int]) -> list[int]:
    return [EACH * number + row for number in batches for row in range(EACH)]


def test_the_server_sends_the_batches_that_may_match_and_where_to_go_on(plane: DataPlane) -> None:
    sent, offset, rounds = [], 0, 0
    while offset < BATCHES * EACH:
        head, tail = plane.fetch("orders", offset, filter_subject="orders.eu.>")
        sent += [batch.header.base_offset for batch in iterate(tail)]
        assert head.next_offset > offset
        offset, rounds = head.next_offset, rounds + 1
    assert sent == [EACH * number for number in RARE]
    assert rounds < 20


def test_long_runs_without_a_match_move_the_reader_on_in_bounded_steps(plane: DataPlane) -> None:
    offsets = [0]
    while offsets[-1] < BATCHES * EACH:
        head, tail = plane.fetch("orders", offsets[-1], filter_subject="nowhere")
        assert tail == b""
        assert head.last_epoch == head.leader_epoch
        offsets.append(head.next_offset)
    assert len(offsets) > 2
    # Where it has come to, its history is checked as ever.
    head, _ = plane.fetch(
        "orders", offsets[1], last_epoch=head.last_epoch, filter_subject="nowhere"
    )
    assert not head.HasField("error")


def test_a_filter_that_is_none_is_refused(plane: DataPlane, client: Client) -> None:
    head, _ = plane.fetch("orders", 0, filter_subject="a..b")
    assert head.error.code == "invalid_request"
    with pytest.raises(InvalidRequestError, match="invalid subject"):
        client.fetch("orders", filter="a..b")


@pytest.mark.parametrize(
    ("filter_", "key", "expected"),
    [
        ("orders.eu.>", None, offsets_of(RARE)),
        ("orders.eu.new", None, offsets_of(RARE)),
        ("orders.*.new", None, offsets_of(list(range(BATCHES)))),
        ("", "k", offsets_of(list(range(0, BATCHES, 30)))),
        ("orders.eu.*", b"k", offsets_of([150])),
        ("orders.eu", None, []),
        ("", "missing", []),
    ],
)
def test_every_record_that_is_wanted_comes_with_its_offset(
    client: Client, filter_: str, key: str | bytes | None, expected: list[int]
) -> None:
    with client.consume("orders", stop="latest", filter=filter_, key=key) as consumer:
        assert [message.offset for message in consumer] == expected


def test_a_reader_that_stops_does_not_wait_for_what_is_not_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "WAIT_SECONDS", 300.0)  # No test waits for so long.
    monkeypatch.setattr(reader, "_WAIT_SECONDS_MAX", 300.0)
    assert list(client.consume("orders", stop="latest", filter="nowhere")) == []
    assert client.get_last("orders", subject="nowhere") is None


def test_the_reader_picks_the_rows_of_mixed_batches(client: Client) -> None:
    messages = client.fetch("mixed", filter="mixed.1", key="2")
    expected = [number for number in range(300) if number % 3 == 1 and number % 7 == 2]
    assert messages.offsets() == expected
    assert messages.values() == [b"%d" % number for number in expected]
    assert [messages[at].offset for at in (0, 3, -1)] == [expected[0], expected[3], expected[-1]]
    table = messages.to_arrow()
    assert table["offset"].to_pylist() == expected
    assert table["value"].to_pylist() == messages.values()
    assert set(table["key"].to_pylist()) == {b"2"}
    assert client.fetch("mixed", filter="mixed.1", max_messages=5).offsets() == [1, 4, 7, 10, 13]
    assert client.fetch("mixed", 10, stop=20, filter="mixed.0").offsets() == [12, 15, 18]
    assert client.fetch("mixed", Last(10), filter="mixed.0").offsets() == [291, 294, 297]


def test_a_reader_goes_on_from_where_its_filter_has_come_to(client: Client) -> None:
    found, offset, last_epoch = [], 0, -1
    while offset < BATCHES * EACH:
        messages = client.fetch(
            "orders", offset, filter="orders.eu.>", last_epoch=last_epoch, max_bytes=50_000
        )
        found += messages.offsets()
        offset, last_epoch = messages.next_offset, messages.last_epoch
    assert found == offsets_of(RARE)


@on_loop
async def test_who_waits_for_a_record_is_not_woken_by_others(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("awaited", "awaited.*")
        async with client.consume("awaited", "latest", filter="awaited.eu") as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            for _ in range(50):
                await client.publish("awaited.us", b"no")
            assert not waiting.done()
            offset = (await client.publish("awaited.eu", b"yes")).offset
            assert (await asyncio.wait_for(waiting, 60)).offset == offset == 50


def test_a_fetch_waits_for_what_it_wants(client: Client) -> None:
    client.create_stream("slow", "slow.*")
    client.publish("slow.us", b"no")
    later = threading.Timer(0.3, lambda: client.publish("slow.eu", b"yes"))
    later.start()
    assert client.fetch("slow", filter="slow.eu", max_wait=60.0).values() == [b"yes"]
    later.join()
    assert client.fetch("slow", filter="slow.au", max_wait=0.2).values() == []


def test_the_last_record_of_a_subject_or_a_key_is_found(client: Client) -> None:
    last = client.get_last("mixed")
    assert last is not None
    assert last.offset == 299
    for subject, key, offset in [
        ("mixed.0", None, 297),
        ("", "3", 297),
        ("", b"4", 298),
        ("mixed.2", "3", 290),
    ]:
        found = client.get_last("mixed", subject=subject, key=key)
        assert found is not None
        assert found.offset == offset
    assert client.get_last("mixed", subject="mixed.4") is None
    assert client.get_last("mixed", key="7") is None
    found = client.get_last("orders", subject="orders.eu.>", key="k")
    assert found is not None
    assert found.offset == 1509
    client.create_stream("nothing", "nothing")
    assert client.get_last("nothing") is None
