"""The controller's pure decisions: which nodes hold a stream, which node leads it, and how
leaderships are balanced.

Everything here is a function of applied metadata. Nothing is random, and ties are broken by node
id, so that every node decides the same. `Election` is used while a command is being applied (one
entry may elect thousands of leaders); `Placer` and `balancing_moves` make commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jetstream_protocol.errors import InvalidRequestError, UnavailableError
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables

DEFAULT_REPLICAS = 3


class Election:
    """Chooses leaders one after another, and counts those already chosen.

    The eligible node with the fewest leaderships wins; among equals, the node whose rack leads
    least, then the lowest id. A node that yields leaderships leads only if no other can, and one
    whose disk is full only if there is none with room.
    """

    __slots__ = ("_leaderships", "_nodes", "_rack_leaderships")

    def __init__(
        self, nodes: Mapping[NodeId, NodeMetadata], leaderships: Mapping[NodeId, int]
    ) -> None:
        self._nodes = nodes
        self._leaderships = dict(leaderships)
        self._rack_leaderships: dict[str, int] = {}
        for node_id, count in leaderships.items():
            self._count_rack(node_id, count)

    def choose(self, candidates: Iterable[NodeId]) -> NodeId:
        """The best alive candidate, or NO_NODE. The choice is counted from now on."""
        alive = [node_id for node_id in candidates if self._is_alive(node_id)]
        if not alive:
            return NO_NODE
        chosen = min(alive, key=self._burden)
        self.add(chosen)
        return chosen

    def add(self, node_id: NodeId) -> None:
        """Count a leadership that begins."""
        self._leaderships[node_id] = self._leaderships.get(node_id, 0) + 1
        self._count_rack(node_id, 1)

    def remove(self, node_id: NodeId) -> None:
        """Count a leadership that ends."""
        self._leaderships[node_id] -= 1
        self._count_rack(node_id, -1)

    def _is_alive(self, node_id: NodeId) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and not node.fenced

    def _count_rack(self, node_id: NodeId, by: int) -> None:
        node = self._nodes.get(node_id)
        if node is not None:
            self._rack_leaderships[node.rack] = self._rack_leaderships.get(node.rack, 0) + by

    def _burden(self, node_id: NodeId) -> tuple[bool, bool, int, int, int]:
        node = self._nodes[node_id]
        return (
            node.disk_full,
            node.yields_leadership,
            self._leaderships.get(node_id, 0),
            self._rack_leaderships.get(node.rack, 0),
            node_id,
        )


class Placement(NamedTuple):
    """The nodes of a stream, ascending ids each."""

    replicas: tuple[NodeId, ...]
    observers: tuple[NodeId, ...] = ()


def place(
    nodes: Sequence[NodeMetadata],
    load: Mapping[NodeId, int],
    count: int,
    holding: Sequence[NodeId] = (),
) -> tuple[NodeId, ...]:
    """Choose `count` of the nodes: as many racks as possible, then the least loaded.

    Returns ascending ids. A dead node is chosen only if there are too few live ones: the stream
    would lack a replica, or could not be created at all. Of the live ones, one whose disk is full,
    or that yields leaderships, is chosen only if there are too few others. load: how many copies
    each node holds already. holding: nodes that hold the stream, so that others are chosen, in
    other racks if possible.
    """
    remaining = [node for node in nodes if node.node_id not in holding]
    assert count <= len(remaining), "the caller has counted"
    chosen: list[NodeId] = []
    rack_used: dict[str, int] = {}
    for node in nodes:
        if node.node_id in holding:
            rack_used[node.rack] = rack_used.get(node.rack, 0) + 1
    for _ in range(count):
        best = min(
            remaining,
            key=lambda node: (
                node.fenced,
                node.disk_full,
                node.yields_leadership,
                rack_used.get(node.rack, 0),
                load.get(node.node_id, 0),
                node.node_id,
            ),
        )
        remaining.remove(best)
        chosen.append(best.node_id)
        rack_used[best.rack] = rack_used.get(best.rack, 0) + 1
    return tuple(sorted(chosen))


class Placer:
    """Places streams one after another, and counts those whose commands were not applied yet.

    Without that count, a thousand concurrent creations would all choose the same nodes.
    """

    __slots__ = ("_configured", "_pending", "_tables")

    def __init__(self, tables: Tables, configured: int) -> None:
        """configured: how many nodes the configuration lists, whether or not they have joined."""
        self._tables = tables
        self._configured = configured
        self._pending: dict[NodeId, int] = {}

    def place(self, replicas: int | None = None, observers: int = 0) -> Placement:
        """Nodes for a new stream; None: the default number. `settle` must follow.

        Raises InvalidRequestError for more copies than the cluster has nodes, UnavailableError
        while too few of them have joined.
        """
        nodes = list(self._tables.nodes.values())
        cluster_size = max(self._configured, len(nodes))
        if replicas is None:
            replicas = min(DEFAULT_REPLICAS, cluster_size)
        wanted = f"{replicas} replicas"
        if observers:
            wanted += f" and {observers} observers"
        if replicas + observers > cluster_size:
            has = "1 node" if cluster_size == 1 else f"{cluster_size} nodes"
            raise InvalidRequestError(f"{wanted} need as many nodes; the cluster has {has}")
        if replicas + observers > len(nodes):
            raise UnavailableError(
                f"{wanted} need as many nodes; only {len(nodes)} of {cluster_size} "
                "have joined: start the others, or ask for fewer replicas"
            )
        load = self._load()
        chosen = place(nodes, load, replicas)
        placement = Placement(chosen, place(nodes, load, observers, chosen))
        for node_id in (*placement.replicas, *placement.observers):
            self._pending[node_id] = self._pending.get(node_id, 0) + 1
        return placement

    def settle(self, placement: Placement) -> None:
        """Note that the command with this placement was applied or given up."""
        for node_id in (*placement.replicas, *placement.observers):
            self._pending[node_id] -= 1

    def observers_of(self, stream: StreamMetadata, count: int) -> tuple[NodeId, ...]:
        """The nodes of `count` observers of that stream: those that it has, as far as they suffice,
        and others. Raises InvalidRequestError if there are too few nodes."""
        replicas, kept = stream.target_replicas or stream.replicas, stream.observers[:count]
        holding = (*replicas, *kept)
        nodes = list(self._tables.nodes.values())
        free = sum(node.node_id not in holding for node in nodes)
        if count - len(kept) > free:
            raise InvalidRequestError(
                f"{len(replicas)} replicas and {count} observers need as many nodes; the cluster "
                f"has {len(nodes)}"
            )
        added = place(nodes, self._load(), count - len(kept), holding)
        return tuple(sorted((*kept, *added)))

    def _load(self) -> dict[NodeId, int]:
        return {
            node_id: self._tables.copy_count(node_id) + self._pending.get(node_id, 0)
            for node_id in self._tables.nodes
        }


def balancing_moves(
    tables: Tables,
    moves_max: int,
    *,
    without: Collection[StreamId] = (),
    pausing: Collection[NodeId] = (),
) -> list[tuple[StreamId, NodeId]]:
    """Leaderships to hand over, as (stream, new leader), until max − min ≤ 1 among alive nodes.

    A leadership goes to an ISR member only. If the busiest and the idlest node share no stream, a
    chain of hand-overs through other nodes has the same effect. Returns about `moves_max`, so that
    balancing never floods the metadata log; the next call continues. without: streams that stay
    where they are; their leaderships count. pausing: nodes that are left out.
    """
    load = {
        node.node_id: tables.leaderships.get(node.node_id, 0)
        for node in sorted(tables.nodes.values(), key=lambda node: node.node_id)
        if node.has_room and not (node.yields_leadership or node.node_id in pausing)
    }
    moves: list[tuple[StreamId, NodeId]] = []
    if not load or max(load.values()) - min(load.values()) <= 1:
        return moves
    movable = _movable_leaderships(tables, load, without)
    while len(moves) < moves_max:
        chain = _shortest_chain(load, movable)
        if not chain:
            break
        for source, target in chain:
            stream = tables.streams[next(iter(movable[source][target]))]
            moves.append((stream.id, target))
            for member in stream.isr:
                movable[source].get(member, {}).pop(stream.id, None)
        load[chain[0][0]] -= 1
        load[chain[-1][1]] += 1
    return moves


_Movable = dict[NodeId, dict[NodeId, dict[StreamId, None]]]


def _movable_leaderships(
    tables: Tables, load: Mapping[NodeId, int], without: Collection[StreamId]
) -> _Movable:
    """Streams by leader and by the node that could lead instead."""
    movable: _Movable = {node_id: {} for node_id in load}
    for stream_id in sorted(tables.streams):
        stream = tables.streams[stream_id]
        if stream.leader in load and stream_id not in without:
            for member in stream.isr:
                if member != stream.leader and member in load:
                    movable[stream.leader].setdefault(member, {})[stream_id] = None
    return movable


def _shortest_chain(load: Mapping[NodeId, int], movable: _Movable) -> list[tuple[NodeId, NodeId]]:
    """Hand-overs (from, to) that move one leadership off a busy node to one with 2 fewer."""
    for source in sorted(load, key=lambda node_id: (-load[node_id], node_id)):
        came_from: dict[NodeId, NodeId] = {source: source}
        waiting = deque([source])
        while waiting:
            node_id = waiting.popleft()
            if load[source] - load[node_id] >= 2:
                return _chain_to(node_id, came_from)
            for member, streams in movable[node_id].items():
                if streams and member not in came_from:
                    came_from[member] = node_id
                    waiting.append(member)
    return []


def _chain_to(node_id: NodeId, came_from: Mapping[NodeId, NodeId]) -> list[tuple[NodeId, NodeId]]:
    chain = []
    while came_from[node_id] != node_id:
        chain.append((came_from[node_id], node_id))
        node_id = came_from[node_id]
    chain.reverse()
    return chain
