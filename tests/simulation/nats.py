"""A NATS server in simulated time, as far as the server's connections need one.

It reads SUB, UNSUB, PUB, HPUB, PING and CONNECT, and hands what is published to whoever is
subscribed by then; each connection's bytes keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.process import Process

INFO = b'INFO {"server_id":"simulated","version":"2.10.0","headers":true,"max_payload":1048576}\r\n'
DELIVERY_US = 2_000
"""So long a message is on its way from NATS at most, mostly."""

OnPublish = Callable[["Process", bytes, bytes], None]


class NatsServer:
    """The one there is. `published` is told what servers publish: process, subject, payload."""

    def __init__(self, world: World, published: OnPublish) -> None:
        self.world = world
        self.published = published
        self.sockets: dict[NatsSocket, None] = {}
        self.slow: dict[int, int] = {}
        """By node: how much longer what is published is on its way to it."""

    def publish(
        self,
        subject: bytes,
        messages: list[tuple[bytes, bytes, bytes]],
        delay_us_max: int = DELIVERY_US,
        *,
        beside: bytes = b"",
    ) -> list[int]:
        """Messages as (reply, header block, value), to everyone who is subscribed; each has them
        in one piece, when they arrive. Returns the nodes that are. beside: another subject, for
        which the same subscriptions stand."""
        heard = []
        for socket in list(self.sockets):
            for sid, heard_subject in socket.sids.items():
                if heard_subject != subject:
                    continue
                parts = [_message(beside or subject, sid, *message) for message in messages]
                slow_us = self.slow.get(socket.node_id, 0)
                socket.send(b"".join(parts), self.world.between(50, delay_us_max) + slow_us)
                heard.append(socket.node_id)
        return heard


def _message(subject: bytes, sid: int, reply: bytes, block: bytes, value: bytes) -> bytes:
    to = b" " + reply if reply else b""
    if not block:
        return b"MSG %b %d%b %d\r\n%b\r\n" % (subject, sid, to, len(value), value)
    total = len(block) + len(value)
    return b"HMSG %b %d%b %d %d\r\n%b%b\r\n" % (subject, sid, to, len(block), total, block, value)


class NatsSocket(asyncio.Transport):
    """A process's connection: the server's end and, towards asyncio, the transport.

    `sids`: of the subscriptions that the server knows, with their subjects.
    """

    def __init__(self, server: NatsServer, process: Process) -> None:
        super().__init__()
        self._server = server
        self._process = process
        self.node_id = process.node_id
        self._loop = process.loop
        self._protocol: asyncio.BufferedProtocol | None = None
        self._sent_at = 0
        self._written_at = 0
        self._held = b""
        self._inbox: list[bytes] = []
        self._is_waking = False
        self._is_paused = False
        self._is_closing = False
        self.sids: dict[int, bytes] = {}

    # The client's side.

    def connect(self, protocol: asyncio.BaseProtocol) -> NatsSocket:
        self._protocol = cast(asyncio.BufferedProtocol, protocol)
        self._server.sockets[self] = None
        self._process.nats_socket = self
        protocol.connection_made(self)
        self.send(INFO, 100)
        return self

    def write(self, data: bytes) -> None:  # type: ignore[override]
        world = self._server.world
        self._written_at = max(self._written_at + 1, world.now + world.between(30, 300))
        world.at(self._written_at, None, self._received, data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._wake_soon()

    def close(self) -> None:
        """What was written arrives; nothing is received any more."""
        self._end(0)

    def abort(self) -> None:
        self._end(0)

    def _end(self, delay: int) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._server.sockets.pop(self, None)
            assert self._protocol is not None
            self._server.world.later(
                delay, self._loop, self._loop.enter, self._protocol.connection_lost, None
            )

    # The server's side.

    def drop(self) -> None:
        """The server, or what lies between, ends the connection."""
        self._end(self._server.world.between(50, 500))

    def vanish(self) -> None:
        """The process has died. What it wrote arrives."""
        self._is_closing = True
        self._server.sockets.pop(self, None)

    def send(self, data: bytes, delay: int) -> None:
        world = self._server.world
        self._sent_at = max(self._sent_at + 1, world.now + delay)
        world.at(self._sent_at, None, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if not self._is_closing and self._loop.alive:
            self._inbox.append(data)
            self._wake_soon()

    def _wake_soon(self) -> None:
        loop = self._loop
        if self._is_waking or not self._inbox:
            return
        self._is_waking = True
        if loop.paused_until > loop.world.now:
            loop.world.at(loop.paused_until, loop, loop.enter, self._wake)
        else:
            loop.enter(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        if self._is_paused or self._is_closing or not self._inbox:
            return
        data = b"".join(self._inbox)
        self._inbox.clear()
        assert self._protocol is not None
        buffer = self._protocol.get_buffer(-1)
        count = min(len(buffer), len(data))
        cast(memoryview, buffer)[:count] = data[:count]
        if count < len(data):
            self._inbox.append(data[count:])
        self._protocol.buffer_updated(count)
        self._wake_soon()

    def _received(self, data: bytes) -> None:
        """Lines of the client's, whole ones."""
        data = self._held + data
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            verb, _, rest = data[at:end].partition(b" ")
            following = end + 2
            if verb in (b"PUB", b"HPUB"):
                fields = rest.split(b" ")
                length = int(fields[-1])
                if len(data) < following + length + 2:
                    break
                payload = data[following : following + length]
                following += length + 2
                self._server.published(self._process, fields[0], payload)
            elif verb == b"SUB":
                fields = rest.split(b" ")
                self.sids[int(fields[-1])] = fields[0]
            elif verb == b"UNSUB":
                self.sids.pop(int(rest.split(b" ")[0]), None)
                self._process.silences += 1
            elif verb == b"PING":
                self.send(b"PONG\r\n", self._server.world.between(30, 300))
            at = following
        self._held = data[at:]
