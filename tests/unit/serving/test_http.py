"""What a stranger's request to the HTTP port costs."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import socket
import zlib
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import StreamReader, http_parser, web
from google.protobuf.message import Message

from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.services import METHODS
from jetstream_server.clocks import wall_clock
from jetstream_server.serving.grpc import response_memory
from jetstream_server.serving.http import (
    answer_room,
    connections,
    http_requests,
    record_formats,
)
from jetstream_server.serving.http import server as http_server_module
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.api_routes import api_routes
from jetstream_server.serving.http.connections import CONNECTIONS_MAX
from jetstream_server.serving.http.gateway import Gateway
from jetstream_server.serving.http.records import RecordsApi, _Reading
from jetstream_server.serving.http.server import AT_ONCE, BACKLOG, HttpServer, Route
from tests.support.access import for_the_known, open_to_all
from tests.support.log_batches import stamped
from tests.support.loops import eventually, on_loop
from tests.support.server import free_port_base
from tests.support.sockets import is_readable


async def ok(request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def http_server() -> HttpServer:
    return HttpServer([Route("/healthz", ok)], open_to_all())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
    ids=("ok", "not found", "nonsense", "two lengths", "too long"),
)
def test_no_answer_tells_a_stranger_which_software_it_is(request_bytes: bytes) -> None:
    @on_loop
    async def scenario() -> None:
        port = free_port_base(1)
        server = http_server()
        await server.start("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.")
            assert b"aiohttp" not in head
            assert b"python" not in head
        finally:
            writer.transport.abort()
            await server.stop()

    scenario()


@on_loop
async def test_a_body_that_nobody_reads_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    body = zlib.compress(bytes(1 << 20), wbits=31)
    unpacked: list[object] = []
    monkeypatch.setattr(http_parser, "ZLibDecompressor", lambda **more: unpacked.append(more))
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert (await reader.readline()).split()[1] == b"200"
        assert unpacked == []
    finally:
        writer.transport.abort()
        await server.stop()


@on_loop
async def test_a_body_of_who_is_refused_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender reads why, and others are answered meanwhile: a chunk is one byte here."""
    taken = Counter[str]()
    feed = StreamReader.feed_data

    def counted(reader: StreamReader, data: bytes, size: int = 0) -> bool:
        taken["chunks"] += 1
        return feed(reader, data, size)

    monkeypatch.setattr(StreamReader, "feed_data", counted)
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * 200_000)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"connection: close" in answer.lower()
        assert taken["chunks"] < 50_000
    finally:
        writer.transport.abort()
        await server.stop()


@on_loop
async def test_who_asks_after_many_that_connect_is_answered_within_a_few_turns_of_the_loop() -> (
    None
):
    """A turn may take long, on a node that is busy."""
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    idlers = [socket.create_connection(("127.0.0.1", port)) for _ in range(BACKLOG - 1)]
    asker = socket.create_connection(("127.0.0.1", port))
    try:
        asker.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        turns = 0
        while turns < 1_000 and not is_readable(asker):
            turns += 1
            await asyncio.sleep(0)
        assert asker.recv(12) == b"HTTP/1.1 200"
        assert turns < BACKLOG / 4
    finally:
        for sock in (*idlers, asker):
            sock.close()
        await server.stop()


@on_loop
async def test_who_asks_in_front_of_many_that_connect_is_answered_before_it_makes_room() -> None:
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    asker = socket.create_connection(("127.0.0.1", port))
    asker.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    idlers: list[socket.socket] = []
    try:
        while len(idlers) < 2 * CONNECTIONS_MAX and not is_readable(asker):
            idlers += [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE // 2)]
            await asyncio.sleep(0)
        assert asker.recv(12) == b"HTTP/1.1 200"
        assert len(idlers) < CONNECTIONS_MAX, "in the meantime"
    finally:
        for sock in (*idlers, asker):
            sock.close()
        await server.stop()


@on_loop
async def test_one_address_that_takes_every_connection_makes_room_for_itself() -> None:
    port = free_port_base(1)
    refused: Counter[str] = Counter()
    server = HttpServer([Route("/healthz", ok)], open_to_all(), refused=refused)
    await server.start("127.0.0.1", port)
    first = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
    crowd: list[socket.socket] = []
    try:
        while refused["http"] < 10:
            crowd += [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE)]
            await asyncio.sleep(0.01)
        first.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = await asyncio.to_thread(first.recv, 12)
        assert answered == b"HTTP/1.1 200"
    finally:
        for sock in (first, *crowd):
            sock.close()
        await server.stop()


@pytest.mark.parametrize("method", ["GET", "POST"])
@on_loop
async def test_the_work_for_clients_that_have_left_ends(method: str) -> None:
    at_work = begun = 0

    async def work(request: web.Request) -> web.Response:
        nonlocal at_work, begun
        at_work, begun = at_work + 1, begun + 1
        try:
            await asyncio.Event().wait()
        finally:
            at_work -= 1
        raise AssertionError("it waits for ever")

    port = free_port_base(1)
    server = HttpServer([Route("/work", work, method)], open_to_all())
    await server.start("127.0.0.1", port)
    try:
        for count in range(1, 2 * AT_ONCE):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"%s /work HTTP/1.1\r\nHost: x\r\n\r\n" % method.encode())
                await eventually(lambda count=count: begun == count)  # type: ignore[misc]
        await eventually(lambda: at_work == 0)
    finally:
        await server.stop()


@on_loop
async def test_a_path_without_a_rule_is_refused_while_security_is_on() -> None:
    port = free_port_base(1)
    for access, status in ((for_the_known(), b"403"), (open_to_all(), b"200")):
        server = HttpServer([Route("/new", ok)], access)
        await server.start("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /new HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).split()[1] == status
        finally:
            writer.transport.abort()
            await server.stop()


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        (b"GET /v1/nope", b"404", b"there is no path '/v1/nope'"),
        (b"GET /v1/streams/a/", b"404", b"there is no path"),
        (b"GET /api/v1/%00", b"404", b"there is no path"),
        (b"POST /v1/streams", b"405", b"takes GET, HEAD, not POST"),
        (b"GET /v1/streams?limit=1&limit=2", b"400", b"'limit' is given twice"),
        (b"GET /v1/streams HTTP/1.1\r\nExpect: x\r\nConnection: close\r\ny:", b"417", b"not known"),
    ],
)
def test_what_no_route_takes_is_answered_like_every_other_error(
    line: bytes, status: bytes, says: bytes
) -> None:
    @on_loop
    async def scenario() -> None:
        port = free_port_base(1)
        server = HttpServer(api_routes(cast(Gateway, None)), open_to_all())
        await server.start("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(line + b" HTTP/1.0\r\nHost: x\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.split()[1] == status
            assert says in json.loads(body)["error"]["message"].encode()
        finally:
            writer.transport.abort()
            await server.stop()

    scenario()


@on_loop
async def test_who_asks_nothing_is_hung_up_on_and_who_has_asked_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server_module, "_LOOK_SECONDS", 0.02)
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    address = ("127.0.0.1", port)
    silent, slow, asker = [socket.create_connection(address) for _ in range(3)]
    try:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        asker.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: is_readable(asker))
        assert asker.recv(1000).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(connections, "SILENT_SECONDS", 0.2)
        await eventually(lambda: is_readable(silent) and is_readable(slow))
        await asyncio.sleep(0.3)
        assert (silent.recv(1), slow.recv(1)) == (b"", b"")
        assert not is_readable(asker)
    finally:
        for sock in (silent, slow, asker):
            sock.close()
        await server.stop()


@on_loop
async def test_who_has_asked_stays_while_silent_ones_make_room() -> None:
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    asker = socket.create_connection(("127.0.0.1", port))
    crowd: list[socket.socket] = []
    try:
        asker.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: is_readable(asker))
        assert asker.recv(1000).startswith(b"HTTP/1.1 200")
        for _ in range(2 * CONNECTIONS_MAX // AT_ONCE):
            crowd += [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE)]
            await asyncio.sleep(0.01)
        assert not is_readable(asker)
    finally:
        for sock in (*crowd, asker):
            sock.close()
        await server.stop()


ASK = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("origins", [1, 100])
@on_loop
async def test_who_comes_is_answered_although_all_connections_are_kept(origins: int) -> None:
    port = free_port_base(1)
    server = http_server()
    await server.start("127.0.0.1", port)
    kept: list[socket.socket] = []
    try:
        for number in range(CONNECTIONS_MAX):
            source = (f"127.0.1.{number % origins + 1}", 0)
            sock = socket.create_connection(("127.0.0.1", port), source_address=source)
            kept.append(sock)
            sock.sendall(ASK)
            await eventually(lambda: is_readable(kept[-1]))
        late = socket.create_connection(("127.0.0.1", port))
        kept.append(late)
        await eventually(lambda: is_ended(kept[0]))  # It has made room.
        late.sendall(ASK)
        await eventually(lambda: is_readable(late))
        assert late.recv(12) == b"HTTP/1.1 200"
    finally:
        for sock in kept:
            sock.close()
        await server.stop()


def is_ended(sock: socket.socket) -> bool:
    """Whether the server has hung up. Takes what it has sent."""
    try:
        return is_readable(sock) and sock.recv(10_000) == b""
    except ConnectionError:
        return True


@on_loop
async def test_a_body_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_requests, "BODY_SECONDS", 0.1)

    async def change(request: web.Request) -> web.Response:
        await http_requests.body_of(request)
        raise AssertionError("it never comes")

    port = free_port_base(1)
    server = HttpServer([Route("/change", change, "POST")], open_to_all())
    await server.start("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = b"POST /change HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: 100\r\n\r\n{")
        assert (await reader.readline()).split()[1] == b"400"
    finally:
        writer.transport.abort()
        await server.stop()


@on_loop
async def test_a_reader_whose_right_is_withdrawn_is_told_so_also_by_the_stream_s_id() -> None:
    """Who may read no more, and asks by an id, is told that there is no such stream."""
    by_name: JetstreamError = PermissionDeniedError("read is not allowed on stream orders")

    class Server:
        async def call(self, asked: pb.FetchRequest, *_: object, **more: object) -> Any:
            if asked.offset == 0:
                return pb.FetchResponse(stream_id=7, next_offset=1)
            raise StreamNotFoundError("no id") if asked.stream.id else by_name

    query = cast(Any, SimpleNamespace(limit=None, follow=True))
    ref = common_pb2.StreamRef(name="orders")
    reading = _Reading(cast(Gateway, Server()), ref, cast(Any, None), query, 0)
    assert await reading.fetch(0)
    with pytest.raises(PermissionDeniedError):
        await reading.fetch(0)
    by_name = StreamNotFoundError("no name")
    with pytest.raises(StreamNotFoundError, match="no id"):
        await reading.fetch(0)


@on_loop
async def test_a_node_without_pyarrow_says_how_it_could_write_arrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_formats, "find_spec", lambda name: None)
    port = free_port_base(1)
    server = HttpServer(RecordsApi(cast(Gateway, None), wall_clock).routes(), open_to_all())
    await server.start("127.0.0.1", port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /v1/streams/a/records?format=arrow HTTP/1.0\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        assert answer.split()[1] == b"406"
        assert b"its extra arrow is not installed" in answer
    finally:
        writer.transport.abort()
        await server.stop()


LARGE_BYTES = 16 * 1024 * 1024
"""More than sockets hold."""


@on_loop
async def test_large_answers_that_nobody_reads_keep_no_other_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patience = partial(monkeypatch.setattr, response_memory, "STALL_SECONDS")
    patience(0.1)
    made: Counter[str] = Counter()

    async def large(request: web.Request) -> web.Response:
        await claim(request)
        if request.query_string == "reader":
            patience(math.inf)  # It reads as fast as the machine lets it.
        made[request.query_string] += 1
        return web.Response(body=bytes(LARGE_BYTES))

    port = free_port_base(1)
    server = HttpServer([Route("/large", large)], open_to_all())
    await server.start("127.0.0.1", port)
    address = ("127.0.0.1", port)
    deaf = [socket.create_connection(address, source_address=("127.0.0.2", 0)) for _ in range(20)]
    try:
        for sock in deaf:
            sock.sendall(b"GET /large?deaf HTTP/1.1\r\nHost: x\r\n\r\n")
        room = response_memory.BYTES_MAX // answer_room.CLAIM_BYTES // 2
        await eventually(lambda: made["deaf"] >= room)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /large?reader HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(LARGE_BYTES)) == LARGE_BYTES
        patience(0.1)
        writer.transport.abort()
        await eventually(lambda: made["deaf"] == len(deaf))  # Each has its turn, and loses it.
    finally:
        for sock in deaf:
            sock.close()
        await server.stop()


@on_loop
async def test_long_batches_are_not_held_by_readers_that_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader of a record of 2 MiB; as many as there may be wait, and hold nothing."""
    reserve = response_memory.ResponseMemoryLimiter.reserve
    monkeypatch.setattr(reserve, "__defaults__", (60.0,))
    monkeypatch.setattr(response_memory, "STALL_SECONDS", 60.0)
    batches = stamped(0, bytes(2 * 1024 * 1024))

    class Server:
        async def call(self, asked: pb.FetchRequest, *_: object, **more: object) -> Any:
            return pb.FetchResponse(stream_id=7, batches=batches, high_watermark=1)

    port = free_port_base(1)
    room = answer_room.AnswerRoom()
    held = await room._limiter.reserve("other", response_memory.BYTES_MAX)
    server = HttpServer(RecordsApi(cast(Gateway, Server()), wall_clock).routes(), open_to_all())
    await server.start("127.0.0.1", port)
    assert server._runner is not None
    server._runner.app._state[answer_room.ROOM] = room
    readers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    try:
        for _, writer in readers:
            writer.write(b"GET /v1/streams/a/records?from=0&format=csv HTTP/1.0\r\nHost: x\r\n\r\n")
        waiting: list[_Reading] = []
        while len(waiting) < len(readers):
            await asyncio.sleep(0.01)
            waiting = [each for each in gc.get_objects() if isinstance(each, _Reading)]
        await eventually(lambda: not any(each.bytes_held for each in waiting))
        room._limiter.release(held)
        answers = await asyncio.gather(*(reader.read() for reader, _ in readers))
        assert min(map(len, answers)) > 2 * 1024 * 1024
    finally:
        for _, writer in readers:
            writer.transport.abort()
        await server.stop()


class Answers(Gateway):
    """Everybody may know everything: there is one table in the lake, and nothing else."""

    def __init__(self) -> None: ...

    async def call(self, request: Message, *_: object, **__: object) -> Any:
        if isinstance(request, pb.DescribeLakeRequest):
            return pb.DescribeLakeResponse(table_url="file:///t", metadata=b"{}")
        return METHODS[type(request)].answer()

    def leaderships(self) -> dict[int, tuple[int, int]]:
        return {}

    async def caught_up(self) -> None: ...


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/cluster",
        "/api/v1/history",
        "/api/v1/history?cursor=c",
        "/api/v1/history?stream=s",
        "/api/v1/consumers",
        "/v1/streams",
        "/jsz",
        "/iceberg/v1/namespaces/jetstream/tables",
        "/iceberg/v1/namespaces/jetstream/tables/t",
    ],
)
def test_what_may_be_large_waits_for_room(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise UnavailableError("no room")

    monkeypatch.setattr(answer_room.AnswerRoom, "claim", full)

    @on_loop
    async def scenario() -> None:
        port = free_port_base(1)
        server = HttpServer(api_routes(Answers()), open_to_all())
        await server.start("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        try:
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        finally:
            writer.transport.abort()
            await server.stop()

    scenario()


@pytest.mark.parametrize("body", [b"", b"{}", b" " * 15_000 + b"{}"], ids=["none", "short", "long"])
@on_loop
async def test_a_change_whose_caller_hung_up_while_the_node_stood_still_is_not_made(
    body: bytes,
) -> None:
    made: list[bytes] = []

    async def change(request: web.Request) -> web.Response:
        made.append(await http_requests.read_body(request) if body else b"")
        return web.Response()

    port = free_port_base(1)
    server = HttpServer([Route("/change", change, "POST")], open_to_all())
    await server.start("127.0.0.1", port)
    head = b"POST /change HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    try:
        sock = socket.create_connection(("127.0.0.1", port))
        await eventually(lambda: len(server._connections._origins) == 1)
        sock.setblocking(False)
        assert sock.send(head + body) == len(head + body)  # While the loop stands still.
        sock.close()
        await eventually(lambda: not server._connections._origins)
        assert made == []
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert made == [body], "who waits has it made"
        writer.transport.abort()
    finally:
        await server.stop()
