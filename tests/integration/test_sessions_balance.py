"""Leaderships across three real members: passed on, given back, drained; and no start held up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import FencedEpochError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import ChangeIsr, DrainNode, FenceNode, UnfenceNode
from jetstream_server.replication.drivers.controller import Controller, ControllerSettings
from jetstream_server.replication.sessions.lease import SessionSettings
from jetstream_server.replication.sessions.node_session import NodeSession

from .metadata_group import CALM, Members, create, members, persist, propose_under, register, until

STREAMS = 30
QUICK = ControllerSettings(round_seconds=0.1, settle_seconds=0.5)


CALM_SESSIONS = SessionSettings(timeout_us=3_600_000_000, lease_us=3_500_000_000)
"""Who stands still for a moment is not missed."""


@dataclass
class Node:
    log: RaftMetadataLog
    session: NodeSession
    controller: Controller

    @property
    def node_id(self) -> NodeId:
        return self.log.status().node_id

    @classmethod
    async def start(
        cls, group: Members, node_id: int, settings: SessionSettings = CALM_SESSIONS
    ) -> Node:
        group.runs += 1
        log = RaftMetadataLog(group.config(node_id), f"run-{group.runs}", group.failures.append)
        session = NodeSession(log, settings)
        group.running.append(log)
        await log.start()
        node = cls(log, session, Controller(log, lambda: session.log_ends, QUICK))
        session.start()
        node.controller.start()
        return node

    async def register(self) -> None:
        await self.log.wait_for_leader(60)
        await persist(self.log, register(self.log))
        await self.session.wait_until_held(60)

    async def stop(self, group: Members) -> None:
        await self.controller.close()
        await self.session.close()
        await group.stop(self.log)

    def leaderships(self) -> list[int]:
        led = [stream.leader for stream in self.log.registry.streams.values()]
        return [led.count(NodeId(node_id)) for node_id in range(3)]

    async def rejoin(self, returned: NodeId) -> None:
        """Put a node back into every ISR, as the leaders would once it has caught up. Meanwhile
        leaderships may move already."""
        for stream_id in tuple(self.log.registry.streams):
            while returned not in (stream := self.log.registry.streams[stream_id]).isr:
                nodes, isr = self.log.registry.nodes, (*stream.isr, returned)
                try:
                    await self.log.propose(
                        ChangeIsr(
                            stream_id=stream.id,
                            leader=stream.leader,
                            leader_epoch=stream.leader_epoch,
                            stream_epoch=stream.stream_epoch,
                            isr=isr,
                            incarnations=tuple(nodes[member].incarnation for member in isr),
                        )
                    )
                except FencedEpochError:
                    await self.log.barrier()


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[Members, list[Node]]]:
    async with members(directory) as group:
        nodes = [await Node.start(group, node_id) for node_id in range(3)]
        await asyncio.gather(*(node.register() for node in nodes))
        group.use(CALM)
        for number in range(STREAMS):
            await nodes[0].log.propose(create(f"s{number}", 0, 1, 2))
        yield group, nodes
        for node in nodes:
            if node.log in group.running:
                await node.stop(group)


def test_leaderships_of_a_node_that_died_come_back_to_it_when_it_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as (group, nodes):
            assert nodes[0].leaderships() == [10, 10, 10]
            await nodes[2].stop(group)
            await until(lambda: any(node.log.controller_epoch is not None for node in nodes[:2]))
            (controller,) = [node for node in nodes[:2] if node.log.controller_epoch is not None]
            await controller.log.propose(FenceNode(node_id=NodeId(2)), as_controller=True)
            await nodes[0].log.barrier()
            assert sorted(nodes[0].leaderships()) == [0, 15, 15]
            nodes[2] = await Node.start(group, 2)
            await nodes[2].register()
            await nodes[0].log.barrier()
            await nodes[0].rejoin(NodeId(2))
            await until(lambda: nodes[0].leaderships() == [10, 10, 10])

    asyncio.run(main())


def test_a_draining_node_is_relieved_whoever_is_the_controller(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as (_, nodes):
            witness = nodes[2]
            for draining in (nodes[0], nodes[1]):
                command = DrainNode(node_id=draining.node_id, draining=True)
                await witness.log.propose(command)
                await until(lambda node_id=draining.node_id: not witness.leaderships()[node_id])
                await witness.log.propose(replace(command, draining=False))
                await until(lambda: witness.leaderships() == [10, 10, 10])

    asyncio.run(main())


def test_leases_are_prolonged_while_the_server_s_loop_stands_still(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as (_, nodes):
            before = {node.node_id: node.log.incarnation for node in nodes}
            leases = [node.session._driver.lease for node in nodes]
            ends, hang = [lease.ends_at_us for lease in leases], time.monotonic() + 60.0
            # All three servers live on this loop.
            while any(lease.ends_at_us == end for lease, end in zip(leases, ends, strict=True)):
                assert time.monotonic() < hang, "they wait for the server's loop"
                time.sleep(0.05)  # noqa: ASYNC251
            await asyncio.sleep(0.5)
            for node in nodes:
                await node.log.barrier()
                known = node.log.registry.nodes
                assert {each: known[each].incarnation for each in known} == before
                assert not any(each.fenced for each in known.values())
                assert all(
                    stream.leader_epoch == 0 for stream in node.log.registry.streams.values()
                )

    asyncio.run(main())


def test_a_group_of_one_waits_for_no_lease_and_never_fences_itself(tmp_path: Path) -> None:
    hour_us = 3_600_000_000
    impatient = SessionSettings(greeting_us=hour_us)  # But with nobody to be greeted by.

    async def main() -> None:
        async with members(tmp_path, 1) as group, asyncio.timeout(60):
            node = await Node.start(group, 0, impatient)
            assert node.session.lease_holds()
            await asyncio.sleep(2.5)  # Recovering its logs, say: not registered yet.
            await node.register()
            await node.stop(group)
            again = await Node.start(group, 0, impatient)
            await asyncio.sleep(2.5)
            assert not again.log.registry.nodes[NodeId(0)].fenced
            await again.stop(group)

    asyncio.run(main())


def test_what_the_controller_did_is_void_under_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as (group, nodes):
            first = next(node for node in nodes if node.log.controller_epoch is not None)
            epoch = first.log.controller_epoch
            await first.stop(group)
            rest = [node for node in nodes if node is not first]
            await until(lambda: any(node.log.controller_epoch is not None for node in rest))
            for command in (FenceNode, UnfenceNode):
                with pytest.raises(FencedEpochError):
                    await propose_under(rest[0].log, command(node_id=rest[0].node_id), epoch)

    asyncio.run(main())
