"""What of a stream is in the lake."""

from __future__ import annotations

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.values.types import StreamLake, StreamLike
from jetstream_protocol.generated import api_pb2 as pb

ADOPT_SECONDS = 90.0
"""The server starts a process, which reads the list of all objects."""


class AsyncLake(AsyncMethods):
    """A part of `AsyncClient`."""

    async def adopt_lake(self, stream: StreamLike, table_url: str) -> None:
        """Make a table of the lake that a lost cluster has left the one of a new stream, which has
        `lake` and is `restoring`. table_url: of its metadata, or of its stream's folder. Raises
        InvalidRequestError for what is no such table, PreconditionFailedError for another stream,
        StreamNotFoundError, UnavailableError."""
        await self._calls.call(
            pb.AdoptLakeRequest(stream=wire.to_ref(stream), table_url=table_url),
            what="taking over a table of the lake",
            changes=True,
            timeout=ADOPT_SECONDS,
        )

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
