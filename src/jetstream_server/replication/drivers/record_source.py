"""Reads records of a stream from another node, for a log that has lost some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from jetstream_protocol.errors import from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.net.frame_connection import Dial, FrameConnection
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.net.node_link import NodeIdentity, connect, greet

ANSWER_SECONDS: Final = 10.0
FETCH_BYTES: Final = 4 * 1024 * 1024


class RecordSource:
    """One connection; see `reading_from`."""

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection

    async def fetch(
        self, stream_id: int, offset: int, last_epoch: int
    ) -> tuple[pb.DataFetchResponse, bytes]:
        """Fetch committed batches from the one that holds `offset` on, or from the first after a
        gap; none if that node's log does not reach so far. last_epoch: of the record before.

        Raises OSError, EOFError, TimeoutError, and the errors of the other node.
        """
        request = pb.DataFetchRequest(
            stream=common_pb2.StreamRef(id=stream_id),
            offset=offset,
            bytes_max=FETCH_BYTES,
            last_epoch=last_epoch,
        )
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._connection.send(Kind.FETCH, 0, request)
            frame = await self._connection.read_any(Kind.FETCH_REPLY)
        head = decode_head(frame, pb.DataFetchResponse)
        if head.HasField("error"):
            raise from_proto(head.error)
        return head, bytes(frame.tail)


@asynccontextmanager
async def reading_from(
    dial: Dial, node_id: int, address: tuple[str, int], identity: NodeIdentity
) -> AsyncIterator[RecordSource]:
    """Connect. Raises the errors of `fetch`, and UnauthenticatedError."""
    connection = await connect(dial, address)
    try:
        await greet(connection, identity, node_id, fetches=True)
        yield RecordSource(connection)
    finally:
        connection.close()
