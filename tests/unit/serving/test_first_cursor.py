"""A node that has not heard yet that there are cursors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import NotFoundError
from jetstream_protocol.generated import common_pb2, groups_pb2
from jetstream_protocol.generated import cursors_pb2 as pb
from jetstream_server.cursors.coordinator import Coordinator
from jetstream_server.cursors.groups import Group
from jetstream_server.cursors.records import cursor_key
from jetstream_server.cursors.store import CURSORS, CursorStore
from jetstream_server.cursors.table import CursorTable, Outcome, Write
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.commands import FEATURE_LEVEL_MAX
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving.grpc.cursor_leader import CursorLeader
from jetstream_server.serving.grpc.cursors_service import CursorsService
from jetstream_server.serving.grpc.groups_service import GroupsService
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.clocks import FakeClocks
from tests.support.loops import on_loop
from tests.unit.metadata.cluster import Cluster


class NodeBehind:
    """A node with the stream `orders`. It hears of `__cursors`, which it leads, once it asks how
    far the metadata is. A cursor and a group are there."""

    def __init__(self) -> None:
        self.cluster = Cluster.at_level(1, FEATURE_LEVEL_MAX)
        self.registry = self.cluster.registry
        self.stream = self.cluster.create("orders", "orders", (0,))
        self._table = CursorTable()
        cursor = pb.Cursor(
            name="billing", stream_id=self.stream.id, stream_name="orders",
            stream_subject="orders", offset=7,
        )  # fmt: skip
        key = cursor_key("billing", "orders@orders")
        self._table.load([0], [key], [cursor.SerializeToString()])
        self.groups: list[str] = ["workers"]
        access = StreamAccess(open_to_all(), self.registry)
        leader = CursorLeader(
            cast(RaftMetadataLog, self), cast(Streams, None), cast(Peers, None), 0
        )
        store = cast(CursorStore, self)
        self.cursors = CursorsService(store, self.registry, leader, access, FakeClocks().wall)
        self.group_calls = GroupsService(store, self.registry, leader, access)
        self.call = cast(Call, SimpleNamespace(identity=ANONYMOUS, peer="", header=lambda name: ""))

    async def barrier(self) -> int:
        self.cluster.create(CURSORS, "", (0,), internal=True)
        return self.registry.revision

    async def table(self) -> CursorTable:
        return self._table

    async def write(self, writes: list[Write]) -> list[Outcome]:
        return [Outcome(None) for _ in writes]

    async def coordinator(self) -> Coordinator:
        async def save(group: Group) -> None:
            self.groups.remove(group.name)

        found = Coordinator(save, lambda source: (), lambda: cast(Any, 0))
        found.load([Group("workers", "orders", 1)])
        return found


@on_loop
async def test_does_not_say_that_a_cursor_is_new() -> None:
    """Its consumer would begin anew, and commit that."""
    node = NodeBehind()
    ref = common_pb2.StreamRef(name="orders", subject="orders")
    found = await node.cursors.ListCursors(
        pb.ListCursorsRequest(name="billing", stream=ref), node.call
    )
    assert [each.offset for each in found.cursors] == [7]


@on_loop
async def test_does_not_say_that_a_group_is_new() -> None:
    """Its next member would take streams that came since for those that the group began with, and
    begin them at `start` instead of their beginning."""
    node = NodeBehind()
    found = await node.group_calls.ListGroups(
        groups_pb2.ListGroupsRequest(name="workers"), node.call
    )
    assert [each.name for each in found.groups] == ["workers"]


@on_loop
async def test_deletes_cursors_and_groups_that_it_has_not_heard_of() -> None:
    node = NodeBehind()
    ref = common_pb2.StreamRef(name="orders", subject="orders")
    await node.cursors.DeleteCursor(pb.DeleteCursorRequest(name="billing", stream=ref), node.call)
    node = NodeBehind()
    with pytest.raises(NotFoundError):
        await node.cursors.DeleteCursor(pb.DeleteCursorRequest(name="no", stream=ref), node.call)
    node = NodeBehind()
    await node.group_calls.DeleteGroup(groups_pb2.DeleteGroupRequest(group="workers"), node.call)
    assert node.groups == []
