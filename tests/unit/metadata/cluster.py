"""A registry with nodes and streams, driven by commands, for the tests beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.changes import Change
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import (
    ChangeIsr,
    CreateStream,
    RegisterNode,
    SetCluster,
)
from jetstream_server.metadata.state.nodes import Addresses, FeatureLevel
from jetstream_server.metadata.state.registry import Registry, check_result
from jetstream_server.metadata.state.streams import StreamMetadata

ADDRESSES = Addresses(grpc="a:1", data="a:2", raft="a:3", http="a:4")


class Cluster:
    """Applies commands one after another; `do` raises what a proposer would get."""

    def __init__(self, nodes: int = 0, racks: tuple[str, ...] = ()) -> None:
        self.registry = Registry()
        self.changes: list[Change] = []
        for node_id in range(nodes):
            self.register(node_id, rack=racks[node_id] if racks else "")

    @classmethod
    def at_level(
        cls, nodes: int, level: FeatureLevel, known: FeatureLevel | None = None
    ) -> Cluster:
        """known: what the nodes understand, if that is more than the cluster uses."""
        cluster = cls()
        for node_id in range(nodes):
            cluster.register(node_id, feature_level_max=known or level)
        cluster.do(SetCluster(feature_level=level))
        return cluster

    def do(self, command: Command, **envelope: Any) -> dict[str, Any]:
        """envelope: `command_id`, `controller_epoch`."""
        return self.send(encode_command(command, **envelope))

    def send(self, text: str) -> dict[str, Any]:
        """A command as its JSON."""
        result = self.registry.apply(text, self.registry.revision + 1)
        self.changes = self.registry.take_changes()
        assert json.loads(json.dumps(result)) == result, "a repetition gets it from JSON"
        return check_result(result)

    def register(self, node_id: int, **fields: Any) -> int:
        session = fields.pop("session", f"session-{self.registry.revision}")
        command = RegisterNode(
            node_id=NodeId(node_id), session=session, addresses=ADDRESSES, **fields
        )
        return int(self.do(command)["incarnation"])

    def create(
        self,
        name: str = "orders",
        subject: str = "orders.>",
        replicas: tuple[int, ...] = (0, 1, 2),
        **fields: Any,
    ) -> StreamMetadata:
        command = CreateStream(
            name=name,
            subject=subject,
            replicas=tuple(map(NodeId, replicas)),
            created_at_us=1_700_000_000_000_000,
            **fields,
        )
        return self.registry.streams[self.do(command)["stream_id"]]

    def now(self, stream: StreamMetadata) -> StreamMetadata:
        """The stream as it is now."""
        return self.registry.streams[stream.id]

    def change_isr(self, stream: StreamMetadata, isr: tuple[int, ...], **fields: Any) -> None:
        current = self.now(stream)
        command = ChangeIsr(
            stream_id=stream.id,
            leader=current.leader,
            leader_epoch=current.leader_epoch,
            stream_epoch=current.stream_epoch,
            isr=tuple(map(NodeId, isr)),
            incarnations=tuple(self.registry.nodes[NodeId(member)].incarnation for member in isr),
        )
        self.do(replace(command, **fields))


def cluster_at(nodes: int, level: FeatureLevel) -> Any:
    """The fixture: a cluster of such nodes, which all understand the level that it uses."""

    @pytest.fixture
    def cluster() -> Cluster:
        return Cluster.at_level(nodes, level)

    return cluster
