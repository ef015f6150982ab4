"""Links between members, over real connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError, UnavailableError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import transport
from jetstream_server.metadata.raft.handshake import (
    UNKNOWN_CLUSTER,
    Capability,
    Identity,
    Purpose,
    cluster_digest,
)
from jetstream_server.metadata.raft.joining import ask_one
from jetstream_server.metadata.raft.link import SILENCE_MAX, LinkTimings, split_address
from jetstream_server.metadata.raft.transport import PeerLinks
from tests.chaos.metadata_group import free_addresses
from tests.support.loops import eventually, on_loop

KEEP_ALIVE_SECONDS = 0.02
SILENCE_SECONDS = KEEP_ALIVE_SECONDS * (SILENCE_MAX + 1)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake of a process that stands still ends all the same."""
    monkeypatch.setattr(transport, "HANDSHAKE_SECONDS_MAX", 60.0)


class Member:
    """Records the events of its links. keep_alive: seconds between signs of life."""

    def __init__(self, keep_alive: float = KEEP_ALIVE_SECONDS) -> None:
        self.timings = LinkTimings(keep_alive=keep_alive)
        self.ups: list[NodeId] = []
        self.downs: list[NodeId] = []
        self.superseded_by: list[str] = []
        self.received: list[bytes] = []

    def link_up(self, peer: NodeId, capabilities: Capability) -> None:
        self.ups.append(peer)

    def link_down(self, peer: NodeId) -> None:
        self.downs.append(peer)

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        self.received.append(payload)

    def superseded(self, reason: str) -> None:
        self.superseded_by.append(reason)


@asynccontextmanager
async def pair(*members: Member) -> AsyncIterator[list[PeerLinks]]:
    """Members that are linked with each other."""
    addresses = {NodeId(number): (each,) for number, each in enumerate(free_addresses(2))}
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
            await each.listen(*address)
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


@on_loop
async def test_a_peer_with_an_impossible_name_is_one_that_does_not_answer() -> None:
    """It has registered that address itself: it must not end this node's part in the group."""
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    own, address = NodeId(0), "node4..example.org:9294"
    identity = Identity(own, b"%016d" % own, b"secret")
    links = PeerLinks(identity, {NodeId(4): (address,)}, Member(), lambda: UNKNOWN_CLUSTER)
    try:
        await links.check_id_is_free(0)
        links.start()
        await eventually(lambda: bool(links.problems or failures))
    finally:
        await links.close()
    assert failures == []
    problem = "cannot be reached: 'node4..example.org' is no possible host name"
    assert links.problems == {NodeId(4): problem}
    with pytest.raises(UnavailableError, match="no possible host name"):
        await ask_one(address, identity, None)


@on_loop
async def test_where_nobody_listens_is_said_in_words() -> None:
    identity = Identity(NodeId(0), b"%016d" % 0, b"secret")
    peers = {NodeId(1): ("127.0.0.1:1",)}
    links = PeerLinks(identity, peers, Member(), lambda: UNKNOWN_CLUSTER)
    try:
        links.start()
        await eventually(lambda: bool(links.problems))
    finally:
        await links.close()
    assert links.problems == {NodeId(1): "cannot be reached: connection refused"}


@on_loop
@pytest.mark.parametrize("recovered", [0, 1])
async def test_who_the_group_was_recovered_without_is_told_whoever_is_to_dial(
    recovered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And before it takes part, if the recovered one is there by then."""
    monkeypatch.setattr(transport, "WAIT_SECONDS", 0.01)
    addresses = {NodeId(number): (each,) for number, each in enumerate(free_addresses(2))}
    members = [Member(), Member()]
    former, now = cluster_digest("c"), cluster_digest("c", ["t"])
    links = [
        PeerLinks(
            Identity(node_id, b"%016d" % node_id, b"secret"),
            {node_id: addresses[node_id]} if node_id == recovered else addresses,
            members[node_id],
            lambda node_id=node_id: now if node_id == recovered else former,  # type: ignore[misc]
            superseded=lambda node_id=node_id: [former] if node_id == recovered else [],  # type: ignore[misc]
        )
        for node_id in addresses
    ]
    try:
        for each, address in zip(links, addresses.values(), strict=True):
            await each.listen(*address)
        lost = 1 - recovered
        with pytest.raises(PreconditionFailedError, match="recovered without this node"):
            await links[lost].check_id_is_free(0)
        for each in links:
            each.start()
        await eventually(lambda: bool(members[lost].superseded_by))
        assert "move its data folder away" in members[lost].superseded_by[0]
        assert (members[0].ups, members[1].ups) == ([], [])
        assert members[recovered].superseded_by == []
    finally:
        for each in links:
            await each.close()


@on_loop
async def test_a_peer_may_lose_its_vote_while_it_is_asked_whether_an_id_is_free() -> None:
    """A node that starts is linked already by those who know who votes by now."""
    async with pair(Member(), Member()) as (_, asked):
        addresses = asked._addresses
        twin = PeerLinks(
            Identity(NodeId(0), b"another run, 16b", b"secret"),
            addresses,
            Member(),
            lambda: UNKNOWN_CLUSTER,
        )
        asking = asyncio.create_task(twin.check_id_is_free(60))
        await asyncio.sleep(0.1)
        assert not asking.done()
        twin.use({NodeId(0): addresses[NodeId(0)]})
        async with asyncio.timeout(60):
            await asking
        await twin.close()


@on_loop
@pytest.mark.parametrize("ending", [0, 1])
async def test_whichever_end_hangs_up_the_link_is_made_anew(ending: int) -> None:
    one, other = Member(), Member()
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with pair(one, other) as links:
        links[ending].drop(NodeId(1 - ending), "a trial")
        await eventually(lambda: len(one.ups) == len(other.ups) == 2)
    assert failures == []


@on_loop
async def test_a_long_frame_on_a_slow_line_is_no_silence() -> None:
    """It would be sent again after every link, and never arrive."""
    member = Member()
    (address,) = free_addresses(1)
    links = PeerLinks(
        Identity(NodeId(0), b"%016d" % 0, b"secret"),
        {NodeId(0): (address,)},
        member,
        lambda: UNKNOWN_CLUSTER,
        member.timings,
    )
    await links.listen(address)
    links.start()
    try:
        connection = await transport.dial(
            address,
            Purpose.LINK,
            Identity(NodeId(1), b"%016d" % 1, b"secret"),
            target=NodeId(0),
            cluster=UNKNOWN_CLUSTER,
            certificates=None,
        )
        frame = connection.codecs[0].seal(bytes(1000))
        for start in range(0, len(frame), 100):
            connection.stream.write(frame[start : start + 100])
            await asyncio.sleep(SILENCE_SECONDS / 3)
        await eventually(lambda: member.received == [bytes(1000)])
        assert member.downs == []
        await eventually(lambda: member.downs == [NodeId(1)])  # Silence is one still.
        connection.stream.close()
    finally:
        await links.close()


@pytest.mark.parametrize("port", ["65536", "9" * 30, "\u0664", "", "-1", "1 "])
def test_an_impossible_port_is_no_address(port: str) -> None:
    """A node may have registered it: whoever dials it must not end by that."""
    with pytest.raises(InvalidRequestError, match="not an address"):
        split_address(f"node1:{port}")
