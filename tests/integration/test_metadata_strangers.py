"""Strangers at the Raft port: they do no harm, and get an error."""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.handshake import Capability
from jetstream_server.metadata.raft.link import LinkTimings, split_address
from jetstream_server.metadata.raft.transport import PeerLinks
from jetstream_server.metadata.state.commands import SetCluster

from .metadata_group import (
    HOURS,
    SECRET,
    agreed,
    create,
    members,
    persist,
    running,
    undisturbed,
    until,
)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def pour(address: str, data: bytes, times: int = 1) -> bytes:
    """Send bytes for as long as the other side takes them; what it says before it hangs up."""
    reader, writer = await asyncio.open_connection(*split_address(address))
    said = b""
    try:
        for _ in range(times):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        said = await reader.read()
    except OSError:
        pass  # It hung up while this was still talking.
    writer.transport.abort()
    return said


GARBAGE: list[tuple[str, Callable[[], bytes]]] = [
    ("random bytes", lambda: random.Random(1).randbytes(1 << 20)),
    ("an HTTP request", lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20),
    ("a pickle", lambda: b"\x80\x04cposix\nsystem\n(S'touch /tmp/owned'\ntR." * 10),
    ("zeros", lambda: bytes(1 << 20)),
    ("our magic and no more", lambda: handshake.MAGIC),
    ("an endless length", lambda: handshake.MAGIC + b"\xff" * 1000),
]


def test_foreign_bytes_are_harmless(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            leader = await agreed(logs)
            async with undisturbed(logs):
                for number, (name, data) in enumerate(GARBAGE):
                    for address in group.voters.values():
                        said = await pour(address, data())
                        assert len(said) <= handshake.CHALLENGE_BYTES + handshake.ANSWER_BYTES, name
                    await persist(logs[(leader + 1) % 3], create(f"after-{number}", 0))
                    assert group.failures == [], name

    asyncio.run(main())


def test_forty_megabytes_of_garbage_and_idle_connections_cost_no_memory_and_no_proposal(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            leader = await agreed(logs)
            address = group.voters[logs[leader].status().node_id]
            idle = [await asyncio.open_connection(*split_address(address)) for _ in range(200)]
            before = resident_bytes()
            pouring = asyncio.gather(*(pour(address, bytes(1 << 20), 10) for _ in range(4)))
            async with undisturbed(logs):
                for number in range(50):
                    await logs[leader].propose(create(f"s{number}", 0), patience=60)
                await pouring
            for _, writer in idle:
                writer.close()
            assert resident_bytes() - before < 32 * 1024 * 1024
            for _, writer in idle:
                writer.transport.abort()

    asyncio.run(main())


class _Silent:
    """A peer that knows the credential and listens to nobody."""

    def link_up(self, peer: NodeId, capabilities: Capability) -> None:
        pass

    def link_down(self, peer: NodeId) -> None:
        pass

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        pass


NONSENSE = [
    b"\x00",
    b"\x3f" * 100,
    b"\xff" * 100,
    b"\x01" + bytes(10),
    b"\x06" + bytes(8) + b"\x02a pickled membership",
    b"\x02" + bytes(10) + b"no snapshot",
]


def test_nonsense_from_a_peer_that_knows_the_credential_is_harmless(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            leader = await agreed(logs)
            addresses = {voter: (address,) for voter, address in group.voters.items()}
            async with undisturbed(logs):
                for number, frame in enumerate(NONSENSE):
                    identity = handshake.Identity(NodeId(9 + number), b"i" * 16, SECRET)
                    links = PeerLinks(identity, addresses, _Silent(), lambda: bytes(16))
                    links.start()
                    await until(lambda links=links: len(links.connected_nodes()) == 3)
                    for peer in group.voters:
                        links.send(peer, frame)
                    await asyncio.sleep(0.3)
                    await links.close()
                    await persist(logs[(leader + 1) % 3], create(f"after-{number}", 0))
                    assert group.failures == [], frame

    asyncio.run(main())


def test_a_wrong_credential_is_refused_and_both_sides_say_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            await group.stop(logs.pop())
            await agreed(logs)
            stranger = await group.start(2, secret=b"something else")
            await until(lambda: len(stranger.status().problems) == 2)
            assert stranger.leader == NO_NODE
            with pytest.raises(UnavailableError, match="refuses this node's cluster credential"):
                await stranger.barrier()
            await logs[0].barrier()
            assert logs[0].status().connected == (1,)

    asyncio.run(main())


def test_a_second_process_with_the_same_id_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            await agreed(logs)

            async def try_to_start(node_id: int) -> None:
                directory = str(tmp_path / f"second-{node_id}")
                with pytest.raises(PreconditionFailedError, match=f"node id {node_id} is in use"):
                    await group.start(node_id, directory=directory, listen="127.0.0.1:0")

            async with undisturbed(logs):
                await asyncio.gather(*map(try_to_start, range(3)))
                for node_id in range(3):
                    await persist(logs[node_id], create(f"unharmed-{node_id}", 0))

    asyncio.run(main())


def test_a_restart_takes_the_place_of_the_run_before_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        # Whoever had to miss the run before would wait for an hour.
        async with running(tmp_path, links=LinkTimings(keep_alive=HOURS)) as (group, logs):
            follower = (await agreed(logs) + 1) % 3
            await group.stop(logs[follower])
            again = await group.start(follower)
            await again.wait_for_leader(60)

    asyncio.run(main())


def test_a_folder_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """Its log may be longer and its term higher: let in, it would overrule this cluster."""

    async def main() -> None:
        async with running(tmp_path / "other") as (_, others):
            await others[2].propose(SetCluster(cluster_id="the other one"))
        async with running(tmp_path / "ours") as (group, logs):
            await group.stop(logs.pop())
            await agreed(logs)
            await persist(logs[0], SetCluster(cluster_id="ours"))
            await logs[1].barrier()
            lost = await group.start(2, directory=str(tmp_path / "other" / "2"))
            # It also dials the addresses in the folder, where nobody listens any more.
            await until(lambda: "belongs to another cluster" in str(lost.status().problems))
            assert lost.leader == NO_NODE
            assert logs[0].registry.settings.cluster_id == "ours"

    asyncio.run(main())


@pytest.mark.parametrize("node_id", [0, 2])
def test_a_folder_of_another_node_or_of_other_voters_is_refused(
    tmp_path: Path, node_id: int
) -> None:
    async def main() -> None:
        async with members(tmp_path / "alone", 1) as alone:
            await alone.start(0)
        async with members(tmp_path / "ours") as group:
            with pytest.raises(PreconditionFailedError, match=r"node 0|voters"):
                await group.start(node_id, directory=str(tmp_path / "alone" / "0"))

    asyncio.run(main())


def test_a_lost_majority_is_given_up_only_when_asked_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_, logs):
            await logs[1].propose(create("kept", 0, 1, 2))
            await logs[0].barrier()  # A majority without it may have stored the stream.
        async with members(tmp_path, 1) as rest:
            with pytest.raises(PreconditionFailedError, match="docs/operations/"):
                await rest.start(0)
            survivor = await rest.start(0, accept_voters=True)
            assert survivor.registry.resolve("kept").replicas == (0, 1, 2)
            await rest.stop(survivor)
            await rest.start(0)

    asyncio.run(main())


def test_a_port_already_taken_stops_the_start_and_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (group, _):
            address = group.voters[next(iter(group.voters))]
            with pytest.raises(PreconditionFailedError, match=address):
                await group.start(5, listen=address)

    asyncio.run(main())
