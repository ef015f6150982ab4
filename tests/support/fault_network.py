"""A network between real processes that a test can cut: whatever nodes advertise is a proxy.

    node 1 ──> proxy of node 0's data port ──> node 0's data port

A proxy learns from /proc which process has dialled, so that a cut is between two named processes,
in one direction or both, on chosen ports. What is under way in a direction that is cut waits, a
goodbye included, as with packets that are lost and sent again; a new connection is accepted (by the
proxy) and receives nothing. Other processes (a test, a client) are never cut off.

A link may also be `Bad`: slow, narrow, or lossy. TCP never shows a lost packet to a process, only
that bytes come later, or that the connection is reset.

All of it lives on one thread with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

PIECE_BYTES = 1 << 16
RETRANSMISSION_SECONDS = 0.2
"""TCP's least, on Linux."""
# The numbers of sock_diag, from its manual page.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE, NO_COOKIE = 0xFFFFFFFF, (0xFFFFFFFF, 0xFFFFFFFF)
HEAD_BYTES, ANSWER_BYTES_MAX = 16, 8192
INODE_AT = HEAD_BYTES + 4 + 48 + 16
CALL_SECONDS = 60.0

STRANGER = ""
"""The name of every process that has none here, as clients."""

Way = tuple[str, str, str]
"""Bytes from one process to another on a kind of port: ("node-0", "node-1", "raft")."""


class LinkResetError(Exception):
    """A bad link has reset the connection."""


@dataclass(frozen=True, slots=True)
class Bad:
    """What a link does to each piece of at most PIECE_BYTES that is read from a connection.

    delay_seconds: at least and at most. lost: the share of pieces that come later by RETRANSMISSION
    seconds. reset: the share at which the connection is reset, both ends of it.
    """

    delay_seconds: tuple[float, float] = (0.0, 0.0)
    bytes_per_second: float = math.inf
    lost: float = 0.0
    reset: float = 0.0

    def hold(self, length: int, dice: Random) -> float:
        """Seconds until a piece has passed; one after the other. Raises LinkResetError."""
        if dice.random() < self.reset:
            raise LinkResetError
        seconds = dice.uniform(*self.delay_seconds) + length / self.bytes_per_second
        return seconds + (RETRANSMISSION_SECONDS if dice.random() < self.lost else 0.0)


class _Owners:
    """Which process holds a socket. All descriptors of all processes are read for that, which takes
    milliseconds; but once for all connections that there are by then: when a fault begins, hundreds
    are asked about at once, and when it ends, hundreds dial again."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self._processes = processes
        self._found: dict[int, str] = {}
        self._looked_at = 0.0

    def name(self, inode: int, since: float) -> str:
        """Of the process that has held the socket since that moment of the monotonic clock."""
        if self._looked_at <= since:
            self._looked_at = time.monotonic()
            self._found = {
                each: name for name, pid in self._processes().items() for each in _sockets_of(pid)
            }
        return self._found.get(inode, STRANGER)


class _Dialler:
    """Who has dialled. Asked for only while a link is cut or bad."""

    def __init__(self, owners: _Owners, source: tuple[str, int], target: tuple[str, int]) -> None:
        self._owners = owners
        self._ends = source, target
        self._since = time.monotonic()

    @cached_property
    def name(self) -> str:
        inode = _socket_between(*self._ends)
        return self._owners.name(inode, self._since) if inode else STRANGER


class FaultNetwork:
    """`route` every address, then `cut`, `spoil` and `heal`; `close` in the end.

    processes: the ids of those that can be cut off, by name.
    """

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        self._owners = _Owners(processes)
        self._cut: frozenset[Way] = frozenset()
        self._bad: Mapping[Way, Bad] = {}
        self._dice = Random()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults", daemon=True)
        self._thread.start()

    def route(self, owner: str, kind: str, address: str) -> str:
        """Where to dial instead of `address`, the `kind` of port that `owner` listens on."""
        return self._do(self._listen(owner, kind, address))

    def cut(self, source: str, target: str, *kinds: str, both: bool = True) -> None:
        """From now on nothing passes from source to target, nor back if `both`."""
        ways = {(source, target, kind) for kind in kinds}
        if both:
            ways |= {(target, source, kind) for kind in kinds}
        self._do(self._set(self._cut | ways, self._bad))

    def spoil(self, source: str, target: str, *kinds: str, bad: Bad) -> None:
        """From now on what passes between the two suffers that, in both directions."""
        ways = [way for kind in kinds for way in ((source, target, kind), (target, source, kind))]
        self._do(self._set(self._cut, {**self._bad, **dict.fromkeys(ways, bad)}))

    def heal(self) -> None:
        """Let everything pass at once, what has waited first."""
        self._do(self._set(frozenset(), {}))

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)

    # On the thread.

    async def _set(self, cut: frozenset[Way], bad: Mapping[Way, Bad]) -> None:
        self._cut, self._bad = cut, bad
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listen(self, owner: str, kind: str, address: str) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):  # One of the two has gone; so does the connection.
                await self._forward(owner, kind, address, reader, writer)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # Also of one that is cancelled before it has begun.
            task.add_done_callback(lambda _: writer.close())

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _forward(
        self,
        owner: str,
        kind: str,
        address: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        dialler = _Dialler(self._owners, *ends)

        def there() -> Way:
            return dialler.name, owner, kind

        def back() -> Way:
            return owner, dialler.name, kind

        await self._until_open(there)  # A connection needs both.
        await self._until_open(back)
        host, _, port = address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        pumps = [
            asyncio.ensure_future(self._pump(there, reader, far_writer)),
            asyncio.ensure_future(self._pump(back, far_reader, writer)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            if any(isinstance(pump.exception(), LinkResetError) for pump in done):
                _reset(writer, far_writer)
        finally:
            for pump in pumps:
                pump.cancel()
            far_writer.close()  # What was written still goes out. Before a wait: `_end` cancels it.
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, way: Callable[[], Way], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        piece = b"?"
        while piece:
            try:
                piece = await reader.read(PIECE_BYTES)
            except OSError:
                piece = b""  # A reset waits like any goodbye.
            if self._bad and (bad := self._bad.get(way())):
                await asyncio.sleep(bad.hold(len(piece), self._dice))
            await self._until_open(way)
            writer.write(piece)
            await writer.drain()

    async def _until_open(self, way: Callable[[], Way]) -> None:
        while self._cut and way() in self._cut:
            await self._changed.wait()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _reset(*writers: asyncio.StreamWriter) -> None:
    """End connections by RST; what was under way is gone."""
    for writer in writers:
        held = writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


def _socket_between(source: tuple[str, int], target: tuple[str, int]) -> int:
    """The inode of the socket at `source` that is connected to `target`; 0 when it is gone.

    The kernel is asked for that one socket (sock_diag(7)): /proc/net/tcp lists them all, which
    takes 20 ms on a machine with a thousand of them.
    """
    ends = struct.pack(">HH", source[1], target[1])
    for host, _ in (source, target):
        ends += socket.inet_aton(host) + bytes(12)
    ends += struct.pack("=III", 0, *NO_COOKIE)
    question = struct.pack("=BBxxI", socket.AF_INET, socket.IPPROTO_TCP, ANY_STATE) + ends
    head = struct.pack(
        "=IHHII", HEAD_BYTES + len(question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(head + question)
        answer = kernel.recv(ANSWER_BYTES_MAX)
    if struct.unpack_from("=IH", answer)[1] != SOCK_DIAG_BY_FAMILY:
        return 0
    return int(struct.unpack_from("=I", answer, INODE_AT)[0])


def _sockets_of(pid: int) -> set[int]:
    """The inodes of a process's sockets; none when it has ended."""
    found = set()
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with suppress(OSError):  # Closed meanwhile.
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return found
