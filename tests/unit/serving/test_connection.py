"""One data-plane connection over real sockets: what it takes, and what ends it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf.message import Message

from jetstream_protocol import frames
from jetstream_protocol.errors import StreamNotFoundError, UnauthenticatedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net import frame_reader, frame_socket
from jetstream_server.net.frame_socket import COPIED_BYTES_MAX, FrameSocket
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.security.requirements import FRAMES
from jetstream_server.serving.dataplane import connection as connections
from jetstream_server.serving.dataplane.connection import (
    STRANGER_FRAMES_MAX,
    STRAY_CREDITS_MAX,
    Connection,
)
from jetstream_server.serving.dataplane.fetches import Fetches as Shipped
from jetstream_server.serving.dataplane.fetches import Found
from jetstream_server.serving.dataplane.follower_nodes import Followers
from jetstream_server.serving.long_poll import FetchTimes
from tests.support.access import for_the_known, open_to_all
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import eventually, on_loop
from tests.support.virtual_time import connected_pair, loop_clock, on_virtual_loop

HELLO = frames.encode(Kind.HELLO, 1, pb.Hello(version=1).SerializeToString())


class Fetches:
    """Stands for the replicas: answers with `found`, or waits for ever when there is none."""

    def __init__(self, found: LogSlice | None = None, error: Exception | None = None) -> None:
        self.found = found
        self.error = error
        self.waiting = 0
        self.calls = 0

    async def __call__(self, request: pb.DataFetchRequest) -> Found:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.found is not None:
            return Found(pb.DataFetchResponse(), [self.found])
        self.waiting += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.waiting -= 1
        raise AssertionError


class Client:
    """The other end, and the task that serves it."""

    def __init__(self, sock: socket.socket, serving: asyncio.Task[None]) -> None:
        self.sock = sock
        self.serving = serving

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, count: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.sock, count)

    async def frame(self, cls: type) -> object:
        prefix = frames.decode_prefix(await self.exactly(frames.PREFIX_BYTES), 1 << 30)
        head = cls.FromString(await self.exactly(prefix.head_length))
        await self.exactly(prefix.tail_length)
        return head

    async def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = await self.receive(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    async def ended(self) -> None:
        async with asyncio.timeout(60):
            await self.serving


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


@asynccontextmanager
async def served(
    fetch: Callable[[pb.DataFetchRequest], object],
    *,
    greet: bool = True,
    buffer: int = 0,
    over_tcp: bool = False,
    unreadable: Callable[..., None] = lambda stream_id, offset, error: None,
    access: AccessControl | None = None,
) -> AsyncIterator[Client]:
    sock, accepted = tcp_pair() if over_tcp else connected_pair()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    sock.setblocking(False)

    async def no_node(*_: object) -> None:
        raise AssertionError("no follower was expected")

    hello = pb.HelloReply(node_id=0)

    def asked(request: pb.DataFetchRequest, _: Identity) -> object:
        return fetch(request)

    fetches = SimpleNamespace(
        begin=lambda *_: None, fetch=asked, unreadable=unreadable, times=FetchTimes()
    )
    connection = Connection(
        FrameSocket(accepted, frames.REQUEST_BYTES_MAX, OsDisk()),
        hello, cast(Shipped, fetches), cast(Followers, SimpleNamespace(serve=no_node)),
        LogThrottle(), loop_clock, access or open_to_all(),
    )  # fmt: skip
    client = Client(sock, asyncio.get_running_loop().create_task(connection.run()))
    if greet:
        await client.send(HELLO)
        await client.frame(pb.HelloReply)
    try:
        yield client
    finally:
        client.serving.cancel()
        await asyncio.gather(client.serving, return_exceptions=True)
        sock.close()


def fetch_frame(count: int = 1) -> bytes:
    return frames.encode(Kind.FETCH, 1, pb.DataFetchRequest().SerializeToString()) * count


def a_file(tmp_path: Path, size: int) -> LogSlice:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(size))
    return LogSlice(str(path), 0, size, 0, 1)


@on_virtual_loop
async def test_with_security_on_a_client_that_does_not_say_who_it_is_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HELLO_SECONDS", 0.2)
    async with served(Fetches(), access=for_the_known()) as client:
        await client.ended()
    async with served(Fetches()) as client:  # Security is off.
        await asyncio.sleep(0.5)
        assert not client.serving.done()


@pytest.mark.parametrize(
    ("kind", "head"), [(Kind.FETCH, pb.DataFetchRequest()), (Kind.CREDIT, pb.Credit())]
)
@on_virtual_loop
async def test_a_stranger_sends_few_frames(kind: Kind, head: Message) -> None:
    fetches = Fetches(error=UnauthenticatedError("say who you are"))
    async with served(fetches, access=for_the_known()) as client:
        frame = frames.encode(kind, 1, head.SerializeToString())
        await client.send(frame * STRANGER_FRAMES_MAX)
        await asyncio.sleep(0.05)
        assert not client.serving.done()
        await client.send(frame)
        await client.ended()


@on_virtual_loop
async def test_credit_for_no_follow_comes_late_but_not_for_ever() -> None:
    async with served(Fetches()) as client:
        frame = frames.encode(Kind.CREDIT, 1, pb.Credit(bytes=1).SerializeToString())
        await client.send(frame * STRAY_CREDITS_MAX)
        await asyncio.sleep(0.05)
        assert not client.serving.done()
        await client.send(frame)
        await client.ended()


@on_virtual_loop
async def test_a_client_that_never_greets_is_dropped() -> None:
    connections.HELLO_SECONDS, before = 0.1, connections.HELLO_SECONDS
    try:
        async with served(Fetches(), greet=False) as client:
            await client.send(HELLO[:5])
            await client.ended()
    finally:
        connections.HELLO_SECONDS = before


@on_virtual_loop
async def test_a_frame_without_a_rule_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = Fetches()
    async with served(fetches) as client:
        monkeypatch.delitem(FRAMES, Kind.FETCH)
        await client.send(fetch_frame())
        await client.ended()
    assert not fetches.calls


@pytest.mark.parametrize("sent", [1, frames.PREFIX_BYTES, frames.PREFIX_BYTES + 3])
def test_a_client_that_leaves_a_frame_unfinished_is_dropped(
    monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    monkeypatch.setattr(frame_reader, "STALL_SECONDS", 0.1)

    @on_virtual_loop
    async def scenario() -> None:
        async with served(Fetches()) as client:
            frame = frames.encode(Kind.FETCH, 1, b"\x0a" * 100)
            await client.send(frame[:sent])
            await client.ended()

    scenario()


def test_a_client_may_be_silent_between_two_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_reader, "STALL_SECONDS", 0.05)

    @on_virtual_loop
    async def scenario() -> None:
        async with served(Fetches(error=StreamNotFoundError("none"))) as client:
            for _ in range(2):
                await asyncio.sleep(0.2)
                await client.send(fetch_frame())
                answer = await client.frame(pb.DataFetchResponse)
                assert answer.error.code == "stream_not_found"  # type: ignore[attr-defined]

    scenario()


def test_a_client_that_takes_no_byte_is_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(frame_socket, "STALL_SECONDS", 0.2)

    @on_virtual_loop
    async def scenario() -> None:
        found = a_file(tmp_path, 16 << 20)
        async with served(Fetches(found), buffer=4096) as client:
            await client.send(fetch_frame())
            await client.ended()

    scenario()


def test_a_client_that_takes_a_little_now_and_then_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(frame_socket, "STALL_SECONDS", 0.3)

    @on_virtual_loop
    async def scenario() -> None:
        found = a_file(tmp_path, 8 << 20)
        async with served(Fetches(found), buffer=4096) as client:
            await client.send(fetch_frame())
            for _ in range(10):
                await asyncio.sleep(0.1)
                await client.receive(300_000)
            assert not client.serving.done()

    scenario()


@on_virtual_loop
async def test_a_connection_serves_64_requests_at_a_time() -> None:
    fetches = Fetches()
    async with served(fetches) as client:
        await client.send(fetch_frame(200))
        await eventually(lambda: fetches.waiting == connections.PENDING_MAX)
        await asyncio.sleep(0.05)
        assert fetches.calls == connections.PENDING_MAX
        client.sock.close()
        await client.ended()
    assert fetches.waiting == 0


@on_loop
async def test_a_reset_while_reading_and_writing_ends_the_connection_and_nothing_else(
    tmp_path: Path,
) -> None:
    found = a_file(tmp_path, 16 << 20)
    for _ in range(20):
        async with served(Fetches(found), buffer=4096, over_tcp=True) as client:
            await client.send(fetch_frame())
            await client.receive(100)
            await asyncio.sleep(0.01)
            client.sock.send(fetch_frame())
            client.reset()
            await client.ended()


@on_virtual_loop
async def test_a_segment_that_cannot_be_opened_is_an_answer_and_is_looked_at(
    tmp_path: Path,
) -> None:
    nowhere = LogSlice(str(tmp_path), 0, 10, 17, 18)  # A folder cannot be read as a file.
    looked_at: list[int] = []
    async with served(
        Fetches(nowhere), unreadable=lambda stream_id, offset, error: looked_at.append(offset)
    ) as client:
        await client.send(fetch_frame(2))
        for _ in range(2):
            answer = await client.frame(pb.DataFetchResponse)
            assert answer.error.code == "unavailable"  # type: ignore[attr-defined]
            assert answer.error.retriable  # type: ignore[attr-defined]
            assert os.strerror(errno.EISDIR) in answer.error.message  # type: ignore[attr-defined]
    assert looked_at == [17, 17]


@pytest.mark.parametrize("length", [10, COPIED_BYTES_MAX + 1])
@on_virtual_loop
async def test_a_segment_that_no_descriptor_is_left_for_is_not_said_to_be_looked_at(
    tmp_path: Path, length: int
) -> None:
    reasons: list[BaseException | None] = []
    async with served(
        Fetches(a_file(tmp_path, length)),
        unreadable=lambda stream_id, offset, error: reasons.append(error.__cause__),
    ) as client:
        with no_descriptor_left():
            await client.send(fetch_frame())
            answer = await client.frame(pb.DataFetchResponse)
        assert answer.error.code == "unavailable"  # type: ignore[attr-defined]
        assert os.strerror(errno.EMFILE) in answer.error.message  # type: ignore[attr-defined]
        assert "inspected" not in answer.error.message  # type: ignore[attr-defined]
        await client.send(fetch_frame())  # Now there is.
        answer = await client.frame(pb.DataFetchResponse)
        assert not answer.HasField("error")  # type: ignore[attr-defined]
    assert [lacks_descriptors(reason) for reason in reasons] == [True]


@on_virtual_loop
async def test_a_segment_deleted_before_its_turn_is_asked_for_again(tmp_path: Path) -> None:
    fetches = Fetches(LogSlice(str(tmp_path / "gone"), 0, 10, 0, 1))
    async with served(fetches) as client:
        await client.send(fetch_frame())
        answer = await client.frame(pb.DataFetchResponse)
    assert fetches.calls == 2
    assert answer.error.code == "unavailable"  # type: ignore[attr-defined]


@on_virtual_loop
async def test_what_cannot_be_read_in_the_middle_of_an_answer_comes_as_zeros(
    tmp_path: Path,
) -> None:
    found = a_file(tmp_path, 4 << 20)
    async with served(Fetches(found), buffer=4096) as client:
        await client.send(fetch_frame())
        prefix = frames.decode_prefix(await client.exactly(frames.PREFIX_BYTES), 1 << 30)
        await client.exactly(prefix.head_length)
        os.truncate(found.path, 1 << 18)
        await client.exactly(prefix.tail_length - 10)
        assert await client.exactly(10) == bytes(10)
        await client.send(fetch_frame())  # The frame is whole, and the connection goes on.
        await client.frame(pb.DataFetchResponse)


@on_virtual_loop
async def test_a_mistake_of_ours_is_logged_and_ends_only_this_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with served(Fetches(error=ZeroDivisionError("ours"))) as client:
        await client.send(fetch_frame())
        await client.ended()
    assert "request_failed" in capsys.readouterr().out
