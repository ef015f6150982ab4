"""A recovered metadata group with a node that knows more than the voters that are left."""

import asyncio
from pathlib import Path

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.member.unsafe_recovery import (
    plan_recovery,
    read_metadata,
    recover,
)
from jetstream_server.metadata.state.commands import SetCluster

from .metadata_group import Members, agreed, create, members, persist, register, until

VOTERS, LEFT, FOLLOWER = 5, NodeId(4), NodeId(5)


async def lose_all_but_one(group: Members, compact_after: int) -> None:
    """The voter that is left misses an election and what was decided after it. The node that does
    not vote follows to the end. Nobody runs then."""

    async def start(node: NodeId) -> RaftMetadataLog:
        return await group.start(node, compact_after_entries=compact_after)

    logs = {node: await start(node) for node in (*group.voters, FOLLOWER)}
    while await agreed(list(logs.values())) == LEFT:
        await group.stop(logs.pop(LEFT))
        logs[LEFT] = await start(LEFT)
    await persist(logs[LEFT], SetCluster(cluster_id="ours"))
    for log in logs.values():
        await persist(log, register(log))
    await persist(logs[LEFT], create("known", 0, LEFT))
    await group.stop(logs.pop(LEFT))
    leader = NodeId(await agreed(list(logs.values())))
    await group.stop(logs.pop(leader))
    await agreed(list(logs.values()))
    for number in range(10):
        await persist(logs[FOLLOWER], create(f"unknown-{number}", 0, FOLLOWER))
    for log in logs.values():
        await group.stop(log)


async def live_alike(group: Members, run: int) -> None:
    """Start the two nodes that stay, and check that they know the same."""
    logs = [await group.start(node, has_followers=True) for node in (LEFT, FOLLOWER)]
    for log in logs:
        await persist(log, register(log))
    await persist(logs[1], create(f"after-{run}", FOLLOWER))
    await until(lambda: logs[0].registry.revision == logs[1].registry.revision)
    assert logs[0].registry.snapshot() == logs[1].registry.snapshot()
    names = {stream.name for stream in logs[1].registry.streams.values()}
    assert names == {"known", *(f"after-{each}" for each in range(run + 1))}
    assert len(logs[1].registry.settings.recoveries) == 1
    for log in logs:
        await group.stop(log)


@pytest.mark.parametrize("compact_after", [20_000, 3])
def test_a_node_that_does_not_vote_ends_with_what_the_voters_know_that_are_left(
    tmp_path: Path, compact_after: int
) -> None:
    async def main() -> None:
        async with members(tmp_path, VOTERS) as group:
            await lose_all_but_one(group, compact_after)
            left, follower = str(tmp_path / str(LEFT)), str(tmp_path / str(FOLLOWER))
            assert read_metadata(left).term < read_metadata(follower).term
            assert read_metadata(left).last_index < read_metadata(follower).last_index
            assert Path(follower, "snapshot").exists() == (compact_after == 3)
            for folder in (left, follower):
                recover(folder, plan_recovery(folder, [LEFT]))
            group.voters = {LEFT: group.voters[LEFT]}
            for run in range(2):
                await live_alike(group, run)
            assert not group.failures

    asyncio.run(main())
