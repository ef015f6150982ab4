"""Tables: the latest value per key of a stream, following it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    StreamNotFoundError,
    Table,
    UnavailableError,
)
from jetstream_protocol.batch import iterate
from tests.support.api import DataPlane
from tests.support.gate import GatedNode, gated_node
from tests.support.loops import on_loop
from tests.support.overtaking import COMPACTED_SECONDS, create
from tests.support.server import ServerProcess


def watched_for(table: Table, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert table["k"] == b"1"


def test_a_table_has_the_latest_value_of_each_key(client: Client) -> None:
    client.create_stream("prices", "prices.>")
    for number in range(20):
        client.publish("prices.x", b"%d" % number, key=f"k{number % 3}")
    client.publish("prices.x", b"no key")
    client.publish("prices.x", None, key="k1")
    client.publish("prices.x", b"", key="empty")
    with client.table("prices") as table:
        table.wait_until_current()
        assert table.snapshot() == {b"k0": b"18", b"k2": b"17", b"empty": b""}
        assert dict(table) == table.snapshot()
        assert (table["k0"], table[b"k0"], table.get("k1"), len(table)) == (b"18", b"18", None, 3)
        assert "k2" in table
        assert "k1" not in table
        assert table.position == 23


def test_a_table_follows_its_stream(client: Client) -> None:
    client.create_stream("followed", "followed.>")
    with client.table("followed") as table:
        for number in range(5):
            client.publish("followed.x", b"%d" % number, key="k")
            table.wait_until_current()
            assert table["k"] == b"%d" % number
        client.publish("followed.x", None, key="k")
        table.wait_until_current()
        assert list(table) == []


def test_a_table_may_be_walked_over_while_it_grows(client: Client) -> None:
    client.create_stream("growing", "growing.>")
    with client.table("growing") as table, client.publisher("growing.x") as publisher:
        stop = threading.Event()

        def grow() -> None:
            number = 0
            while not stop.is_set():
                keys = [b"%d" % key for key in range(number, number + 100)]
                publisher.publish_many([b"v"] * 100, keys)
                number += 100
                time.sleep(0.001)

        thread = threading.Thread(target=grow, daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + 60
            while len(table) < 2000:
                assert time.monotonic() < deadline
                assert all(value == b"v" for value in table.values())
        finally:
            stop.set()
            thread.join()


def test_a_table_of_a_deleted_stream_raises_instead_of_growing_old(client: Client) -> None:
    client.create_stream("doomed", "doomed.>")
    client.publish("doomed.x", b"1", key="k")
    with client.table("doomed") as table:
        table.wait_until_current()
        client.delete_stream("doomed")
        with pytest.raises(StreamNotFoundError):
            watched_for(table, seconds=60.0)


def test_a_closed_table_says_so(client: Client) -> None:
    client.create_stream("closed", "closed.>")
    table = client.table("closed")
    table.close()
    table.close()
    with pytest.raises(InvalidRequestError, match="closed"):
        table.snapshot()
    with pytest.raises(StreamNotFoundError):
        client.table("nowhere")


@on_loop
async def test_the_asynchronous_table(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("async-prices", "async-prices.>")
        await client.publish("async-prices.x", b"1", key="k")
        async with client.table("async-prices") as table:
            await table.wait_until_current(timeout=60)
            assert table["k"] == b"1"
            await client.publish("async-prices.x", b"2", key="k")
            await table.wait_until_current()
            assert table.snapshot() == {b"k": b"2"}


def test_a_table_goes_on_when_its_server_is_back(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("prices", "prices.>")
        client.publish("prices.x", b"1", key="k")
        with client.table("prices") as table:
            table.wait_until_current()
            own_server.kill()
            with pytest.raises(UnavailableError):
                table.wait_until_current(timeout=1.0)
            assert table["k"] == b"1"
            own_server.start()
            with Client(own_server.grpc, timeout=60) as other:
                other.publish("prices.x", b"2", key="k")
            table.wait_until_current(timeout=60)
            assert table["k"] == b"2"


def test_a_table_has_what_is_stored_when_it_is_opened(client: Client) -> None:
    client.create_stream("opened", "opened.>")
    with client.publisher("opened.x") as publisher:
        publisher.publish_many([b"v" * 1000] * 2_000, [b"%d" % key for key in range(2_000)])
    for _ in range(5):
        with client.table("opened") as table:
            assert table["1999"] == b"v" * 1000
            assert (len(table), table.lag, table.is_current) == (2_000, 0, True)
            assert table.heard_at is not None
    with client.table("opened", wait=False) as table:
        table.wait_until_current()
        assert len(table) == 2_000


@on_loop
async def test_the_asynchronous_table_has_what_is_stored_too(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("async-opened", "async-opened.>")
        await client.publish("async-opened.x", b"1", key="k")
        async with client.table("async-opened") as table:
            assert (table["k"], table.is_current) == (b"1", True)


def test_a_table_says_when_no_server_answers_any_more(own_server: ServerProcess) -> None:
    own_server.start()
    with (
        Client(own_server.grpc, timeout=60) as client,
        Client(own_server.grpc, timeout=2.0) as hasty,
    ):
        client.create_stream("prices", "prices.>")
        client.publish("prices.x", b"1", key="k")
        with client.table("prices") as table, client.table("prices", stale_after=5.0) as strict:
            assert table.is_current
            own_server.kill()
            deadline = time.monotonic() + 60
            while table.is_current:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert (table["k"], table.lag) == (b"1", 0)
            assert "no server has answered since 20" in repr(table)
            with pytest.raises(UnavailableError, match="no server has answered since"):
                watched_for(strict, seconds=60)
            with pytest.raises(UnavailableError):
                hasty.table("prices")
            own_server.start()
            table.wait_until_current(timeout=60)
            strict.wait_until_current(timeout=60)
            assert (table.is_current, strict["k"]) == (True, b"1")


def compacted_to(client: Client, stream: str) -> int:
    compaction = client.describe_stream(stream).compaction
    return 0 if compaction is None else compaction.cleaned_to


def test_tables_and_scans_of_a_compacted_stream_have_every_key_s_last_value(
    client: Client,
) -> None:
    keys, rounds = 20, 60
    client.create_stream("kept", "kept.>", compact=True, segment_bytes=65_536)
    with client.publisher("kept.x", linger=0) as publisher:
        for number in range(rounds):
            values = [b"%d" % number + bytes(500) for _ in range(keys)]
            publisher.publish_many(values, [b"k%d" % key for key in range(keys)])
        publisher.send(None, key=b"k0")
    deadline = time.monotonic() + COMPACTED_SECONDS
    while compacted_to(client, "kept") < keys * rounds // 2:
        assert time.monotonic() < deadline, "it is not compacted"
        time.sleep(0.05)
    last = {b"k%d" % key: b"%d" % (rounds - 1) + bytes(500) for key in range(1, keys)}
    with client.table("kept") as table:
        table.wait_until_current(timeout=60)
        assert table.snapshot() == last
    scan = client.scan("kept", columns=["offset", "key", "value"], patience=5.0).to_table()
    assert len(scan) < keys * rounds * 2 // 3
    offsets = scan["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    rows = dict(zip(scan["key"].to_pylist(), scan["value"].to_pylist(), strict=True))
    assert {key: value for key, value in rows.items() if value is not None} == last
    # Every offset may begin a reading, also one that compaction has emptied.
    for start in range(0, keys * rounds, 97):
        assert client.fetch("kept", start, max_messages=1)[0].offset >= start


def offsets_from(data: DataPlane, stream: str, offset: int) -> list[int]:
    """Of the first records from there on."""
    _, batches = data.fetch(stream, offset, bytes_max=1)
    return [each for batch in iterate(batches) for each in batch.offsets()]


def deleted_meanwhile(node: GatedNode, client: Client, stream: str) -> dict[bytes, bytes]:
    """Delete a key, and wait until compaction has forgotten that. Returns what is left."""
    deleted = client.publish(stream, None, key="doomed").offset
    deadline, number = time.monotonic() + COMPACTED_SECONDS, 0
    data = DataPlane(("127.0.0.1", node.port_base + 1))  # Past the gate.
    try:
        while deleted in offsets_from(data, stream, deleted):
            assert time.monotonic() < deadline, "no tombstone is removed"
            with client.publisher(stream, linger=0.0) as publisher:
                for _ in range(40):
                    number += 1
                    publisher.send(b"%d" % number * 1_000, key="other")
            time.sleep(0.2)
    finally:
        data.close()
    return {b"kept": b"1", b"other": b"%d" % number * 1_000}


@on_loop
async def test_tables_that_were_away_for_longer_than_tombstones_stay_keep_no_deleted_key(
    tmp_path: Path,
) -> None:
    with gated_node(tmp_path) as node, Client(node.grpc, timeout=60) as client:
        create(client, "away", tombstone_grace=0.1)
        for key in ("kept", "doomed"):
            client.publish("away", b"1", key=key)
        async with AsyncClient(node.grpc, timeout=60) as own, own.table("away") as table:
            with client.table("away") as blocking:
                node.data_gate.close()
                left = await asyncio.to_thread(deleted_meanwhile, node, client, "away")
                assert table["doomed"] == blocking["doomed"] == b"1"
                node.data_gate.open()
                await table.wait_until_current(timeout=60)
                assert table.snapshot() == left
                await asyncio.to_thread(blocking.wait_until_current, 60)
                assert blocking.snapshot() == left
