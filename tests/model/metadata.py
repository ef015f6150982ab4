"""The metadata group: the shipped registry, each of its states known by a number.

States are never changed: a command gives another one, and the same command on the same state is
decided only once.
"""

from __future__ import annotations

import json
from typing import Any

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.registry import Registry
from jetstream_server.metadata.streams import NodeMetadata, StreamMetadata
from tests.model.values import Interned

NODES = 3
ADDRESSES = {"grpc": "a:1", "data": "a:2", "raft": "a:3", "http": "a:4"}


class Metadata:
    """See the module. Numbers of states come from `first` and `apply`."""

    def __init__(self, *, min_insync_replicas: int, flush: str) -> None:
        self._states = Interned()
        self._decided: dict[tuple[int, str], tuple[int, str]] = {}
        registry = Registry()
        for node_id in range(NODES):
            _apply(registry, registration(node_id, 1, None, {}))
        settings = {"min_insync_replicas": min_insync_replicas, "flush": flush}
        created = _apply(
            registry,
            {
                "op": "create_stream",
                "name": "orders",
                "subject": "orders",
                "config": settings,
                "replicas": list(range(NODES)),
                "created_at_us": 0,
            },
        )
        self.stream_id = StreamId(created["stream_id"])
        registry.take_changes()
        self.first = self._states.number(registry.snapshot(), registry)

    def __len__(self) -> int:
        return len(self._states)

    def stream(self, state: int) -> StreamMetadata:
        stream: StreamMetadata = self._states[state].streams[self.stream_id]
        return stream

    def nodes(self, state: int) -> dict[NodeId, NodeMetadata]:
        nodes: dict[NodeId, NodeMetadata] = self._states[state].nodes
        return nodes

    def apply(self, state: int, command: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The state after a command, and its result. One that changes nothing leaves the state."""
        key = state, json.dumps(command)
        known = self._decided.get(key)
        if known is None:
            registry = Registry()
            registry.restore(self._states[state].snapshot())
            registry.take_changes()
            result = _apply(registry, command)
            if registry.take_changes() or "id" in command:
                after = self._states.number(registry.snapshot(), registry)
            else:
                after = state
            known = self._decided[key] = after, json.dumps(result)
        return known[0], json.loads(known[1])


def registration(node_id: int, run: int, replaces: str | None, trust: dict[str, Any]) -> Any:
    """The command by which the node's `run`th run registers."""
    command = {
        "op": "register_node",
        "node_id": node_id,
        "session": f"{node_id}.{run}",
        "addresses": ADDRESSES,
        **trust,
    }
    return command if replaces is None else {**command, "replaces": replaces}


def _apply(registry: Registry, command: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(registry.apply(json.dumps(command), registry.revision + 1))
    return result
