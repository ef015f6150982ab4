"""Who may send which frame is what the table says, and the data plane asks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    StreamNotFoundError,
)
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.security.requirements import BETWEEN_NODES, FRAMES, Requirement, Scope
from jetstream_server.serving.dataplane.guard import admit
from jetstream_server.serving.dataplane.server import DataPlaneServer
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import for_the_known, open_to_all
from tests.support.loops import on_loop
from tests.support.node import Node

CLIENT = Identity("user:reader")
NODE = Identity("node:1", is_node=True)


@pytest.mark.parametrize("kind", [Kind.NODE_HELLO, Kind.POSITIONS])
def test_what_is_between_nodes_is_not_for_clients(kind: Kind) -> None:
    admit(for_the_known(), NODE, kind)
    with pytest.raises(PermissionDeniedError, match="for the nodes of a cluster"):
        admit(for_the_known(), CLIENT, kind)


def test_what_is_for_clients_only_is_not_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    admit(for_the_known(), NODE, Kind.FETCH)
    monkeypatch.setitem(FRAMES, Kind.FETCH, Requirement(Scope.STREAM, Operation.READ))
    admit(for_the_known(), CLIENT, Kind.FETCH)
    with pytest.raises(PermissionDeniedError, match="is for clients"):
        admit(for_the_known(), NODE, Kind.FETCH)


def test_with_security_off_a_frame_needs_a_rule_but_no_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(FRAMES, Kind.FETCH, BETWEEN_NODES)
    admit(open_to_all(), CLIENT, Kind.FETCH)
    monkeypatch.delitem(FRAMES, Kind.FETCH)
    with pytest.raises(InvalidRequestError, match="no rule says who may send FETCH"):
        admit(open_to_all(), CLIENT, Kind.FETCH)


class Asked(StreamAccess):
    """Notes what the data plane wants to do, and knows no stream."""

    def resolve(
        self, identity: Identity, operation: Operation, ref: common_pb2.StreamRef
    ) -> StreamMetadata:
        self.operation = operation
        raise StreamNotFoundError("none")


@on_loop
async def test_a_fetch_needs_the_right_that_the_table_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Node(tmp_path / "streams").start()
    asked = Asked(for_the_known(), Registry())
    server = DataPlaneServer(
        replicas,
        LongPoll(lambda: True, for_the_known()),
        asked,
        node_id=0,
        cluster_id="c",
        secret=b"",
        copy_turns=CopyTurns(lambda: 0, lambda: 0),
        monotonic_clock=lambda: 0,
    )
    for operation in (Operation.READ, Operation.ALTER):
        monkeypatch.setitem(FRAMES, Kind.FETCH, Requirement(Scope.STREAM, operation))
        with pytest.raises(StreamNotFoundError):
            await server._fetches.fetch(pb.DataFetchRequest(), CLIENT)
        assert asked.operation is operation
