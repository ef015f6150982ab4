"""What of a stream is in the lake."""

from __future__ import annotations

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.values.checks import check_text
from jetstream_client.values.types import StreamLake, StreamLike, UnneededObject
from jetstream_protocol.generated import api_pb2 as pb

LIST_SECONDS = 3700.0
"""All that is in a folder of the store is listed. The server bears with the store for an hour."""


class AsyncLake(AsyncMethods):
    """A part of `AsyncClient`."""

    async def adopt_lake(self, stream: StreamLike, table_url: str) -> None:
        """Make a table of the lake that a lost cluster has left the one of a new stream, which has
        `lake` and is `restoring`. table_url: of its metadata, or of its stream's folder. Raises
        InvalidRequestError for what is no such table, PreconditionFailedError for another stream,
        StreamNotFoundError, UnavailableError."""
        check_text("the table's URL", table_url)
        await self._calls.call(
            pb.AdoptLakeRequest(stream=wire.to_ref(stream), table_url=table_url),
            what="taking over a table of the lake",
            changes=True,
            timeout=LIST_SECONDS,
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

    async def sweep_lake(
        self, stream: StreamLike, *, dry_run: bool = False
    ) -> tuple[UnneededObject, ...]:
        """Delete from a stream's folder in the lake what its table has not needed for the grace
        time, as its leader does by itself from time to time. dry_run: delete nothing. Returns what
        the table does not need: the 1,000 objects that go first. Raises StreamNotFoundError,
        UnavailableError."""
        answer: pb.SweepLakeResponse = await self._calls.call(
            pb.SweepLakeRequest(stream=wire.to_ref(stream), dry_run=dry_run),
            what="sweeping the lake",
            changes=not dry_run,
            timeout=LIST_SECONDS,
        )
        return tuple(UnneededObject(each.name, each.wait_us / 1e6) for each in answer.objects)
