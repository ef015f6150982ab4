"""Tells what of a stream is in the lake, and where its table is."""

from __future__ import annotations

import asyncio

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import NO_NODE
from jetstream_server.lake.reader import LakeReader
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.adopting import Adopting
from jetstream_server.replication.drivers.sweeping import Sweeping
from jetstream_server.replication.drivers.uploading import Uploading
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

STORE_SECONDS = 8.0
"""For the table's metadata: less than a call takes over HTTP."""
LACKS_LAKE = "this node has no lake: give every node lake.url"
OBJECTS_MAX = 1_000
"""Of an answer: some 150 bytes each."""


class Lakes:
    """reader, uploading, sweeping, adopting: None: this node has no lake."""

    def __init__(
        self,
        replicas: ReplicaManager,
        reader: LakeReader | None,
        uploading: Uploading | None,
        sweeping: Sweeping | None,
        adopting: Adopting | None,
    ) -> None:
        self._sweeping = sweeping
        self._adopting = adopting
        self._replicas = replicas
        self._reader = reader
        self._uploading = uploading

    @property
    def is_there(self) -> bool:
        return self._reader is not None

    async def adopt(self, replica: Replica, table_url: str) -> None:
        """See Adopting.adopt. Raises PreconditionFailedError if this node has no lake."""
        if self._adopting is None:
            raise PreconditionFailedError(LACKS_LAKE)
        await self._adopting.adopt(replica, table_url)

    async def sweep(self, replica: Replica, *, dry_run: bool) -> pb.SweepLakeResponse:
        """See Sweeping.sweep_now. Raises PreconditionFailedError if this node has no lake,
        UnavailableError if it cannot reach it."""
        if self._sweeping is None:
            raise PreconditionFailedError(LACKS_LAKE)
        try:
            found = await self._sweeping.sweep_now(replica, dry_run=dry_run)
        except (OSError, ValueError) as error:
            raise UnavailableError(f"the lake cannot be swept: {error}; try again") from error
        return pb.SweepLakeResponse(
            objects=[
                pb.UnneededObject(name=name, wait_us=wait_us)
                for name, wait_us in found[:OBJECTS_MAX]
            ]
        )

    async def describe(
        self, stream: StreamMetadata, with_metadata: bool
    ) -> pb.DescribeLakeResponse:
        """Raises UnavailableError, and without the metadata NotLeaderError, as only the leader
        knows how its copies go."""
        lake = stream.lake
        answer = pb.DescribeLakeResponse(start_offset=lake.start, end_offset=lake.end)
        if not with_metadata and stream.leader != NO_NODE:
            replica = self._replicas.led_replica_of(stream)
            answer.committed_offset = replica.high_watermark
            if self._uploading is not None:
                answer.problem = self._uploading.reason(replica)
            if self._sweeping is not None and not answer.problem:
                answer.problem = self._sweeping.problem(stream.id)
        if not lake.location:
            return answer
        if self._reader is None:
            raise UnavailableError(LACKS_LAKE)
        answer.table_url = self._reader.url_of(lake.location)
        if with_metadata:
            try:
                async with asyncio.timeout(STORE_SECONDS):
                    answer.metadata = await self._reader.metadata(lake.location)
            except (OSError, TimeoutError) as error:
                raise UnavailableError(f"the lake cannot be read: {error}; try again") from error
        return answer
