"""Strangers at the Raft port, with TLS and without: whatever they do, the member goes on, and peers
are linked at once."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from examples.certificates.authority import Authority
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import handshake, transport
from jetstream_server.metadata.raft.handshake import UNKNOWN_CLUSTER, Capability, Identity
from jetstream_server.metadata.raft.link import split_address
from jetstream_server.metadata.raft.transport import HANDSHAKES_MAX, PeerLinks
from jetstream_server.net.acceptor import PAUSE_SECONDS
from jetstream_server.net.certificates import Certificates, TlsFiles
from tests.chaos.metadata_group import free_addresses
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import eventually
from tests.support.sockets import is_readable
from tests.support.strangers import STRANGERS, Stranger
from tests.unit.metadata.test_transport import Member

SERVED_SECONDS = 0.1
ATTEMPTS = 10
SECRET = b"secret"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def of_node(authority: Authority, node_id: int) -> Certificates:
    made = authority.node(node_id, ["127.0.0.1"], f"raft-{node_id}")
    return Certificates(TlsFiles(*made, authority.certificate_file, False, NodeId(node_id)))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stranger leaves by itself: what is served is served beside them."""
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS_MAX", 3600.0)


class Port:
    """The Raft port of node 0. failures: what its loop was told of."""

    def __init__(self, address: str, certificates: Callable[[int], Certificates | None]) -> None:
        self.address = address
        self.failures: list[dict[str, Any]] = []
        self._certificates = certificates
        self.links = self.dialler(0, Member())

    def dialler(self, node_id: int, member: Member) -> PeerLinks:
        return PeerLinks(
            Identity(NodeId(node_id), b"%016d" % node_id, SECRET),
            {NodeId(0): (self.address,)},
            member,
            lambda: UNKNOWN_CLUSTER,
            certificates=self._certificates(node_id),
        )

    async def strangers(self, stack: ExitStack, stranger: Stranger, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            await loop.sock_connect(sock, split_address(self.address))
            try:
                stranger(sock)
            except OSError:
                pass  # It was hung up on.

    async def seconds_to_link(self) -> float:
        """Of the processor, from a peer's dialling on."""
        member = Member()
        links = self.dialler(1, member)
        began = time.process_time()
        links.start()
        try:
            await eventually(lambda: bool(member.ups))
            return time.process_time() - began
        finally:
            await links.close()

    async def check_peer_is_linked(self) -> None:
        """For little work, in one of some attempts: something of its own may be due meanwhile."""
        took = [await self.seconds_to_link()]
        while min(took) > SERVED_SECONDS and len(took) < ATTEMPTS:
            took.append(await self.seconds_to_link())
        assert min(took) < SERVED_SECONDS, took


@asynccontextmanager
async def port(certificates: Callable[[int], Certificates | None]) -> AsyncIterator[Port]:
    (address,) = free_addresses(1)
    found = Port(address, certificates)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.failures.append(context)
    )
    await found.links.listen(address)
    found.links.start()
    try:
        yield found
    finally:
        await found.links.close()
        await asyncio.sleep(0.05)
        assert found.failures == []


@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_whatever_strangers_do_the_member_goes_on_and_links_peers_at_once(
    tls: bool, stranger: Stranger, authority: Authority
) -> None:
    async def main() -> None:
        async with port(lambda node_id: of_node(authority, node_id) if tls else None) as found:
            took: list[float] = []
            while min(took, default=1) > SERVED_SECONDS and len(took) < ATTEMPTS:
                with ExitStack() as stack:
                    await found.strangers(stack, stranger, HANDSHAKES_MAX + 10)
                    took.append(await found.seconds_to_link())
            assert min(took) < SERVED_SECONDS, took

    asyncio.run(main())  # On asyncio's own loop, as in the member's thread.


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_who_makes_room_is_the_oldest_stranger_of_the_address_with_most(
    tls: bool, authority: Authority
) -> None:
    """A flood from one address pushes out itself, and nobody else."""

    async def main() -> None:
        async with port(lambda node_id: of_node(authority, node_id) if tls else None) as found:
            with ExitStack() as stack:
                alone = stack.enter_context(socket.socket())
                alone.bind(("127.0.0.2", 0))
                alone.connect(split_address(found.address))
                await found.strangers(stack, STRANGERS["silent"], 2 * HANDSHAKES_MAX)
                await found.check_peer_is_linked()
                assert not is_readable(alone) or alone.recv(100)  # The challenge, without TLS.

    asyncio.run(main())


def test_without_a_descriptor_left_the_port_waits_and_goes_on(authority: Authority) -> None:
    async def main() -> None:
        async with port(lambda node_id: of_node(authority, node_id)) as found:
            with ExitStack() as stack:
                waiting = [stack.enter_context(socket.socket()) for _ in range(5)]
                with no_descriptor_left():
                    for sock in waiting:
                        sock.connect(split_address(found.address))
                    await asyncio.sleep(3 * PAUSE_SECONDS)
                await asyncio.sleep(2 * PAUSE_SECONDS)
                await found.check_peer_is_linked()

    asyncio.run(main())


def test_an_error_of_an_authenticated_link_is_a_failure_of_the_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The member's own events: a bug there must not go unnoticed."""

    def broken(self: Member, peer: NodeId, capabilities: Capability) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with port(lambda _: None) as found:
            member = Member()
            links = found.dialler(1, member)
            monkeypatch.setattr(Member, "link_up", broken)
            links.start()
            await eventually(lambda: len(found.failures) >= 2)
            await links.close()
            errors = {type(each["exception"]) for each in found.failures}
            found.failures.clear()
            assert errors == {ZeroDivisionError}

    asyncio.run(main())


def test_an_unexpected_error_of_a_stranger_ends_its_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(data: bytes, secret: bytes, challenge: bytes) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        async with port(lambda _: None) as found:
            with ExitStack() as stack, monkeypatch.context() as patched:
                patched.setattr(handshake, "decode_hello", broken)
                await found.strangers(stack, lambda sock: sock.sendall(bytes(200)), 3)
                await asyncio.sleep(0.1)
            await found.check_peer_is_linked()

    asyncio.run(main())
