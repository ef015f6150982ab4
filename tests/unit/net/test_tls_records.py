"""Records without data, and records of a byte: none of them holds the loop, or goes on for long."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import struct
import time
from collections.abc import Callable

import pytest
from aiohttp import web

from examples.certificates.authority import Authority
from jetstream_protocol import frames
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.types import NodeId
from jetstream_server.net import tls_socket
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.net.tls_records import (
    DATA_PER_EMPTY,
    EMPTY_MAX,
    HANDSHAKE_RECORDS_MAX,
    RECORDS_AT_ONCE,
    RecordGate,
    TooManyRecordsError,
)
from jetstream_server.net.tls_socket import TlsSocket, handshake
from jetstream_server.serving.http.server import HttpServer, Route
from tests.support.access import open_to_all
from tests.support.loops import eventually, on_loop
from tests.support.server import free_port_base
from tests.support.tls_records import HANDSHAKE, RecordClient

HOSTS = ("localhost", "127.0.0.1")
MANY = 20_000


def record(length: int) -> bytes:
    return b"\x17\x03\x03" + length.to_bytes(2, "big") + bytes(length)


def shaken() -> RecordGate:
    gate = RecordGate()
    gate.shook_hands()
    return gate


def test_a_piece_has_a_few_records() -> None:
    gate = shaken()
    gate.received(record(17) * 40)
    assert gate.take() == record(17) * RECORDS_AT_ONCE
    assert gate.has_more


def test_bytes_come_out_as_they_went_in_however_they_are_cut() -> None:
    whole = b"".join(record(length) for length in (0, 1, 17, 5_000, 16_384, 3))
    for step in (1, 2, 4, 5, 6, 7, 1_000, len(whole)):
        gate, found = shaken(), b""
        for at in range(0, len(whole), step):
            gate.received(whole[at : at + step])
            while gate.has_more:
                found += gate.take()
                for _ in range(RECORDS_AT_ONCE):
                    gate.had_data()
        assert found == whole, step


def test_half_a_header_waits_for_its_other_half() -> None:
    gate = shaken()
    gate.received(record(17)[:4])
    assert not gate.has_more
    assert gate.take() == b""
    gate.received(record(17)[4:9])
    assert gate.take() == record(17)[:9]
    gate.received(b"\x00")  # Of a record that was begun, each byte counts.
    assert gate.has_more


def taken(gate: RecordGate, data: Callable[[int], int], records: int) -> int:
    """How many records get through. data: how many of a piece's records hold data."""
    gate.received(record(17) * records)
    found = 0
    try:
        while gate.has_more:
            count = len(gate.take()) // len(record(17))
            found += count
            for _ in range(data(count)):
                gate.had_data()
    except TooManyRecordsError:
        pass
    return found


def test_records_without_data_are_few() -> None:
    assert taken(shaken(), lambda count: 0, 1_000) <= EMPTY_MAX + 2 * RECORDS_AT_ONCE


def test_records_with_data_go_on_for_ever() -> None:
    assert taken(shaken(), lambda count: count, 10_000) == 10_000


def test_now_and_then_a_record_may_be_without_data() -> None:
    assert RECORDS_AT_ONCE == DATA_PER_EMPTY
    assert taken(shaken(), lambda count: count - 1, 16_000) > 16 * 30
    gate = shaken()
    for _ in range(1_000):  # A change of keys in each hundred.
        assert taken(gate, lambda count: count, 100) == 100
        assert taken(gate, lambda count: 0, 1) == 1


def test_a_handshake_has_an_end() -> None:
    assert taken(RecordGate(), lambda count: 0, 200) == 200
    most = HANDSHAKE_RECORDS_MAX + 2 * RECORDS_AT_ONCE
    assert taken(RecordGate(), lambda count: 0, 1_000) <= most


# Over sockets.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    made = authority.node(3, HOSTS)
    return Certificates(TlsFiles(*made, authority.certificate_file, False, NodeId(3)))


def key_updates(client: RecordClient) -> bytes:
    return b"".join(client.key_update() for _ in range(MANY))


def key_updates_that_ask(client: RecordClient) -> bytes:
    return b"".join(client.key_update(asks=True) for _ in range(MANY))


def padded_key_updates(client: RecordClient) -> bytes:
    """With a record of one byte before each sixteen."""
    found = []
    for _ in range(MANY // 16):
        found.append(client.record(b"G"))
        found += [client.key_update() for _ in range(16)]
    return b"".join(found)


def empty_records(client: RecordClient) -> bytes:
    return b"".join(client.record(b"", padding=1) for _ in range(MANY))


def halves_of_messages(client: RecordClient) -> bytes:
    return b"".join(client.record(b"\x18", HANDSHAKE) for _ in range(MANY))


FLOODS = (key_updates, key_updates_that_ask, padded_key_updates, empty_records, halves_of_messages)


async def flooded(port: int, flood: Callable[[RecordClient], bytes]) -> bool:
    """Whether the client was hung up on."""

    def do() -> bool:
        client = RecordClient(("127.0.0.1", port))
        data = flood(client)
        with client.sock:
            try:
                client.sock.settimeout(60)
                client.sock.sendall(data)
            except OSError:
                return True
            return client.is_hung_up_on(60)

    return await asyncio.to_thread(do)


@pytest.mark.parametrize("flood", FLOODS)
@on_loop
async def test_who_sends_no_data_to_the_data_plane_is_hung_up_on(
    flood: Callable[[RecordClient], bytes], certificates: Certificates
) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        client = asyncio.create_task(flooded(listener.getsockname()[1], flood))
        accepted, _ = await loop.sock_accept(listener)
        sock = await handshake(accepted, certificates.data, 60.0, server_side=True)
        server = FrameSocket(sock, frames.REQUEST_BYTES_MAX)
        try:
            with pytest.raises(ConnectionError, match="TLS: "):
                await server.take_each(taken_frame, Kind.HELLO)
        finally:
            server.close()
        assert await client


def taken_frame(frame: Frame) -> bool:
    return False


@pytest.mark.parametrize("flood", FLOODS)
@on_loop
async def test_who_sends_no_data_to_http_is_hung_up_on(
    flood: Callable[[RecordClient], bytes], certificates: Certificates
) -> None:
    async def healthy(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    server = HttpServer([Route("/healthz", healthy)], open_to_all(), certificates)
    port = free_port_base(1)
    await server.start("127.0.0.1", port)
    try:
        assert await flooded(port, flood)
    finally:
        await server.stop()


PLENTY_BYTES = 32_768


def has_waiting(sock: socket.socket, count: int) -> bool:
    try:
        return len(sock.recv(count, socket.MSG_PEEK)) == count
    except BlockingIOError:
        return False


@on_loop
async def test_one_call_takes_little_of_what_is_there(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a megabyte of changes of keys, which wait in the socket, as of one of single bytes."""
    taken: list[int] = []

    class CountingGate(RecordGate):
        def take(self) -> bytes:
            taken.append(len(piece := super().take()))
            return piece

    monkeypatch.setattr(tls_socket, "RecordGate", CountingGate)
    loop = asyncio.get_running_loop()
    for single_bytes in (False, True):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            connecting = asyncio.to_thread(RecordClient, listener.getsockname())
            client_task = asyncio.create_task(connecting)
            accepted, _ = await loop.sock_accept(listener)
            sock = await handshake(accepted, certificates.data, 60.0, server_side=True)
            client = await client_task
            if single_bytes:
                data = b"".join(client.record(b"x") for _ in range(MANY))
            else:
                data = key_updates(client)
            sending = asyncio.create_task(asyncio.to_thread(client.sock.sendall, data))
            await eventually(lambda: has_waiting(accepted, PLENTY_BYTES))  # noqa: B023
            taken.clear()
            try:
                received = len(sock.recv(256 * 1024))
            except ConnectionError:
                received = 0
            assert 0 < sum(taken) < PLENTY_BYTES / 2, "what OpenSSL was given"
            assert received < 1_000
            sock.close()
            client.sock.close()
            await asyncio.gather(sending, return_exceptions=True)


@on_loop
async def test_data_that_came_with_the_end_of_the_handshake_is_read(
    certificates: Certificates,
) -> None:
    """No event announces it any more."""
    near, far = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    near.setblocking(False)
    far.setblocking(False)
    server = TlsSocket(far, certificates.data, server_side=True)
    for _ in range(4):
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            near.send(outgoing.read())
        with pytest.raises(BlockingIOError):
            server.shake_hands()
        incoming.write(near.recv(65_536))
    client.write(b"hello")
    near.send(outgoing.read())
    server.shake_hands()
    assert server.pending()
    assert server.recv(100) == b"hello"
    with near, far:
        pass


@on_loop
async def test_an_answer_longer_than_the_socket_takes_arrives(certificates: Certificates) -> None:
    """Over HTTP, and its client reads slowly."""
    body = struct.pack("<I", 7) * 1_000_000

    async def long(request: web.Request) -> web.Response:
        return web.Response(body=body)

    server = HttpServer([Route("/healthz", long)], open_to_all(), certificates)
    port = free_port_base(1)
    await server.start("127.0.0.1", port)
    try:
        for answer in await asyncio.to_thread(slowly_asked, port, 3):
            assert answer == body
    finally:
        await server.stop()


def slowly_asked(port: int, times: int) -> list[bytes]:
    """The answers, over one connection, which the server closes after the last."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    found = []
    for number in range(times):
        headers = {"Connection": "close"} if number == times - 1 else {}
        connection.request("GET", "/healthz", headers=headers)
        time.sleep(0.3)
        found.append(connection.getresponse().read())
    connection.close()
    return found
