"""The NATS connection against real nats-servers: delivery, barriers, refusals, limits."""

from __future__ import annotations

import asyncio
import os

import nats
import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats.connection import NatsConnection
from tests.support.loops import eventually, on_loop
from tests.support.nats_client import Collector, connected, hpub, pub, url_of
from tests.support.nats_server import NatsServer


@on_loop
async def test_messages_of_any_nats_client_arrive_with_subject_reply_headers_and_value() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url) as connection:
            connection.subscribe("orders.>", "", got.deliver)
            await connection.flush()
            client = await nats.connect(server.url)
            await client.publish("orders.eu", b"1", reply="_INBOX.a", headers={"source": "web"})
            await client.publish("orders.us", b"")
            await client.publish("other", b"not for us")
            await client.flush()
            await connection.flush()
            await client.close()
    assert got.subjects == [b"orders.eu", b"orders.us"]
    assert got.replies == [b"_INBOX.a", b""]
    assert got.values == [b"1", b""]
    assert got.deliveries[0].header_blocks is not None
    assert got.deliveries[0].header_blocks[0] == b"NATS/1.0\r\nsource: web\r\n\r\n"


@on_loop
async def test_header_blocks_arrive_byte_for_byte() -> None:
    got = Collector()
    block = b"NATS/1.0\r\nb:1\r\na:   two  \r\nb: 3\r\n\r\n"
    with NatsServer() as server:
        async with connected(server.url) as connection:
            connection.subscribe("a", "", got.deliver)
            connection.write(hpub("a", block, b"v"))
            await connection.flush()
    assert got.deliveries[0].header_blocks == [block]
    assert got.values == [b"v"]


@on_loop
async def test_a_hundred_thousand_messages_of_all_sizes_arrive_in_order_in_large_batches() -> None:
    got = Collector()
    noise = os.urandom(4096) + b"\r\nMSG a 1 1\r\nx\r\n"
    values = [b"%d:" % i + noise[: i * 7 % len(noise)] for i in range(100_000)]
    with NatsServer() as server:
        async with connected(server.url) as connection, connected(server.url) as publisher:
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            for start in range(0, len(values), 1000):
                publisher.write(b"".join([pub("a", v) for v in values[start : start + 1000]]))
                await publisher.flush()
            await eventually(lambda: connection.counters.messages == len(values))
            assert connection.counters.suspected_gaps == 0
    assert got.values == values
    assert len(got.deliveries) < len(values) / 10


@on_loop
async def test_a_publish_right_after_flush_is_never_missed() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url) as connection, connected(server.url) as publisher:
            for number in range(300):
                sid = connection.subscribe(f"s.{number}", "", got.deliver)
                await connection.flush()
                publisher.write(pub(f"s.{number}", b"%d" % number))
                await publisher.flush()
                await connection.flush()
                connection.unsubscribe(sid)
    assert got.values == [b"%d" % number for number in range(300)]


@on_loop
async def test_members_of_a_queue_group_share_the_messages() -> None:
    left, right, alone = Collector(), Collector(), Collector()
    with NatsServer() as server:
        async with connected(server.url) as one, connected(server.url) as two:
            one.subscribe("a", "workers", left.deliver)
            two.subscribe("a", "workers", right.deliver)
            two.subscribe("a", "", alone.deliver)
            await one.flush()
            await two.flush()
            one.write(b"".join([pub("a", b"%d" % i) for i in range(1000)]))
            await one.flush()
            await two.flush()
            await one.flush()
    assert sorted(left.values + right.values) == sorted(alone.values)
    assert len(alone.values) == 1000
    assert left.values
    assert right.values


@on_loop
async def test_a_refused_subscription_is_told_to_its_owner_before_the_barrier() -> None:
    permissions = """authorization { users: [ {user: u, password: p, permissions: {
        subscribe: {deny: ["secret.>", "shared q"]}, publish: {deny: ["forbidden"]} } } ] }"""
    got, fine = Collector(), Collector()
    with NatsServer(permissions) as server:
        url = server.url.replace("://", "://u:p@")
        async with connected(url, got) as connection:
            refused = connection.subscribe("secret.a", "", got.deliver, got.refuse)
            grouped = connection.subscribe("shared", "q", got.deliver, got.refuse)
            connection.subscribe("shared", "", fine.deliver, fine.refuse)
            await connection.flush()
            assert [sid for sid, _ in got.refusals] == [refused, grouped]
            assert "secret.a" in str(got.refusals[0][1])
            with capture_logs() as logs:
                connection.write(1000 * pub("forbidden") + pub("shared", b"v"))
                await connection.flush()
            counters = connection.counters
            assert (counters.subscriptions_refused, counters.publishes_refused) == (2, 1000)
            assert counters.disconnects == 0
            assert [each["event"] for each in logs] == ["nats_publish_refused"]
    assert fine.values == [b"v"]
    assert fine.refusals == []


@on_loop
async def test_a_subscription_is_refused_again_or_restored_when_permissions_change() -> None:
    config = "authorization { users: [ {user: u, password: p, permissions: {%s}} ] }"
    got = Collector()
    with NatsServer(config % 'subscribe: "a"') as server:
        async with connected(server.url.replace("://", "://u:p@"), got) as connection:
            connection.subscribe("b", "", got.deliver, got.refuse)
            await connection.flush()
            assert len(got.refusals) == 1
            server.kill()
            server.reconfigure(config % 'subscribe: ["a", "b"]')
            server.start()
            await eventually(lambda: got.reconnects == 1)
            connection.write(pub("b", b"v"))
            await connection.flush()
    assert got.values == [b"v"]


@on_loop
async def test_subscriptions_beyond_the_accounts_limit_are_told_to_their_owners() -> None:
    got = Collector()
    with NatsServer("max_subscriptions: 2") as server:
        async with connected(server.url, got) as connection:
            for subject in ("a", "b"):
                connection.subscribe(subject, "", got.deliver, got.refuse)
            await connection.flush()
            third = connection.subscribe("c", "", got.deliver, got.refuse)
            await connection.flush()
            assert [sid for sid, _ in got.refusals] == [third]
            assert connection.counters.disconnects == 0


@on_loop
async def test_max_payload_is_known_kept_to_and_a_violation_is_a_disconnect_with_its_reason() -> (
    None
):
    got = Collector()
    with NatsServer("max_payload: 1000") as server:
        async with connected(server.url, got) as connection:
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            assert connection.max_payload == 1000
            connection.write(pub("a", bytes(1000)))
            await connection.flush()
            assert got.values == [bytes(1000)]
            connection.write(pub("a", bytes(1001)))
            await eventually(lambda: got.reconnects == 1)
    assert got.disconnects == ["Maximum Payload Violation"]


@on_loop
async def test_a_payload_of_eight_megabytes_arrives_whole() -> None:
    got = Collector()
    value = os.urandom(8 * 1024 * 1024)
    with NatsServer("max_payload: 8MB") as server:
        async with connected(server.url) as connection:
            connection.subscribe("a", "", got.deliver)
            connection.write(pub("a", value))
            await connection.flush(60.0)
    assert got.values == [value]


@on_loop
async def test_when_before_feed_says_no_nothing_of_the_read_is_delivered_and_all_is_dropped() -> (
    None
):
    got = Collector()
    leading = True
    with NatsServer() as server:
        async with (
            connected(server.url, got, before_feed=lambda: leading) as connection,
            connected(server.url) as publisher,
        ):
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            publisher.write(pub("a", b"1"))
            await publisher.flush()
            await connection.flush()
            leading = False
            publisher.write(pub("a", b"2"))
            await eventually(lambda: got.disconnects != [])
            await eventually(lambda: connection.is_connected)
            # Connected again, without a subscription: nothing arrives, so nothing is asked.
            publisher.write(pub("a", b"3"))
            await publisher.flush()
            await connection.flush()
            assert connection.counters.suspected_gaps == 0
            leading = True
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            publisher.write(pub("a", b"4"))
            await publisher.flush()
            await connection.flush()
    assert got.values == [b"1", b"4"]
    assert got.disconnects == ["not allowed to receive any more"]


@on_loop
async def test_unsubscribing_stops_at_once_and_draining_takes_in_what_is_on_the_way() -> None:
    cut, drained, staying = Collector(), Collector(), Collector()
    with NatsServer() as server:
        async with connected(server.url) as connection:
            cut_sid = connection.subscribe("a", "", cut.deliver)
            drained_sid = connection.subscribe("a", "", drained.deliver)
            connection.subscribe("a", "", staying.deliver)
            await connection.flush()
            # On its way to the server, and so back to us, ahead of the UNSUB lines.
            connection.write(pub("a", b"1"))
            connection.unsubscribe(cut_sid)
            await connection.drain_subscriptions([drained_sid])
            connection.write(pub("a", b"2"))
            await connection.flush()
            assert connection.counters.messages_dropped == 1
    assert cut.values == []
    assert drained.values == [b"1"]
    assert staying.values == [b"1", b"2"]


@on_loop
async def test_close_sends_what_was_written_before() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url) as watcher:
            watcher.subscribe("a", "", got.deliver)
            await watcher.flush()
            connection = NatsConnection([server.url])
            await connection.connect(60.0)
            connection.write(pub("a", b"last words"))
            await connection.close()
            await connection.close()
            await eventually(lambda: got.values == [b"last words"])


@on_loop
async def test_a_server_that_does_not_read_makes_writes_fail_instead_of_filling_memory() -> None:
    with NatsServer() as server:
        async with connected(server.url) as connection:
            server.freeze()
            value = pub("a", bytes(1_000_000))
            results = [connection.write(value) for _ in range(80)]
            await asyncio.sleep(0.1)
            results += [connection.write(value) for _ in range(10)]
            assert results[0]
            assert not results[-1]
            assert connection.write_buffer_size < 68 * 1024 * 1024
            assert connection.counters.writes_refused == results.count(False)
            with pytest.raises(UnavailableError):
                await connection.flush(0.1)
            server.thaw()
            await connection.flush(60.0)
            assert connection.write_buffer_size == 0


@on_loop
async def test_an_owner_that_raises_costs_the_link_not_the_connection() -> None:
    got = Collector()
    loop = asyncio.get_running_loop()
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context.get("exception")))
    error = RuntimeError("the owner has a bug")

    def deliver(delivery: object) -> None:
        raise error

    with NatsServer() as server:
        async with connected(server.url, got) as connection:
            sid = connection.subscribe("a", "", deliver)
            await connection.flush()
            connection.write(pub("a", b"1"))
            await eventually(lambda: got.reconnects == 1)
            connection.unsubscribe(sid)
            await connection.flush()
    assert problems == [error]
    assert got.disconnects == ["RuntimeError: the owner has a bug"]


@on_loop
async def test_connecting_nowhere_says_so_and_goes_on_trying() -> None:
    with NatsServer() as server:
        server.kill()
        connection = NatsConnection([server.url])
        try:
            with pytest.raises(UnavailableError):
                await connection.connect(0.0)
            await eventually(lambda: server.url in connection._reconnector.last_failure)
            with pytest.raises(UnavailableError, match=server.url):
                await connection.connect(0.01)
            server.start()
            await connection.connect(60.0)
            assert url_of(connection) == server.url
            assert connection.counters.reconnects == 0
        finally:
            await connection.close()
