"""The leaf connection's bounds, seen from servers that follow a script. With real servers:
tests/integration/test_leaf_link.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats.handshake import LinkOptions
from jetstream_server.jetstream_api.leaf.connection import WRITE_BYTES_MAX
from jetstream_server.jetstream_api.requests import announcement
from tests.support.leaf import DOMAIN, Echo, echoing
from tests.support.loops import eventually, on_loop
from tests.support.nats_peer import peer

REPLY = b"_INBOX.a"
LONG = (b"x" * 1023 + b"\n") * 64
"""In lines, so that a peer can read it by lines."""


class Peer:
    """A scripted server that notes what it is told. info: further fields of its INFO. reads: for as
    long as it is set, it reads."""

    def __init__(self, **info: object) -> None:
        self.info = {"server_id": "X", "version": "2.15.0", "max_payload": 1 << 20, **info}
        self.lines: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.writer: asyncio.StreamWriter | None = None

    async def script(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        writer.write(b"INFO %b\r\n" % json.dumps(self.info).encode())
        while True:
            await self.reads.wait()
            line = await reader.readline()
            if not line:
                return
            self.lines.append(line)
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@asynccontextmanager
async def linked(server: Peer) -> AsyncIterator[Echo]:
    async with peer(server.script) as url, echoing(url, LinkOptions(name="node-3")) as echo:
        yield echo


async def fill(echo: Echo) -> int:
    """Send until nothing more is taken. Returns how much was."""
    sent = 0
    while echo.link.send(REPLY, LONG):
        sent += 1
        if sent % 16 == 0:
            await asyncio.sleep(0)
    return sent


@on_loop
async def test_the_login_names_the_node_and_the_cluster_and_repeats_the_servers_version() -> None:
    server = Peer()
    async with linked(server):
        await eventually(lambda: len(server.lines) > 3)
        connect = json.loads(server.lines[0].removeprefix(b"CONNECT "))
        assert connect["name"] == "jetstream-test-node-3"
        assert connect["cluster"] == "jetstream-test"
        assert connect["version"] == "2.15.0"
        announced = [line for line in server.lines if line.startswith(b"LS+")]
        assert announced
        # A literal one that the leaf user may not have would close the link.
        assert all(b"*" in line or b">" in line for line in announced)


@on_loop
async def test_who_withdraws_takes_back_all_that_was_announced_and_announces_nothing_more() -> None:
    server = Peer()
    async with linked(server) as echo:
        announced = announcement(DOMAIN).splitlines(keepends=True)
        await eventually(lambda: server.lines[-1:] == announced[-1:])
        before = len(server.lines)
        await echo.link.withdraw()
        withdrawn = [line for line in server.lines[before:] if line.startswith(b"LS-")]
        assert withdrawn == [
            line.replace(b"LS+", b"LS-").replace(b" 1\r\n", b"\r\n") for line in announced
        ]
        server.lines.clear()
        assert server.writer is not None
        server.writer.transport.abort()
        await eventually(lambda: echo.link.counters.connects == 2)
        assert echo.link.send(REPLY, b"x")
        await eventually(lambda: b"LMSG _INBOX.a 1\r\n" in server.lines)
        assert not [line for line in server.lines if line.startswith(b"LS+")]


@on_loop
async def test_no_more_waits_for_a_server_that_does_not_read_than_the_bound() -> None:
    server = Peer()
    async with linked(server) as echo:
        server.reads.clear()
        sent = await fill(echo)
        assert sent * len(LONG) < 4 * WRITE_BYTES_MAX
        assert not echo.link.has_room
        assert echo.link.counters.answers_dropped == 1
        waiting = asyncio.create_task(echo.link.room())
        assert not waiting.done()
        server.reads.set()
        await waiting
        assert echo.link.has_room


@on_loop
async def test_one_long_message_is_sent_however_little_may_wait_beside_it() -> None:
    """NATS takes up to 64 MiB where it is told so. It came again for ever."""
    server = Peer(max_payload=2 * WRITE_BYTES_MAX)
    async with linked(server) as echo:
        server.reads.clear()
        assert echo.link.send(REPLY, LONG * (WRITE_BYTES_MAX // len(LONG) + 1))
        assert not echo.link.has_room
        server.reads.set()


@on_loop
async def test_a_link_that_is_being_closed_has_no_room() -> None:
    """Consumers would take for delivered what is dropped."""
    async with linked(Peer()) as echo:
        assert echo.link.has_room
        link = echo.link._link
        assert link is not None
        link.close("for a test")
        assert not echo.link.has_room
        assert not echo.link.send(REPLY, b"x")


@on_loop
async def test_who_waits_for_room_hears_that_the_link_is_lost() -> None:
    server = Peer()
    async with linked(server) as echo:
        server.reads.clear()
        await fill(echo)
        waiting = asyncio.create_task(echo.link.room())
        await asyncio.sleep(0)
        assert server.writer is not None
        server.writer.transport.abort()
        with pytest.raises(UnavailableError):
            await waiting


@on_loop
async def test_an_answer_longer_than_max_payload_is_dropped() -> None:
    server = Peer(max_payload=100)
    async with linked(server) as echo:
        assert echo.link.max_payload == 100
        assert not echo.link.send(REPLY, bytes(50), b"NATS/1.0\r\n" + bytes(50))
        assert echo.link.send(REPLY, b"x" * 50, b"NATS/1.0\r\n\r\n")
        await eventually(lambda: any(line.startswith(b"HMSG") for line in server.lines))
        assert [line for line in server.lines if b"MSG" in line] == [b"HMSG _INBOX.a 12 62\r\n"]


@on_loop
async def test_permissions_that_change_count_from_then_on() -> None:
    server = Peer()
    async with linked(server) as echo:
        assert echo.link.may_answer(REPLY)
        server.say(b'INFO {"export":{"allow":["_INBOX.b"]}}\r\n')
        await eventually(lambda: not echo.link.may_answer(REPLY))
        assert echo.link.may_answer(b"_INBOX.b")
        server.say(b'INFO {"leafnode_urls":["127.0.0.1:7422"]}\r\nLMSG $JS.log.API.INFO 0\r\n\r\n')
        await eventually(lambda: len(echo.messages) == 1)
        assert not echo.link.may_answer(REPLY)


@on_loop
async def test_answers_go_only_where_acks_may_go() -> None:
    server = Peer()
    async with linked(server) as echo:
        for reply in (b"orders.eu", b"$JS.log.API.INFO", b"_INBOXES.a", b"_INBOX.a b"):
            assert not echo.link.send(reply, b"x")
        assert echo.link.send(b"_R_.service.reply", b"x")
        assert echo.link.send(b"_GR_.abcdef.123456._INBOX.a", b"x")
        assert not echo.link.send(b"_GR_.abcdef.123456.orders.eu", b"x")


@on_loop
async def test_bytes_that_are_no_leaf_protocol_end_the_link_and_another_is_opened() -> None:
    server = Peer()
    async with linked(server) as echo:
        server.say(b"MSG a 1 1\r\nx\r\n")
        await eventually(lambda: echo.link.counters.connects == 2)
