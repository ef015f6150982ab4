"""What of a stream is in the lake."""

from __future__ import annotations

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.values.types import StreamLake, StreamLike
from jetstream_protocol.generated import api_pb2 as pb


class AsyncLake(AsyncMethods):
    """A part of `AsyncClient`."""

    async def describe_lake(self, stream: StreamLike) -> StreamLake:
        """Which records of a stream are in the lake, and where its table is. Raises
        StreamNotFoundError, UnavailableError."""
        answer: pb.DescribeLakeResponse = await self._calls.call(
            pb.DescribeLakeRequest(stream=wire.to_ref(stream)), what="looking into the lake"
        )
        return StreamLake(
            answer.start_offset,
            answer.end_offset,
            answer.committed_offset,
            answer.table_url,
            answer.problem,
        )
