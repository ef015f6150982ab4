"""Plans which streams to move where, to empty a node or to spread the replicas evenly.

A plan is a proposal: it changes nothing, and each move is a separate command (ReassignStream). It
counts a stream that is already being moved as if it were on its target. Everything is a function of
applied metadata, and ties are broken by id. Plans of many streams take a while: give them copies of
the mappings, on another thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jetstream_protocol.errors import NotFoundError, PreconditionFailedError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.placement import Placement
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables

Moves = dict[StreamId, Placement]
"""The nodes that each stream of the plan will have."""
NodesById = Mapping[NodeId, NodeMetadata]
StreamsById = Mapping[StreamId, StreamMetadata]


def moves_off(nodes: NodesById, streams: StreamsById, leaving: NodeId) -> Moves:
    """Move every replica and every observer of that node to another node. Raises NotFoundError, and
    PreconditionFailedError if a stream has no other node to go to."""
    if leaving not in nodes:
        raise NotFoundError(f"node {leaving} is not part of this cluster")
    spread = _Spread(nodes, streams)
    moves: Moves = {}
    for _, stream in sorted(streams.items()):
        if leaving not in _holders(stream):
            continue  # It is not there, or is already being moved away.
        targets = spread.targets(_holders(stream), leaving)
        if not targets:
            raise PreconditionFailedError(
                f"{stream.full_name} has no other node to go to: start another node, or lower its "
                "number of replicas or observers first (jetstream stream reassign)"
                f"{_full_nodes(nodes)}"
            )
        moves[stream.id] = spread.move(stream, leaving, spread.emptiest(targets))
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


def balancing(nodes: NodesById, streams: StreamsById) -> Moves:
    """Moves after which the most and the fewest replicas of a node differ by at most one, as far as
    racks allow."""
    spread = _Spread(nodes, streams)
    movable = _Movable(spread, streams)
    moves: Moves = {}
    while (move := movable.evening_move()) is not None:
        stream_id, source, target = move
        movable.remove(streams[stream_id])
        moves[stream_id] = spread.move(streams[stream_id], source, target)
    return moves


class _Spread:
    """How many replicas each node holds, counting the moves of the plan."""

    def __init__(self, nodes: NodesById, streams: StreamsById) -> None:
        self.nodes = nodes
        self.load = dict.fromkeys(nodes, 0)
        for stream in streams.values():
            for node_id in _holders(stream):
                self.load[node_id] = self.load.get(node_id, 0) + 1

    def targets(self, held: tuple[NodeId, ...], leaving: NodeId) -> list[NodeId]:
        """The live nodes with room that the replica on `leaving` may go to: in a rack that holds
        none if possible. held: the nodes that hold the stream."""
        racks = [self.nodes[each].rack for each in held if each != leaving and each in self.nodes]
        others = [
            node
            for node in self.nodes.values()
            if node.node_id not in held and not node.yields_leadership and node.has_room
        ]
        fewest = min((racks.count(node.rack) for node in others), default=0)
        return [node.node_id for node in others if racks.count(node.rack) == fewest]

    def emptiest(self, node_ids: Iterable[NodeId]) -> NodeId:
        return min(node_ids, key=lambda node_id: (self.load[node_id], node_id))

    def rack_count(self, node_ids: Iterable[NodeId]) -> int:
        return len({self.nodes[each].rack for each in node_ids if each in self.nodes})

    def move(self, stream: StreamMetadata, source: NodeId, target: NodeId) -> Placement:
        """The nodes after the move, which is counted from now on."""
        self.load[source] -= 1
        self.load[target] += 1
        replicas = stream.target_replicas or stream.replicas
        return Placement(
            _holders_after_move(replicas, source, target),
            _holders_after_move(stream.observers, source, target),
        )


_Targets = frozenset[NodeId]


class _Movable:
    """The replicas that the plan may move, by their node and by the nodes that they may go to.

    Streams with the same targets are alike: whether one of them can move now depends on the loads
    alone. So thousands of them are looked at as one, before every move.
    """

    def __init__(self, spread: _Spread, streams: StreamsById) -> None:
        self._spread = spread
        self._live = [
            each.node_id
            for each in spread.nodes.values()
            if not (each.fenced or each.yields_leadership)
        ]
        # The streams of a group, ascending ids.
        self._groups: dict[NodeId, dict[_Targets, dict[StreamId, None]]] = {
            node_id: {} for node_id in self._live
        }
        self._targets: dict[tuple[tuple[NodeId, ...], NodeId], _Targets] = {}
        for stream_id, stream in sorted(streams.items()):
            held = _holders(stream)
            for source in held:
                if source in self._groups and (targets := self._targets_of(held, source)):
                    self._groups[source].setdefault(targets, {})[stream_id] = None

    def _targets_of(self, held: tuple[NodeId, ...], source: NodeId) -> _Targets:
        """Where the replica on `source` may go, with the stream on as many racks as before."""
        known = self._targets.get((held, source))
        if known is None:
            staying = [node_id for node_id in held if node_id != source]
            racks = self._spread.rack_count(held)
            known = self._targets[held, source] = frozenset(
                target
                for target in self._spread.targets(held, source)
                if self._spread.rack_count([*staying, target]) >= racks
            )
        return known

    def evening_move(self) -> tuple[StreamId, NodeId, NodeId] | None:
        """A replica of the fullest node that can give one, and the emptiest node that may take
        it."""
        load = self._spread.load
        for source in sorted(self._live, key=lambda node_id: (-load[node_id], node_id)):
            emptier = {node_id for node_id in self._live if load[source] - load[node_id] >= 2}
            able = [
                (next(iter(stream_ids)), targets)
                for targets, stream_ids in self._groups[source].items()
                if stream_ids and not targets.isdisjoint(emptier)
            ]
            if able:
                stream_id, targets = min(able, key=lambda each: each[0])
                return stream_id, source, self._spread.emptiest(targets)
        return None

    def remove(self, stream: StreamMetadata) -> None:
        """A stream is moved once in a plan."""
        held = _holders(stream)
        for node_id in held:
            targets = self._targets_of(held, node_id)
            self._groups.get(node_id, {}).get(targets, {}).pop(stream.id, None)


def _holders(stream: StreamMetadata) -> tuple[NodeId, ...]:
    """The nodes that will hold it."""
    return (stream.target_replicas or stream.replicas) + stream.observers


def _holders_after_move(
    nodes: tuple[NodeId, ...], source: NodeId, target: NodeId
) -> tuple[NodeId, ...]:
    return tuple(sorted(target if node_id == source else node_id for node_id in nodes))


def _full_nodes(nodes: NodesById) -> str:
    """What an error says of them; "": there are none."""
    full = sorted(node.node_id for node in nodes.values() if node.disk_full)
    return f"; nodes {full} have a full disk" if full else ""
