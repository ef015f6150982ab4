"""Whose TLS handshake goes on next."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

from examples.certificates.authority import Authority
from jetstream_server.net.frame_socket import peer_of
from jetstream_server.net.handshake_turns import HandshakeTurns
from jetstream_server.net.tls_socket import handshake
from tests.support.loops import on_loop
from tests.support.tls import HOSTS

STRANGERS = 30


def hello() -> bytes:
    """How a client begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_bio(incoming, outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody has answered")


def is_answered(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


@on_loop
async def test_however_many_one_network_begins_another_s_is_soon_answered(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server", hosts=HOSTS, serves=True)[:2]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    turns = HandshakeTurns()
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        clients = []
        for source in (*["127.0.0.2"] * STRANGERS, "127.0.0.3"):
            client = socket.create_connection(
                listener.getsockname(), source_address=(source, 0), timeout=60
            )
            clients.append(stack.enter_context(client))
            client.sendall(hello())
            client.setblocking(False)
        accepted = [listener.accept()[0] for _ in clients]
        shaking = [
            asyncio.create_task(
                handshake(each, context, 600, server_side=True, turn=turns.of(peer_of(each)))
            )
            for each in accepted
        ]
        *strangers, newcomer = clients
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(60):
            await loop.sock_recv(newcomer, 1)
        assert sum(map(is_answered, strangers)) <= 5
        async with asyncio.timeout(60):
            await asyncio.gather(*(loop.sock_recv(each, 1) for each in strangers))
        for task in shaking:
            task.cancel()
        await asyncio.gather(*shaking, return_exceptions=True)
