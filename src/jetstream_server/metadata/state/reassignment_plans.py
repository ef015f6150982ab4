"""Plans which streams to move where, to empty a node or to spread the replicas evenly.

A plan is a proposal: it changes nothing, and each move is a command of its own (ReassignStream). It
counts a stream that is already being moved as if it were on its target. Everything is a function of
applied metadata, and ties are broken by id.
"""

from __future__ import annotations

from jetstream_protocol.errors import NotFoundError, PreconditionFailedError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.model import NodeMetadata, StreamMetadata
from jetstream_server.metadata.state.placement import Placement
from jetstream_server.metadata.state.tables import Tables

Moves = dict[StreamId, Placement]
"""The nodes that each stream of the plan will have."""


def moves_off(tables: Tables, leaving: NodeId) -> Moves:
    """Move every replica and every observer of that node to another node. Raises NotFoundError, and
    PreconditionFailedError if a stream has no other node to go to."""
    if leaving not in tables.nodes:
        raise NotFoundError(f"node {leaving} is not part of this cluster")
    spread = _Spread(tables)
    moves: Moves = {}
    for stream in tables.streams_of(leaving):
        if leaving not in spread.of(stream):
            continue  # It is already being moved away.
        target = spread.best_target(stream, leaving)
        if target is None:
            raise PreconditionFailedError(
                f"{stream.full_name} has no other node to go to: start another node, or lower its "
                "number of replicas or observers first (jetstream stream reassign)"
            )
        moves[stream.id] = spread.move(stream, leaving, target)
    return moves


def check_removable(tables: Tables, leaving: NodeId) -> None:
    """Raise PreconditionFailedError for a node that is alive or not empty, and say what to do. The
    command RemoveNode refuses it in any case."""
    node = tables.nodes.get(leaving)
    if node is None:
        return
    if copies := tables.copy_count(leaving):
        raise PreconditionFailedError(
            f"node {leaving} holds replicas or observers of {copies} streams: move them first "
            f"(jetstream node decommission {leaving})"
        )
    if not node.fenced:
        raise PreconditionFailedError(f"node {leaving} is empty, and still alive: stop it first")


def balancing(tables: Tables) -> Moves:
    """Moves after which the most and the fewest replicas of a node differ by at most one, as far as
    racks allow."""
    spread = _Spread(tables)
    moves: Moves = {}
    while (move := spread.evening_move()) is not None:
        stream, source, target = move
        moves[stream.id] = spread.move(stream, source, target)
    return moves


class _Spread:
    """How many replicas each node holds, counting the moves of the plan."""

    def __init__(self, tables: Tables) -> None:
        self._nodes = tables.nodes
        self._load = dict.fromkeys(tables.nodes, 0)
        # The streams of each node that the plan has not moved.
        self._still: dict[NodeId, dict[StreamId, StreamMetadata]] = {}
        for stream in tables.streams.values():
            for node_id in self.of(stream):
                self._load[node_id] = self._load.get(node_id, 0) + 1
                self._still.setdefault(node_id, {})[stream.id] = stream

    def of(self, stream: StreamMetadata) -> tuple[NodeId, ...]:
        """The nodes that will hold it."""
        return (stream.target_replicas or stream.replicas) + stream.observers

    def best_target(self, stream: StreamMetadata, leaving: NodeId) -> NodeId | None:
        """The live node for this replica: in a rack that holds none if possible, then the one that
        holds least."""
        staying = [node_id for node_id in self.of(stream) if node_id != leaving]
        racks = [self._nodes[node_id].rack for node_id in staying if node_id in self._nodes]
        open_nodes = [
            node for node in self._nodes.values() if _takes_replicas(node, (*staying, leaving))
        ]
        if not open_nodes:
            return None
        best = min(
            open_nodes,
            key=lambda node: (racks.count(node.rack), self._load[node.node_id], node.node_id),
        )
        return best.node_id

    def evening_move(self) -> tuple[StreamMetadata, NodeId, NodeId] | None:
        """A replica of the fullest node that can give one, and the emptiest node that may take
        it."""
        live = [node.node_id for node in self._nodes.values() if _takes_replicas(node, ())]
        for source in sorted(live, key=lambda node_id: (-self._load[node_id], node_id)):
            for stream in self._still.get(source, {}).values():
                target = self.best_target(stream, source)
                if target is not None and self._evens(stream, source, target):
                    return stream, source, target
        return None

    def _evens(self, stream: StreamMetadata, source: NodeId, target: NodeId) -> bool:
        """Whether the move evens the load, with the stream on as many racks as before."""
        if self._load[source] - self._load[target] < 2:
            return False
        held = self.of(stream)
        after = [target if node_id == source else node_id for node_id in held]
        return len({self._rack(each) for each in after}) >= len({self._rack(each) for each in held})

    def _rack(self, node_id: NodeId) -> str:
        node = self._nodes.get(node_id)
        return node.rack if node is not None else ""

    def move(self, stream: StreamMetadata, source: NodeId, target: NodeId) -> Placement:
        """The nodes after the move, which is counted from now on."""
        for node_id in self.of(stream):
            self._still[node_id].pop(stream.id, None)
        self._load[source] -= 1
        self._load[target] += 1
        replicas = stream.target_replicas or stream.replicas
        return Placement(_moved(replicas, source, target), _moved(stream.observers, source, target))


def _moved(nodes: tuple[NodeId, ...], source: NodeId, target: NodeId) -> tuple[NodeId, ...]:
    return tuple(sorted(target if node_id == source else node_id for node_id in nodes))


def _takes_replicas(node: NodeMetadata, holding: tuple[NodeId, ...]) -> bool:
    return not node.fenced and not node.yields_leadership and node.node_id not in holding
