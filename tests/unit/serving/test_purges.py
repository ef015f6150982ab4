"""A purge on its leader: what it waits for, and what ends the wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from jetstream_protocol.errors import NotFoundError, UnavailableError
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import Command
from jetstream_server.replication.drivers.replica_changes import ReplicaChanges
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.listeners import Listeners
from jetstream_server.serving.grpc.purges import Purges
from tests.support.loops import eventually, on_loop
from tests.support.node import Node


class Metadata:
    """Applies what is proposed at once."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.proposed: list[Command] = []

    async def propose(self, command: Command) -> dict[str, Any]:
        self.proposed.append(command)
        result = self._node.cluster.do(command)
        self._node.apply()
        return result


class Purging:
    """A node with retention, and purges on it."""

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self.node = Node(folder / "streams", nodes=nodes)
        self.start()

    def start(self) -> None:
        self.node.open()
        changes = ReplicaChanges()
        self.retention = Retention(wall_clock=self.node.clocks.wall)
        self.node.begin(Listeners(roles=(self.retention, changes)))
        self.metadata = Metadata(self.node)
        self.purges = Purges(cast(RaftMetadataLog, self.metadata), changes, self.retention.visit)

    async def close(self) -> None:
        await self.retention.close()
        self.node.replicas.close()


@on_loop
async def test_a_purge_returns_when_the_log_begins_there(tmp_path: Path) -> None:
    purging = Purging(tmp_path)
    replica = purging.node.create()
    purging.node.append(replica, b"1", b"2")
    purging.node.append(replica, b"3")
    purging.retention.start()
    assert await purging.purges.purge(replica, 2) == 2
    assert replica.log.log_start_offset == 2
    assert await purging.purges.purge(replica, 1) == 2, "a purge of what is gone changes nothing"
    assert len(purging.metadata.proposed) == 1
    await purging.close()


@on_loop
async def test_a_purge_waits_for_no_other_stream(tmp_path: Path) -> None:
    purging = Purging(tmp_path)
    replica = purging.node.create()
    purging.node.append(replica, b"1", b"2")
    purging.node.append(replica, b"3")
    assert await purging.purges.purge(replica, None) == 3, "no round of retention has begun"
    assert replica.log.log_start_offset == 3
    await purging.close()


@on_loop
async def test_the_metadata_hears_of_a_purge_when_it_is_on_disk(tmp_path: Path) -> None:
    purging = Purging(tmp_path)
    node = purging.node
    replica = node.create(config={"flush": "none"})
    node.append(replica, b"1", b"2", flush=False)
    purging.retention.start()
    asked = asyncio.ensure_future(purging.purges.purge(replica, None))
    await eventually(lambda: bool(node.flushes.waiting))
    assert not purging.metadata.proposed
    node.flushes.run()
    await eventually(lambda: bool(purging.metadata.proposed))
    await eventually(lambda: node.flushes.run() or asked.done())  # type: ignore[func-returns-value]
    assert asked.result() == 2
    await purging.close()


@on_loop
async def test_a_stream_that_is_deleted_while_it_is_purged_ends_the_purge(tmp_path: Path) -> None:
    purging = Purging(tmp_path)
    node = purging.node
    replica = node.create(config={"flush": "none"})
    node.append(replica, b"1", flush=False)
    asked = asyncio.ensure_future(purging.purges.purge(replica, None))
    await eventually(lambda: bool(node.flushes.waiting))
    node.delete(replica)
    with pytest.raises(NotFoundError):
        await asked
    await purging.close()


@on_loop
async def test_what_a_new_leader_does_not_know_to_be_committed_is_not_purged_yet(
    tmp_path: Path,
) -> None:
    purging = Purging(tmp_path, nodes=2)
    node = purging.node
    replica = node.create(replicas=(0, 1))
    node.append(replica, b"1", b"2")
    node.append(replica, b"3")
    await purging.close()
    purging.start()
    replica = node.replica(replica.stream)
    assert (replica.high_watermark, replica.log.log_end_offset) == (0, 3)
    for offset in (None, 3, 2):
        with pytest.raises(UnavailableError, match="where its committed records end"):
            await purging.purges.purge(replica, offset)
    assert (await purging.purges.purge(replica, 0), purging.metadata.proposed) == (0, [])
    await purging.close()
