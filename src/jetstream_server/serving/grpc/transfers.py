"""Makes a stream's leader hand over, on this node or on another one."""

from __future__ import annotations

import asyncio

from jetstream_protocol.errors import NotLeaderError, UnavailableError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.hand_over import HandOver
from jetstream_server.serving.grpc.peers import Peers

HAND_OVER_SECONDS = 8.0
"""Longer than a live leader needs: the sum of the limits in hand_over.py."""


class Transfers:
    """Transfers by hand-over only. Callers that must force it propose transfer_leader."""

    def __init__(self, hand_overs: HandOver, peers: Peers, node_id: int) -> None:
        self._hand_overs = hand_overs
        self._peers = peers
        self._node_id = NodeId(node_id)

    async def transfer(
        self,
        stream: StreamMetadata,
        target: NodeId,
        *,
        forward: bool = True,
        urgent: bool = False,
    ) -> None:
        """Make the stream's leader hand over to that ISR member.

        forward: also if another node leads. urgent: see HandOver; it is found out here, too,
        because the leader may not have heard yet that it is to drain. Raises NotLeaderError,
        PreconditionFailedError, UnknownOutcomeError, and UnavailableError, also when the leader
        does not answer in time.
        """
        urgent = urgent or self._hand_overs.is_urgent(stream)
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                if stream.leader == self._node_id:
                    await self._hand_overs.hand_over(stream.id, target, urgent=urgent)
                elif forward and stream.leader != NO_NODE:
                    await self._peers.transfer_leader(
                        stream.leader, stream.id, target, urgent=urgent
                    )
                else:
                    raise NotLeaderError(f"node {self._node_id} does not lead {stream.full_name}")
        except TimeoutError:
            raise UnavailableError(
                f"node {stream.leader} did not hand {stream.full_name} over in time"
            ) from None
