"""Voters that move to another address, and changes that wait for nodes with older software."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client import raft_metadata_log
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member import member_loop
from jetstream_server.metadata.raft import transport
from jetstream_server.metadata.raft.voter_change import Verdict
from tests.chaos.metadata_group import free_addresses

from .metadata_group import agreed, members, persist, register, running, until


async def linked(logs: list[RaftMetadataLog]) -> None:
    """Until all of them are."""
    await until(lambda: all(len(log.status().connected) == len(logs) - 1 for log in logs), 15)


@pytest.mark.parametrize("moved", [0, 2])
def test_others_reach_a_voter_that_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """The one with the lowest id, which is dialled, and the one with the highest, which dials."""
    monkeypatch.setattr(transport, "WAIT_SECONDS", 0.1)

    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            await group.stop(logs[moved])
            (address,) = free_addresses(1)
            voters = {**group.voters, NodeId(moved): address}
            log = logs[moved] = await group.start(moved, voters=voters, listen=address)
            await linked(logs)
            command = replace(
                register(log), addresses=replace(register(log).addresses, raft=address)
            )
            await persist(log, command)
            # From now on its links begin at the others, too, whose files have not changed.
            other = 1
            await group.stop(logs[other])
            logs[other] = await group.start(other)
            await linked(logs)
            await agreed(logs)
            problems = logs[other].status().problems
            assert moved not in dict(problems)

    asyncio.run(main())


def test_no_voters_enter_the_log_before_every_node_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_, logs):
            leader = await agreed(logs)
            log = logs[leader]
            wanted = tuple(sorted({NodeId(leader), NodeId((leader + 1) % 3)}))
            with pytest.raises(PreconditionFailedError, match="older software") as caught:
                await log.change_voters(wanted)
            assert "a change of the voters needs feature level 4" in caught.value.message
            monkeypatch.setattr(raft_metadata_log, "VOTERS_LEVEL", 1)
            assert await log.change_voters(wanted) == (Verdict.APPEND, "")
            await until(lambda: all(each.status().voters == wanted for each in logs))
            await until(lambda: all(each.status().are_voters_committed for each in logs))

    asyncio.run(main())


def test_a_node_that_was_away_while_all_voters_were_replaced_finds_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal names none of them as a voter, but as a node."""
    monkeypatch.setattr(raft_metadata_log, "VOTERS_LEVEL", 1)
    monkeypatch.setattr(member_loop, "LOST_SECONDS", 0.3)

    async def change(log: RaftMetadataLog, *wanted: int) -> None:
        for _ in range(200):
            verdict, _ = await log.change_voters(tuple(map(NodeId, wanted)))
            if verdict == Verdict.APPEND:
                break
            await asyncio.sleep(0.05)
        await until(lambda: log.status().voters == wanted and log.status().are_voters_committed)

    async def main() -> None:
        async with members(tmp_path) as group:
            first = {NodeId(0): group.voters[NodeId(0)]}

            async def start(node_id: int) -> RaftMetadataLog:
                address = group.voters[NodeId(node_id)]
                log = await group.start(node_id, voters=first, listen=address, has_followers=True)
                await log.wait_for_leader(10)
                addresses = replace(register(log).addresses, raft=address)
                await persist(log, replace(register(log), addresses=addresses))
                return log

            logs = [await start(node_id) for node_id in (0, 1, 2)]
            await until(lambda: len(logs[1].registry.nodes) == 3)
            await group.stop(logs[1])
            await change(logs[0], 0, 2)
            verdict, _ = await logs[0].change_voters((NodeId(2),))
            while verdict != Verdict.HAND_OVER:
                verdict, _ = await logs[0].change_voters((NodeId(2),))
            await until(lambda: logs[2].leader == 2)
            await change(logs[2], 2)
            await group.stop(logs[0])
            back = await group.start(
                1, voters=first, listen=group.voters[NodeId(1)], has_followers=True
            )
            await back.wait_for_leader(10)
            assert back.leader == 2
            await until(lambda: back.status().voters == (2,))

    asyncio.run(main())
