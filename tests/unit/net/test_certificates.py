"""Certificates that a node takes up, and those that it refuses; what goes over a TlsSocket."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from examples.certificates.authority import Authority
from jetstream_protocol import frames
from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import NodeId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.net.handshake_turns import HandshakeTurns
from jetstream_server.net.tls import PeerIdentity
from jetstream_server.net.tls_socket import handshake
from tests.support.loops import on_loop

HOSTS = ("localhost", "127.0.0.1")
NODE = NodeId(3)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def files(authority: Authority, made: tuple[Path, Path], node_id: NodeId | None = NODE) -> TlsFiles:
    return TlsFiles(*made, authority.certificate_file, requires_clients=False, node_id=node_id)


def refusal(given: TlsFiles) -> str:
    with pytest.raises(PreconditionFailedError) as caught:
        Certificates(given)
    return caught.value.message


def test_what_other_nodes_would_refuse_is_not_taken_up(
    authority: Authority, tmp_path: Path
) -> None:
    Certificates(files(authority, authority.node(3, HOSTS)))
    assert "not that of node 3" in refusal(files(authority, authority.node(4, HOSTS)))
    assert "not that of node 3" in refusal(files(authority, authority.issue("a", serves=True)))
    only_client = authority.issue("b", uris=["jetstream://node/3"])
    assert "would refuse" in refusal(files(authority, only_client))
    of_another = Authority(tmp_path / "other").node(3, HOSTS)
    assert "unable to get local issuer certificate" in refusal(files(authority, of_another))
    expired = authority.issue(
        "old",
        uris=["jetstream://node/3"],
        serves=True,
        valid_for=-datetime.timedelta(days=1),
    )
    assert "certificate has expired" in refusal(files(authority, expired))


def test_files_that_are_none_are_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.node(3, HOSTS)
    other_key = authority.node(5, HOSTS)[1]
    assert "are not a certificate and its key" in refusal(
        files(authority, (certificate, other_key))
    )
    assert "cannot read" in refusal(files(authority, (tmp_path / "none", key)))
    empty = tmp_path / "empty"
    empty.touch()
    with_empty_ca = TlsFiles(certificate, key, empty, requires_clients=True, node_id=None)
    assert "does not hold certificates of authorities" in refusal(with_empty_ca)


def test_a_reload_changes_everything_or_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = made = authority.node(3, HOSTS)
    certificates = Certificates(files(authority, made))
    pem, context = certificates.pem, certificates.raft
    assert not certificates.reload()
    certificate.write_bytes(authority.node(4, HOSTS)[0].read_bytes())
    with pytest.raises(PreconditionFailedError):
        certificates.reload()
    assert (certificates.pem, certificates.raft) == (pem, context)
    assert certificates.generation == 0
    authority.node(3, HOSTS)
    assert certificates.signature() != certificates.seen
    assert certificates.reload()
    assert certificates.generation == 1
    assert certificates.pem != pem
    assert certificates.raft is not context


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.create_connection(listener.getsockname()), listener.accept()[0]


@asynccontextmanager
async def joined(
    accepting: ssl.SSLContext, dialling: ssl.SSLContext, disk: OsDisk | None = None
) -> AsyncIterator[tuple[FrameSocket, FrameSocket]]:
    """Both ends of a TLS connection: who accepted, who dialled."""
    near, far = tcp_pair()
    ends = await asyncio.gather(
        handshake(far, accepting, 5.0, server_side=True),
        handshake(near, dialling, 5.0, server_side=False),
        return_exceptions=True,
    )
    failures = [end for end in ends if isinstance(end, BaseException)]
    if failures:
        for end in ends:
            if not isinstance(end, BaseException):
                end.close()
        raise failures[0]
    far_end, near_end = ends
    a = FrameSocket(far_end, frames.REQUEST_BYTES_MAX, disk)  # type: ignore[arg-type]
    b = FrameSocket(near_end, frames.RESPONSE_BYTES_MAX)  # type: ignore[arg-type]
    try:
        yield a, b
    finally:
        a.close()
        b.close()


@on_loop
async def test_both_ends_know_each_other_by_their_certificates(authority: Authority) -> None:
    third = Certificates(files(authority, authority.node(3, HOSTS)))
    fourth = Certificates(files(authority, authority.node(4, HOSTS), NodeId(4)))
    async with joined(third.data, fourth.dial) as (accepted, dialled):
        assert accepted.peer_identity == PeerIdentity("jetstream://node/4", NodeId(4))
        assert dialled.peer_identity == PeerIdentity("jetstream://node/3", NodeId(3))


@on_loop
async def test_frames_and_long_slices_arrive_whole_over_tls(
    authority: Authority, tmp_path: Path
) -> None:
    node = Certificates(files(authority, authority.node(3, HOSTS)))
    path = tmp_path / "segment"
    content = os.urandom(9_000_001)
    path.write_bytes(content)
    disk = OsDisk()
    async with joined(node.data, node.dial, disk) as (accepted, dialled):
        slices = [
            LogSlice(str(path), 1, 1_000, 0, 1),
            LogSlice(str(path), 1_001, len(content) - 1_001, 1, 2),
        ]
        for tail in (slices[:1], slices):
            head = pb.DataFetchResponse(stream_id=7)
            sending = asyncio.ensure_future(accepted.send_slices(Kind.FETCH_REPLY, 5, head, tail))
            frame = await dialled.read_any(Kind.FETCH_REPLY)
            await sending
            assert bytes(frame.tail) == content[1 : 1 + sum(each.length for each in tail)]
        for number in range(300):  # More than is decrypted at a time, and held back meanwhile.
            await dialled.send(Kind.FETCH, number, pb.DataFetchRequest(filter_subject="x" * 500))
        for number in range(300):
            correlation, _ = await accepted.read_frame(Kind.FETCH, pb.DataFetchRequest)
            assert correlation == number
        dialled.close()
        with pytest.raises(EOFError):
            await accepted.read_any(Kind.FETCH)
    disk.close()


@on_loop
async def test_a_stranger_and_a_plain_peer_are_refused_in_words(
    authority: Authority, tmp_path: Path
) -> None:
    node = Certificates(files(authority, authority.node(3, HOSTS)))
    other = Authority(tmp_path)
    stranger = Certificates(files(other, other.node(3, HOSTS)))
    with pytest.raises(ConnectionError, match="TLS: "):
        async with joined(node.raft, stranger.dial):
            pass
    near, far = tcp_pair()
    near.send(b"\0\0\0\x1f plain and not TLS at all")
    with pytest.raises(ConnectionError, match=r"TLS: wrong version number"):
        await handshake(far, node.data, 5.0, server_side=True)
    near.close()


@on_loop
async def test_a_peer_that_does_not_go_on_is_given_up(authority: Authority) -> None:
    node = Certificates(files(authority, authority.node(3, HOSTS)))
    near, far = tcp_pair()
    with near, pytest.raises(TimeoutError):
        await handshake(far, node.data, 0.05, server_side=True)
    assert far.fileno() == -1


@on_loop
async def test_many_handshakes_do_not_hold_the_loop(authority: Authority) -> None:
    """One step of one of them between two turns of everybody else."""
    node = Certificates(files(authority, authority.node(3, HOSTS)))
    turn = HandshakeTurns().of("127.0.0.1")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    pairs = [tcp_pair() for _ in range(20)]
    busy = asyncio.ensure_future(others())
    far = [handshake(end, node.data, 10.0, server_side=True, turn=turn) for _, end in pairs]
    near = [handshake(end, node.dial, 10.0, server_side=False, turn=turn) for end, _ in pairs]
    ends = await asyncio.gather(*far, *near)
    busy.cancel()
    assert turns >= 2 * len(ends)  # Each waits for the other end at least once.
    for end in ends:
        end.close()
