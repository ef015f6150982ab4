"""Links between members, over real connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.handshake import UNKNOWN_CLUSTER, Identity
from jetstream_server.metadata.link import SILENCE_MAX, LinkTimings
from jetstream_server.metadata.transport import PeerLinks
from tests.chaos.metadata_group import free_addresses
from tests.support.loops import eventually, on_loop

KEEP_ALIVE_SECONDS = 0.02
SILENCE_SECONDS = KEEP_ALIVE_SECONDS * (SILENCE_MAX + 1)


class Member:
    """What one is told of its links. keep_alive: how often it gives a sign of life, in seconds."""

    def __init__(self, keep_alive: float = KEEP_ALIVE_SECONDS) -> None:
        self.timings = LinkTimings(keep_alive=keep_alive)
        self.ups: list[NodeId] = []
        self.downs: list[NodeId] = []

    def link_up(self, peer: NodeId) -> None:
        self.ups.append(peer)

    def link_down(self, peer: NodeId) -> None:
        self.downs.append(peer)

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        pass


@asynccontextmanager
async def pair(*members: Member) -> AsyncIterator[list[PeerLinks]]:
    """Members that are linked with each other."""
    addresses = {NodeId(number): each for number, each in enumerate(free_addresses(2))}
    links = [
        PeerLinks(
            Identity(node_id, b"%016d" % node_id, b"secret"),
            addresses,
            member,
            lambda: UNKNOWN_CLUSTER,
            member.timings,
        )
        for node_id, member in zip(addresses, members, strict=True)
    ]
    try:
        for each, address in zip(links, addresses.values(), strict=True):
            await each.listen(address)
            each.start()
        await eventually(lambda: all(member.ups for member in members))
        yield links
    finally:
        for each in links:
            await each.close()


@on_loop
async def test_who_stood_still_hangs_up_on_nobody() -> None:
    one, other = Member(), Member()
    async with pair(one, other):
        asyncio.get_running_loop().call_soon(time.sleep, 2 * SILENCE_SECONDS)
        await asyncio.sleep(0)
        await asyncio.sleep(2 * SILENCE_SECONDS)
        assert (one.downs, other.downs) == ([], [])


@on_loop
async def test_who_says_nothing_is_hung_up_on() -> None:
    one, other = Member(), Member(keep_alive=60)
    async with pair(one, other) as links:
        await eventually(lambda: one.downs == [NodeId(1)])
        assert links[0].problems[NodeId(1)] == "has been silent for 0.08 s"
