"""A voter that has moved tells the others its new address; their files still have the old one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.raft import transport
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
