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
from jetstream_server.metadata.raft import transport
from jetstream_server.metadata.raft.voter_change import Verdict
from tests.chaos.metadata_group import free_addresses

from .metadata_group import agreed, persist, register, running, until


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
