"""A registry with nodes and streams, driven by commands, for the tests beside it."""

from __future__ import annotations

import json
from typing import Any

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.changes import Change
from jetstream_server.metadata.registry import Registry, check_result
from jetstream_server.metadata.streams import StreamMetadata

ADDRESSES = {"grpc": "a:1", "data": "a:2", "raft": "a:3", "http": "a:4"}


class Cluster:
    """Applies commands one after another; `do` raises what a proposer would get."""

    def __init__(self, nodes: int = 0, racks: tuple[str, ...] = ()) -> None:
        self.registry = Registry()
        self.changes: list[Change] = []
        for node_id in range(nodes):
            self.register(node_id, rack=racks[node_id] if racks else "")

    def do(self, op: str, **fields: Any) -> dict[str, Any]:
        command = json.dumps({"op": op, **fields})
        result = self.registry.apply(command, self.registry.revision + 1)
        self.changes = self.registry.take_changes()
        return check_result(json.loads(result))

    def register(self, node_id: int, **fields: Any) -> int:
        session = fields.pop("session", f"session-{self.registry.revision}")
        result = self.do(
            "register_node", node_id=node_id, session=session, addresses=ADDRESSES, **fields
        )
        return int(result["incarnation"])

    def create(
        self,
        name: str = "orders",
        subject: str = "orders.>",
        replicas: tuple[int, ...] = (0, 1, 2),
        **fields: Any,
    ) -> StreamMetadata:
        result = self.do(
            "create_stream",
            name=name,
            subject=subject,
            replicas=replicas,
            created_at_us=1_700_000_000_000_000,
            **fields,
        )
        return self.registry.streams[result["stream_id"]]

    def now(self, stream: StreamMetadata) -> StreamMetadata:
        """The stream as it is now."""
        return self.registry.streams[stream.id]

    def change_isr(self, stream: StreamMetadata, isr: tuple[int, ...], **fields: Any) -> None:
        current = self.now(stream)
        command = {
            "stream_id": stream.id,
            "leader": current.leader,
            "leader_epoch": current.leader_epoch,
            "stream_epoch": current.stream_epoch,
            "isr": isr,
            "incarnations": [self.registry.nodes[NodeId(node_id)].incarnation for node_id in isr],
        }
        self.do("change_isr", **{**command, **fields})
