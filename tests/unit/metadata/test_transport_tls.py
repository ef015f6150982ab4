"""Links of the metadata group over mutual TLS: only a node's own certificate makes a link.

On asyncio's own loop, as in the member's thread.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from examples.certificates.authority import Authority
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import joining, transport
from jetstream_server.metadata.raft.handshake import UNKNOWN_CLUSTER, Identity
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.net.certificates import Certificates, TlsFiles
from tests.chaos.metadata_group import free_addresses
from tests.support.loops import eventually
from tests.unit.metadata import test_transport


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake of a process that stands still ends all the same."""
    for module in (joining, transport):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 60.0)


class Member(test_transport.Member):
    """Counts what it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        self.count += len(payload)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def loaded(authority: Authority, made: tuple[Path, Path], node_id: int | None) -> Certificates:
    checked = None if node_id is None else NodeId(node_id)
    return Certificates(TlsFiles(*made, authority.certificate_file, False, checked))


def of_node(authority: Authority, node_id: int) -> Certificates:
    made = authority.node(node_id, ["127.0.0.1"], f"raft-{node_id}")
    return loaded(authority, made, node_id)


async def linked(first: Certificates | None, second: Certificates | None) -> str:
    """Nodes 0 and 1, of which 1 dials; why they are not linked, "" when they are."""
    addresses = {NodeId(number): (each,) for number, each in enumerate(free_addresses(2))}
    members = [Member(), Member()]
    links = [
        PeerLinks(
            Identity(node_id, b"%016d" % node_id, b"secret"),
            addresses,
            member,
            lambda: UNKNOWN_CLUSTER,
            certificates=certificates,
        )
        for node_id, member, certificates in zip(addresses, members, (first, second), strict=True)
    ]
    try:
        for each, address in zip(links, addresses.values(), strict=True):
            await each.listen(*address)
            each.start()
        await eventually(lambda: bool(links[1].problems) or all(each.ups for each in members))
        if not links[1].problems:
            assert links[0].send(NodeId(1), b"x" * 1_000_000)
            assert links[1].send(NodeId(0), b"y" * 1_000_000)
            await eventually(lambda: all(each.count == 1_000_000 for each in members))
        else:
            assert [each.ups for each in members] == [[], []]
        return links[1].problems.get(NodeId(0), "")
    finally:
        for each in links:
            await each.close()


@pytest.mark.usefixtures("patient")
def test_two_nodes_link_by_their_certificates(authority: Authority) -> None:
    assert asyncio.run(linked(of_node(authority, 0), of_node(authority, 1))) == ""


def test_neither_a_client_nor_another_node_passes_for_a_node(authority: Authority) -> None:
    """Although all of them know the credential."""
    server, dialler = of_node(authority, 0), of_node(authority, 1)
    client = loaded(authority, authority.issue("client", serves=True), None)
    assert asyncio.run(linked(server, client)) != ""
    assert asyncio.run(linked(server, of_node(authority, 2))) != ""
    said = asyncio.run(linked(client, dialler))
    assert said == "the certificate is not that of node 0: it is that of client"
    said = asyncio.run(linked(of_node(authority, 2), dialler))
    assert said == "the certificate is not that of node 0: it is that of jetstream://node/2"


def test_a_stranger_and_a_plain_node_are_not_linked(authority: Authority, tmp_path: Path) -> None:
    server = of_node(authority, 0)
    assert "certificate" in asyncio.run(linked(server, of_node(Authority(tmp_path), 1)))
    assert asyncio.run(linked(server, None)) != ""
    assert "over TLS: wrong version number" in asyncio.run(linked(None, of_node(authority, 1)))


def test_without_a_certificate_the_port_takes_no_one(authority: Authority) -> None:
    async def ask() -> bytes:
        (address,) = free_addresses(1)
        links = PeerLinks(
            Identity(NodeId(0), b"%016d" % 0, b"secret"),
            {NodeId(0): (address,)},
            Member(),
            lambda: UNKNOWN_CLUSTER,
            certificates=of_node(authority, 0),
        )
        await links.listen(address)
        context = ssl.create_default_context(cafile=authority.certificate_file)
        host, _, port = address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                return await reader.read(100)
            except ssl.SSLError:
                return b""
            finally:
                writer.transport.abort()
        finally:
            await links.close()

    assert asyncio.run(ask()) == b""


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("shown", [0, 2])
def test_who_joins_asks_only_a_node_that_shows_its_own_certificate(
    authority: Authority, shown: int
) -> None:
    seconds = 60.0 if shown == 0 else 0.1

    async def ask() -> tuple[NodeId, ...]:
        (address,) = free_addresses(1)
        voters = Voters.of({NodeId(0): address})
        links = PeerLinks(
            Identity(NodeId(0), b"%016d" % 0, b"secret"),
            {NodeId(0): (address,)},
            Member(),
            lambda: UNKNOWN_CLUSTER,
            certificates=of_node(authority, shown),
            group=lambda: joining.encode_group(voters, "ours", ()),
        )
        await links.listen(address)
        identity = Identity(NodeId(7), b"%016d" % 7, b"secret")
        try:
            group = await joining.ask([address], identity, of_node(authority, 7), seconds)
        finally:
            await links.close()
        return group.voters

    if shown == 0:
        assert asyncio.run(ask()) == (0,)
    else:
        with pytest.raises(JetstreamError, match="no certificate of node 0"):
            asyncio.run(ask())
