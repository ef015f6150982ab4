"""The connection's decisions, seen from servers that follow a script. With real servers:
tests/integration/test_nats_connection.py and test_nats_failover.py."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats import link, reconnector
from jetstream_server.ingest.nats.connection import HEARD_SECONDS, HELD_BYTES_MAX, NatsConnection
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.link import TURN_SECONDS
from jetstream_server.ingest.nats.server_pool import ServerPool
from tests.support.loops import eventually, on_loop
from tests.support.nats_client import Collector, connected, pub, url_of
from tests.support.nats_peer import accept, peer


class InOrder(Random):
    """Servers are tried in the order given."""

    def shuffle(self, x: object) -> None:
        pass


class Peer:
    """A scripted server that notes what it is told."""

    def __init__(self, *, answers_pings: bool = True) -> None:
        self.lines: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self.writer: asyncio.StreamWriter | None = None
        self.answers_pings = answers_pings
        self.accepts = asyncio.Event()
        self.accepts.set()

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        try:
            await self.accepts.wait()
            await accept(reader, writer)
            while line := await reader.readline():
                self.lines.append(line)
                if line == b"PING\r\n" and self.answers_pings:
                    writer.write(b"PONG\r\n")
        finally:
            self.ended += 1

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@on_loop
async def test_a_lame_duck_is_told_to_stop_before_the_next_server_is_told_to_start() -> None:
    first, second = Peer(), Peer()
    got = Collector()
    async with (
        peer(first.script) as one,
        peer(second.script) as two,
        connected([one, two], got, random=InOrder()) as connection,
    ):
        connection.subscribe("a", "workers", got.deliver)
        await connection.flush()
        first.answers_pings = False
        first.say(b'INFO {"ldm":true} \r\n')
        await eventually(lambda: first.lines[-2:] == [b"UNSUB 1\r\n", b"PING\r\n"])
        # On its way when the server learnt of it: not lost.
        first.say(b"MSG a 1 1\r\nx\r\n")
        assert second.connections == 1
        assert second.lines == []
        connection.write(pub("ack", b"for a publisher"))
        first.say(b"PONG\r\n")
        await eventually(lambda: got.reconnects == 1)
        assert first.lines.count(b"for a publisher\r\n") == 1
        assert second.lines == [b"SUB a workers 1\r\n", b"PING\r\n"]
        assert url_of(connection) == two
        await eventually(lambda: first.ended == 1)
        assert second.connections == 1
    assert got.values == [b"x"]
    assert got.disconnects == ["lame duck"]


@on_loop
async def test_what_is_written_while_a_lame_duck_is_being_closed_goes_to_the_next_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnector, "CLOSE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(link, "PROBE_SECONDS", 60.0)  # A probe would take the scripted PONG.
    stuck = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer)
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"PONG\r\n")
        await stuck.wait()
        writer.write(b'INFO {"ldm":true} \r\nPONG\r\n')  # and reads no more
        await asyncio.Event().wait()

    second = Peer()
    async with (
        peer(script) as one,
        peer(second.script) as two,
        connected([one, two], random=InOrder()) as connection,
    ):
        connection.write(pub("a", bytes(32 * 1024 * 1024)))
        flushing = asyncio.create_task(connection.flush(60.0))  # its PONG is the scripted one
        await asyncio.sleep(0.01)
        stuck.set()
        await flushing
        await eventually(lambda: second.connections == 1)
        await eventually(lambda: url_of(connection) == "")
        connection.write(pub("ack", b"for a publisher"))
        await eventually(lambda: b"for a publisher\r\n" in second.lines)


@on_loop
async def test_acks_of_what_is_delivered_after_the_end_of_a_link_go_to_the_next_one() -> None:
    first, second = Peer(), Peer()
    got = Collector()
    async with (
        peer(first.script) as one,
        peer(second.script) as two,
        connected([one, two], got, random=InOrder()) as connection,
    ):
        acks = 0

        def slow(delivery: Delivery) -> None:
            nonlocal acks
            time.sleep(2 * TURN_SECONDS)
            connection.write(pub(f"ack.{acks}", b""))
            acks += 1

        for _ in range(6):
            connection.subscribe("a", "", slow)
        await connection.flush()
        first.say(b"".join(b"MSG a %d 1\r\nx\r\n" % sid for sid in range(1, 7)))
        assert first.writer is not None
        first.writer.transport.abort()
        await eventually(lambda: acks == 6)
        await eventually(lambda: b"PUB ack.5 0\r\n" in [*first.lines, *second.lines])
        told = [*first.lines, *second.lines]
        assert [each for each in told if each.startswith(b"PUB")][-3:] == [
            b"PUB ack.%d 0\r\n" % number for number in (3, 4, 5)
        ]


@on_loop
async def test_a_limit_hit_when_subscriptions_are_restored_is_told_to_their_owners() -> None:
    server = Peer()
    got = Collector()
    async with peer(server.script) as url, connected(url, got) as connection:
        sid = connection.subscribe("a", "", got.deliver, got.refuse)
        await connection.flush()
        server.answers_pings = False
        assert server.writer is not None
        server.writer.close()
        await eventually(lambda: server.lines.count(b"SUB a 1\r\n") == 2)
        server.say(b"-ERR 'maximum subscriptions exceeded'\r\nPONG\r\n")
        await eventually(lambda: got.reconnects == 1)
        assert [refused for refused, _ in got.refusals] == [sid]


@pytest.mark.parametrize("until", ["the next server is being asked", "the last one is drained"])
@on_loop
async def test_closing_while_moving_leaves_no_connection_behind(until: str) -> None:
    first, second = Peer(), Peer()
    async with peer(first.script) as one, peer(second.script) as two:
        async with connected([one, two], random=InOrder()):
            first.answers_pings = False
            if until == "the next server is being asked":
                second.accepts.clear()
            first.say(b'INFO {"ldm":true} \r\n')
            await eventually(lambda: second.connections == 1)
            if second.accepts.is_set():
                await eventually(lambda: first.lines == [b"PING\r\n"] * 2)
        second.accepts.set()
        await eventually(lambda: (first.ended, second.ended) == (1, 1))


@on_loop
async def test_a_server_that_takes_us_and_drops_us_at_once_is_tried_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = 0
    pauses: list[int] = []

    def note(self: ServerPool, failed_rounds: int) -> float:
        pauses.append(failed_rounds)
        return 0.0

    monkeypatch.setattr(ServerPool, "pause_s", note)
    monkeypatch.setattr(reconnector, "LINK_LIFE_S_MIN", 60.0)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        await accept(reader, writer)
        await reader.readline()
        writer.close()

    got = Collector()
    async with peer(script) as url:
        connection = NatsConnection([url], on_disconnect=got.disconnected)
        connection.subscribe("a", "", got.deliver)
        connecting = asyncio.create_task(connection.connect(60.0))
        await eventually(lambda: len(pauses) >= 5)
        assert not connecting.done()
        # It never came to listen: that is one long gap at most, not one per attempt.
        assert connection.counters.suspected_gaps == 0
        assert got.disconnects == []
        assert pauses[:5] == [0, 1, 2, 3, 4]
        assert attempts <= len(pauses) + 1
        connecting.cancel()
        await connection.close()


@on_loop
async def test_listening_is_announced_only_when_the_server_has_confirmed_the_subscriptions() -> (
    None
):
    server = Peer(answers_pings=False)
    got = Collector()
    async with peer(server.script) as url:
        connection = NatsConnection([url])
        connection.subscribe("a", "", got.deliver)
        connecting = asyncio.create_task(connection.connect(60.0))
        await eventually(lambda: server.lines == [b"SUB a 1\r\n", b"PING\r\n"])
        await asyncio.sleep(0.02)
        assert not connecting.done()
        assert not connection.is_connected
        server.say(b"PONG\r\n")
        await connecting
        assert connection.is_connected
        await connection.close()


@on_loop
async def test_what_is_kept_while_no_server_is_there_is_bounded() -> None:
    connection = NatsConnection(["nats://127.0.0.1:1"])
    ack = pub("_INBOX.a", bytes(1000))
    accepted = 0
    while connection.write(ack):
        accepted += 1
    assert connection.write_buffer_size == accepted * len(ack) <= HELD_BYTES_MAX
    assert connection.counters.writes_refused == 1
    await connection.close()


@on_loop
async def test_draining_without_a_connection_has_nothing_to_wait_for() -> None:
    got = Collector()
    connection = NatsConnection(["nats://127.0.0.1:1"])
    sid = connection.subscribe("a", "", got.deliver)
    async with asyncio.timeout(60):
        await connection.drain_subscriptions([sid])
    server = Peer()
    async with peer(server.script) as url, connected(url) as other:
        await other.drain_subscriptions()
        assert server.lines == [b"PING\r\n"]
    await connection.close()


@on_loop
async def test_close_gives_up_on_a_server_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnector, "CLOSE_TIMEOUT_S", 0.1)
    closed, over = asyncio.Event(), asyncio.Event()
    received = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await accept(reader, writer)
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"PONG\r\n")
        await closed.wait()
        try:
            while data := await reader.read(65536):
                received += len(data)
        finally:
            over.set()

    async with peer(script) as url:
        connection = NatsConnection([url])
        await connection.connect(60.0)
        connection.write(pub("a", bytes(32 * 1024 * 1024)))
        async with asyncio.timeout(60):
            await connection.close()
        closed.set()
        await over.wait()
    assert received < 32 * 1024 * 1024


@on_loop
async def test_a_barrier_fails_when_the_connection_is_lost_instead_of_spanning_the_gap() -> None:
    server = Peer()
    got = Collector()
    async with peer(server.script) as url, connected(url, got) as connection:
        server.answers_pings = False
        flushing = asyncio.create_task(connection.flush(60.0))
        await eventually(lambda: server.lines[-2:] == [b"PING\r\n"] * 2)
        server.answers_pings = True
        assert server.writer is not None
        server.writer.close()
        with pytest.raises(UnavailableError, match="lost"):
            await flushing
        # The next one waits for the next connection.
        await connection.flush(60.0)
        assert got.reconnects == 1


@on_loop
async def test_a_bug_that_stops_the_keeper_does_not_pass_in_silence() -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: problems.append(context.get("exception"))
    )
    error = RuntimeError("in a callback")

    def disconnected(reason: str) -> None:
        raise error

    server = Peer()
    async with peer(server.script) as url, connected(url, on_disconnect=disconnected):
        assert server.writer is not None
        server.writer.close()
        await eventually(lambda: problems != [])
    assert problems == [error]


@on_loop
async def test_a_server_that_says_nothing_is_not_heard_and_not_left_for_it() -> None:
    """A connection that was cut without a word lives on; an idle server answers if asked."""
    server = Peer()
    async with peer(server.script) as url, connected([url], Collector()) as connection:
        connection.subscribe("a", "", Collector().deliver)
        connected_at = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() > connected_at + HEARD_SECONDS)
        await eventually(lambda: connection.is_responsive)  # It was asked and has answered.
        server.answers_pings = False
        await eventually(lambda: not connection.is_responsive)
        assert connection.is_connected
        assert server.connections == 1
        server.say(b"+OK\r\n")
        await eventually(lambda: connection.is_responsive)
