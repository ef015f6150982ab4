"""What happens to the NATS connection when servers die, freeze, leave, or throw us out."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.nats.handshake import LinkOptions
from tests.support.loops import eventually, on_loop
from tests.support.nats_client import Collector, connected, pub, url_of
from tests.support.nats_server import NatsServer
from tests.support.server import free_port_base

QUICK = LinkOptions(connect_timeout_s=0.5)
WATCHFUL = LinkOptions(ping_interval_s=2.0)
"""A server that only stands still for a moment answers in time."""


@contextmanager
def cluster(size: int, config: str = "") -> Iterator[list[NatsServer]]:
    """nats-servers joined to a cluster, so that what is published on one arrives on all."""
    ports = [free_port_base(1) for _ in range(size)]
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                NatsServer(
                    f"server_name: n{number}\n{config}\ncluster {{ name: c, "
                    f"listen: 127.0.0.1:{port}, routes: [{routes}], pool_size: -1 }}"
                )
            )
            for number, port in enumerate(ports)
        ]


ATTEMPTS = 4


class FirstThenRest(Random):
    """Leaves lists as they are: servers are tried in the order given."""

    def shuffle(self, x: object) -> None:
        pass


@on_loop
async def test_a_dead_first_server_is_passed_over() -> None:
    with NatsServer() as dead, NatsServer() as alive:
        dead.kill()
        urls = [dead.url, alive.url]
        async with connected(urls, random=FirstThenRest()) as connection:
            assert url_of(connection) == alive.url
            assert connection.urls == (dead.url, alive.url)


@on_loop
async def test_a_frozen_first_server_is_passed_over() -> None:
    with NatsServer() as frozen, NatsServer() as alive:
        frozen.freeze()
        urls = [frozen.url, alive.url]
        async with connected(urls, None, QUICK, random=FirstThenRest()) as connection:
            assert url_of(connection) == alive.url


@on_loop
async def test_after_a_restart_every_subscription_is_back() -> None:
    got = Collector()
    with NatsServer() as server, capture_logs() as logs:
        async with connected(server.url, got) as connection:
            gone = connection.subscribe("a", "", got.deliver)
            connection.subscribe("a", "", got.deliver)
            connection.subscribe("b", "workers", got.deliver)
            await connection.flush()
            connection.unsubscribe(gone)
            server.kill()
            await eventually(lambda: not connection.is_connected)
            assert url_of(connection) == ""
            late = connection.subscribe("c", "", got.deliver)
            assert late > gone
            connection.write(pub("c", b"written while there was no server"))
            server.start()
            await eventually(lambda: connection.is_connected)
            connection.write(pub("a", b"1") + pub("b", b"2") + pub("c", b"3"))
            await connection.flush()
            counters = connection.counters
    assert got.values == [b"written while there was no server", b"1", b"2", b"3"]
    assert (counters.connects, counters.disconnects) == (2, 1)
    assert (counters.reconnects, counters.suspected_gaps) == (1, 1)
    assert counters.gap_ms > 0
    assert [each["gap_ms"] for each in logs if each["event"] == "nats_connected"] == [
        0,
        counters.gap_ms,
    ]
    assert [each["suspected_gap"] for each in logs if each["event"] == "nats_disconnected"] == [
        True
    ]


def flood(port: int, values: list[bytes]) -> None:
    """Publish from a thread, which a blocked loop does not hold up."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.recv(65536)
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        for value in values:
            sock.sendall(pub("a", value))
        sock.sendall(b"PING\r\n")
        sock.recv(10)


@on_loop
async def test_a_loop_that_blocked_until_nats_dropped_us_as_slow_is_a_counted_gap() -> None:
    got = Collector()
    with NatsServer("max_pending: 1MB, max_payload: 1MB, write_deadline: 200ms") as server:
        async with connected(server.url, got) as connection:
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            values = [b"%d:" % number + bytes(500_000) for number in range(100)]
            flooding = threading.Thread(target=flood, args=(server.port, values), daemon=True)
            flooding.start()
            deadline = time.monotonic() + 60
            while "Slow Consumer" not in server.log:
                assert time.monotonic() < deadline, server.log
                time.sleep(0.05)  # noqa: ASYNC251  the blocked loop is what this is about
            await eventually(lambda: got.reconnects > 0)
            await asyncio.to_thread(flooding.join)
            await eventually(lambda: connection.is_connected)
            assert connection.counters.suspected_gaps == connection.counters.disconnects
            assert len(got.values) < len(values)
            connection.write(pub("a", b"back"))
            await eventually(lambda: got.values[-1:] == [b"back"])


@on_loop
async def test_losing_a_server_without_subscriptions_is_no_gap() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url, got) as connection:
            server.kill()
            await eventually(lambda: got.disconnects != [])
            assert connection.counters.disconnects == 1
            assert connection.counters.suspected_gaps == 0


@on_loop
async def test_ten_thousand_subscriptions_are_back_once_it_is_connected() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url, got) as connection:
            for number in range(10_000):
                connection.subscribe(f"s.{number}", "", got.deliver)
            await connection.flush()
            server.kill()
            server.start()
            await eventually(lambda: got.reconnects == 1)
            connection.write(b"".join([pub(f"s.{number}") for number in range(10_000)]))
            await connection.flush()
    assert len(set(got.subjects)) == 10_000


@on_loop
async def test_a_frozen_server_is_found_stale_and_left_for_another() -> None:
    got = Collector()
    with cluster(2) as (first, second):
        async with connected([first.url], got, WATCHFUL) as connection:
            connection.subscribe("a", "", got.deliver)
            await eventually(lambda: second.url in connection.urls)
            first.freeze()
            await eventually(lambda: got.reconnects == 1)
            assert url_of(connection) == second.url
            connection.write(pub("a", b"v"))
            await connection.flush()
    assert got.disconnects == ["stale: the server answers no PING"]
    assert got.values == [b"v"]


@on_loop
async def test_a_busy_server_is_not_taken_for_a_stale_one() -> None:
    got = Collector()
    with NatsServer() as server:
        async with connected(server.url, got, WATCHFUL) as connection:
            await asyncio.sleep(3 * WATCHFUL.ping_interval_s)
            assert connection.counters.disconnects == 0


@on_loop
async def test_when_a_server_of_a_cluster_dies_another_discovered_one_takes_over() -> None:
    got = Collector()
    with cluster(2) as (first, second):
        async with (
            connected([first.url], got) as connection,
            connected([second.url]) as publisher,
        ):
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            await eventually(lambda: second.url in connection.urls)
            first.kill()
            await eventually(lambda: got.reconnects == 1)
            assert url_of(connection) == second.url
            publisher.write(pub("a", b"v"))
            await publisher.flush()
            await connection.flush()
    assert got.values == [b"v"]


@on_loop
async def test_a_lame_duck_is_left_without_losing_what_it_had_sent_and_nothing_comes_twice() -> (
    None
):
    got = Collector()
    with cluster(2, "lame_duck_duration: 30s, lame_duck_grace_period: 10s") as (first, second):
        async with (
            connected([first.url], got) as connection,
            connected([second.url]) as publisher,
        ):
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            await eventually(lambda: second.url in connection.urls)
            await interest_spreads(publisher, got)
            first.signal("ldm")
            sent = 0
            while got.reconnects == 0:
                publisher.write(pub("a", b"%d" % sent))
                sent += 1
                await publisher.flush()
            assert url_of(connection) == second.url
            publisher.write(pub("a", b"end"))
            await eventually(lambda: got.values[-1:] == [b"end"])
            assert connection.counters.suspected_gaps == 1
    assert got.disconnects == ["lame duck"]
    numbers = [int(value) for value in got.values if value.isdigit()]
    assert numbers == sorted(set(numbers))
    # Between unsubscribing there and subscribing here a few in a row may be lost.
    missing = sorted(set(range(sent)) - set(numbers))
    assert missing == list(range(missing[0], missing[-1] + 1)) if missing else True


async def interest_spreads(publisher: NatsConnection, got: Collector) -> None:
    """Return once what is published on another server arrives."""
    while b"hello" not in got.values:
        publisher.write(pub("a", b"hello"))
        await publisher.flush()
        await asyncio.sleep(0.01)


@on_loop
async def test_a_lame_duck_without_alternative_is_kept_to_its_end() -> None:
    got = Collector()
    with NatsServer("lame_duck_duration: 200s, lame_duck_grace_period: 100s") as server:
        async with connected(server.url, got) as connection:
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            server.signal("ldm")
            await asyncio.sleep(0.3)
            connection.write(pub("a", b"v"))
            await connection.flush()
            assert got.values == [b"v"]
            assert got.disconnects == []


@on_loop
async def test_a_server_without_room_is_tried_with_pauses_and_logged_once() -> None:
    with NatsServer("max_connections: 1", arguments=("-D",)) as server, capture_logs() as logs:
        async with connected(server.url):
            turned_away = NatsConnection([server.url])
            begun = time.monotonic()
            with pytest.raises(UnavailableError):
                await turned_away.connect(0.0)
            created = "Client connection created"
            await eventually(lambda: server.log.count(created) > ATTEMPTS)
            seconds = time.monotonic() - begun
            attempts = server.log.count(created) - 1
            with pytest.raises(UnavailableError, match="maximum connections exceeded"):
                await turned_away.connect(0.01)
            await turned_away.close()
    assert attempts < ATTEMPTS + 8 * seconds, "without pauses"
    assert [each["event"] for each in logs].count("nats_unreachable") == 1
