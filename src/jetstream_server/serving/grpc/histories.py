"""The last hour, for callers of any node: of a node, of a stream's replica, or of a cursor."""

from __future__ import annotations

from jetstream_protocol.errors import NotFoundError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.cursors.store import CURSORS
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.peers import Peers, was_forwarded
from jetstream_server.serving.history import History, Key
from jetstream_server.serving.stream_access import StreamAccess


class Histories:
    """Checks the caller's rights, and asks the node that knows. The first node does both: a call
    that another node has forwarded is only answered."""

    def __init__(
        self,
        history: History,
        registry: Registry,
        access: StreamAccess,
        peers: Peers,
        node_id: int,
    ) -> None:
        self._history = history
        self._registry = registry
        self._access = access
        self._peers = peers
        self._node_id = NodeId(node_id)

    async def answer(
        self, request: pb.DescribeHistoryRequest, call: Call
    ) -> pb.DescribeHistoryResponse:
        """Raises the errors of StreamAccess.resolve, PermissionDeniedError, UnavailableError."""
        asked = pb.DescribeHistoryRequest()
        asked.CopyFrom(request)
        node_id = self._node_that_knows(asked, call.identity)
        if node_id == self._node_id or was_forwarded(call):
            return self._known_here(asked, call.identity)
        answer: pb.DescribeHistoryResponse = await self._peers.ask(node_id, asked)
        self._hide(answer, call.identity)
        return answer

    def _node_that_knows(self, asked: pb.DescribeHistoryRequest, identity: Identity) -> NodeId:
        if asked.HasField("stream"):
            stream = self._access.resolve(identity, Operation.DESCRIBE, asked.stream)
            asked.stream.Clear()
            asked.stream.id = stream.id  # Not another stream of that name.
            return stream.leader if stream.leader != NO_NODE else self._alive(stream.replicas)
        if asked.cursor:
            log = self._registry.find(CURSORS, "")
            if log is None:
                return self._node_id
            if log.leader == NO_NODE:
                raise UnavailableError("the cursors have no leader now; try again")
            return log.leader
        control = self._access.control
        if control.applies_to(identity):
            control.check(identity, Operation.CLUSTER_DESCRIBE)
        if not asked.HasField("node_id"):
            return self._node_id
        if asked.node_id not in self._registry.nodes:
            raise NotFoundError(f"there is no node {asked.node_id}")
        return NodeId(asked.node_id)

    def _alive(self, replicas: tuple[NodeId, ...]) -> NodeId:
        """One that may answer; this one, if it is among them."""
        nodes = self._registry.nodes
        alive = [each for each in replicas if each in nodes and not nodes[each].fenced]
        if not alive:
            raise UnavailableError("no node with a replica of the stream answers; try again")
        return self._node_id if self._node_id in alive else alive[0]

    def _known_here(
        self, asked: pb.DescribeHistoryRequest, identity: Identity
    ) -> pb.DescribeHistoryResponse:
        prefix = _prefix_of(asked)
        found = self._history.found(lambda key: key[: len(prefix)] == prefix)
        answer = pb.DescribeHistoryResponse(
            node_id=self._node_id,
            times_us=self._history.times,
            series=[_series(key, values) for key, values in found.items()],
        )
        self._hide(answer, identity)
        return answer

    def _hide(self, answer: pb.DescribeHistoryResponse, identity: Identity) -> None:
        """Leave out cursors in streams that the caller may not read, and in deleted ones."""
        control = self._access.control
        if not control.applies_to(identity):
            return
        kept = [each for each in answer.series if self._may_see(each, identity)]
        del answer.series[:]
        answer.series.extend(kept)

    def _may_see(self, series: pb.DescribeHistoryResponse.Series, identity: Identity) -> bool:
        if series.name != "lag":
            return True
        stream = self._registry.streams.get(StreamId(series.stream_id))
        control = self._access.control
        return stream is not None and control.allows(identity, Operation.READ, stream)


def _prefix_of(asked: pb.DescribeHistoryRequest) -> Key:
    if asked.HasField("stream"):
        return ("stream", asked.stream.id)
    return ("cursor", asked.cursor) if asked.cursor else ("node",)


def _series(key: Key, values: list[float]) -> pb.DescribeHistoryResponse.Series:
    stream_id = key[-2] if len(key) > 2 else 0
    return pb.DescribeHistoryResponse.Series(
        name=str(key[-1]), stream_id=int(stream_id), values=values
    )
