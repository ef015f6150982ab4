"""Handing leaderships over wherever they are: by the leader itself, here or on another node."""

from __future__ import annotations

import asyncio

from jetstream_protocol.errors import NotLeaderError, UnavailableError
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.api.peers import Peers
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.hand_over import HandOvers

HAND_OVER_SECONDS = 8.0
"""More than a leader takes that is alive: the bounds of hand_over.py together."""


class Transfers:
    """`gracefully`, or not at all: whoever insists then changes the metadata himself."""

    def __init__(self, hand_overs: HandOvers, peers: Peers, node_id: int) -> None:
        self._hand_overs = hand_overs
        self._peers = peers
        self._node_id = NodeId(node_id)

    async def gracefully(
        self, stream: StreamMetadata, target: NodeId, *, forward: bool = True
    ) -> None:
        """Have the stream's leader hand over to that ISR member.

        forward: also when that is another node. Raises NotLeaderError, PreconditionFailedError,
        UnknownOutcomeError; UnavailableError also when the leader does not answer in time.
        """
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                if stream.leader == self._node_id:
                    await self._hand_overs.give(stream.id, target)
                elif forward and stream.leader != NO_NODE:
                    await self._peers.transfer_leader(stream.leader, stream.id, target)
                else:
                    raise NotLeaderError(f"node {self._node_id} does not lead {stream.full_name}")
        except TimeoutError:
            raise UnavailableError(
                f"node {stream.leader} did not hand {stream.full_name} over in time"
            ) from None
