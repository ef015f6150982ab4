"""A node is removed from its cluster, or another process takes its id, while it still starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import FenceNode, RegisterNode, RemoveNode
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.node.build import Start, build
from jetstream_server.node.config import Config
from jetstream_server.replication.drivers.membership import Membership
from tests.support.loops import on_loop

Happening = Callable[[RaftMetadataLog], Awaitable[Any]]


async def started_while(
    happens: Happening, data: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, bool]:
    """Start a node, to which that happens as soon as it has registered. Returns whether it knows
    that it was removed, and whether it knows that it must not go on."""
    register = Membership.register

    async def and_then(self: Membership, *arguments: Any, **rest: Any) -> int:
        incarnation = await register(self, *arguments, **rest)
        await happens(self._metadata)
        return incarnation

    monkeypatch.setattr(Membership, "register", and_then)
    config = Config.model_validate(
        {"data": str(data), "insecure": True, "nats": {"servers": ["nats://127.0.0.1:1"]}}
    )
    start = Start(config, config.nodes[0], accept_voters=False)
    try:
        await build(start)
        return start.state.removed.is_set(), start.state.failed.is_set()
    finally:
        await start.stop()


@on_loop
async def test_a_node_that_is_removed_while_it_starts_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remove(metadata: RaftMetadataLog) -> None:
        await metadata.propose(FenceNode(node_id=NodeId(0)))
        await metadata.propose(RemoveNode(node_id=NodeId(0)))

    assert await started_while(remove, tmp_path, monkeypatch) == (True, False)


@on_loop
async def test_a_node_whose_id_is_taken_while_it_starts_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def take(metadata: RaftMetadataLog) -> None:
        addresses = Addresses(grpc="a:1", data="a:2", raft="a:3", http="a:4")
        await metadata.propose(
            RegisterNode(session="another", node_id=NodeId(0), addresses=addresses)
        )

    assert await started_while(take, tmp_path, monkeypatch) == (False, True)


@on_loop
async def test_what_happened_to_an_earlier_run_ends_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(metadata: RaftMetadataLog) -> None: ...

    for _ in range(2):  # The second run reads the first one's registration.
        assert await started_while(nothing, tmp_path, monkeypatch) == (False, False)
        monkeypatch.undo()
