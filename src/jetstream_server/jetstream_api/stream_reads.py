"""Reads streams for the JetStream API, wherever they are: here if this node leads, else from their
leader, so that a client reads what it has just published. Without a leader, a replica of this node
that is current enough serves what it has.

The caller's rights have been checked before: other nodes are asked in this node's name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import JetstreamError, UnavailableError, from_proto
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NO_NODE, NodeId, StreamId, WallUs
from jetstream_server.consumers.manager import Consumers
from jetstream_server.jetstream_api.answers import StreamState
from jetstream_server.log.subject_index import Last
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.subjects import committed_subjects
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.grpc.read_answers import answer
from jetstream_server.serving.grpc.reads_service import SUBJECTS_MAX, resolve_anywhere, subjects_of
from jetstream_server.serving.grpc.streams_service import description_of
from jetstream_server.serving.long_poll import FetchPosition, LongPoll

_ATTEMPTS: Final = 4
_PAUSE_SECONDS: Final = 0.3
"""Between attempts, while a leadership moves. Clients wait for an answer for 5 s."""
_FIRST_SECONDS: Final = 2.0
"""For the time of a stream's first record."""

PURGE: Final = "STREAM.PURGE"
"""What nodes ask the leader of a stream for, as they ask it about consumers."""

PurgeHere = Callable[[Replica, int], Awaitable[int]]

_Query = pb.ListOffsetsRequest.Query
_Found = TypeVar("_Found")


class StreamReads:
    """identity: the caller of all reads."""

    def __init__(
        self,
        registry: Registry,
        replicas: ReplicaManager,
        fetches: LongPoll,
        peers: Peers,
        node_id: int,
        identity: Identity,
        consumers: Consumers,
    ) -> None:
        self._registry = registry
        self._replicas = replicas
        self._fetches = fetches
        self._peers = peers
        self._node_id = NodeId(node_id)
        self._identity = identity
        self._consumers = consumers
        self._sorting = asyncio.Lock()
        """Subjects are sorted for one request at a time: there may be millions."""

    async def state(self, stream: StreamMetadata) -> StreamState:
        """What the leader knows of the stream. Raises JetstreamError."""
        described = await self._ask(stream, self._describe_here, self._peers.describe_stream)
        if described.end_unknown:
            raise UnavailableError(f"the leader of {stream.full_name} does not know its end yet")
        start, end = described.log_start_offset, described.high_watermark
        first_us = await self._first_us(stream, start) if start < end else None
        last_us = described.last_append_us if described.HasField("last_append_us") else None
        return StreamState(
            log_start_offset=start,
            high_watermark=end,
            size_bytes=described.size_bytes,
            first_us=first_us,
            last_us=WallUs(last_us) if last_us else None,
            subjects=described.subjects if described.HasField("subjects") else None,
            consumers=described.consumers,
        )

    async def _describe_here(self, replica: Replica) -> pb.StreamDescription:
        return description_of(replica, self._consumers)

    async def _first_us(self, stream: StreamMetadata, start: int) -> WallUs | None:
        """When the first record was appended; None: nobody knows at present, for example because it
        is in the lake, and the store is away."""
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                (first,) = await self._resolve(stream, _Query(offset=start))
        except (TimeoutError, UnavailableError):
            return None
        return WallUs(first.append_timestamp) if first.append_timestamp else None

    async def last_of_subjects(self, stream: StreamMetadata, subjects: Sequence[str]) -> list[int]:
        """The offsets of the last records on these subjects, ascending, by the stream's index of
        subjects. Raises JetstreamError: PreconditionFailedError without an index."""
        found = await self._resolve(stream, *(_Query(last_of_subject=each) for each in subjects))
        return sorted({each.offset for each in found if each.offset >= 0})

    async def last_offsets_here(
        self, stream: StreamMetadata, patterns: Sequence[str]
    ) -> tuple[list[int], int]:
        """The offsets of the last records on the subjects of any of these patterns, ascending, by
        the index of subjects; and the end of what was committed then. Raises NotLeaderError,
        PreconditionFailedError, UnavailableError."""
        replica = self._replicas.led_replica_of(stream)
        end = replica.high_watermark
        found = [committed_subjects(replica, each) for each in patterns or ("",)]
        async with self._sorting:
            offsets = await asyncio.to_thread(_offsets_of, found)
        return offsets, end

    async def subjects(
        self,
        stream: StreamMetadata,
        pattern: str,
        offset: int,
        count: int,
        *,
        only_live: bool = False,
    ) -> tuple[list[str], int]:
        """The subjects that match a pattern, sorted, from `offset` in that list on, and how many
        there are. only_live: without those whose last record is a tombstone. Raises JetstreamError:
        PreconditionFailedError without an index."""
        found: list[str] = []
        total = 0
        while len(found) < count:
            request = pb.ListSubjectsRequest(
                stream=common_pb2.StreamRef(id=stream.id),
                pattern=pattern,
                offset=offset + len(found),
                limit=min(SUBJECTS_MAX, count - len(found)),
                only_live=only_live,
            )
            page = await self._subjects(stream, request)
            found += [each.subject for each in page.subjects]
            total = page.total
            if not page.subjects:
                break
        return found, total

    async def purge(self, stream: StreamMetadata, offset: int, here: PurgeHere) -> int:
        """Have the leader remove the records below `offset`, and return where the log begins then.
        Raises JetstreamError."""

        async def there(node_id: NodeId, stream_id: StreamId) -> int:
            body = json.dumps({"offset": offset}).encode()
            answer = await self._peers.ask_consumers(node_id, stream_id, PURGE, "", body)
            return int(bounded_json.loads(answer)["log_start_offset"])

        return await self._ask(stream, lambda replica: here(replica, offset), there)

    async def _subjects(
        self, stream: StreamMetadata, request: pb.ListSubjectsRequest
    ) -> pb.ListSubjectsResponse:
        async def here(replica: Replica) -> pb.ListSubjectsResponse:
            async with self._sorting:
                return await subjects_of(replica, request)

        async def there(node_id: NodeId, _: StreamId) -> pb.ListSubjectsResponse:
            found: pb.ListSubjectsResponse = await self._peers.ask(node_id, request)
            return found

        return await self._ask(stream, here, there)

    async def bounds(self, stream: StreamMetadata) -> tuple[int, int]:
        """Log start offset and high watermark. Raises JetstreamError."""
        start, end = await self._resolve(stream, _Query(earliest=True), _Query(latest=True))
        return start.offset, end.offset

    async def offset_at(self, stream: StreamMetadata, at_us: WallUs) -> int:
        """The first offset that was appended at that time or later; the high watermark: none.
        Raises JetstreamError."""
        (found,) = await self._resolve(stream, _Query(timestamp_us=at_us))
        return int(found.offset)

    async def fetch(self, stream: StreamMetadata, offset: int, bytes_max: int) -> pb.FetchResponse:
        """Whole committed batches from `offset` on, at least one if there is any. Raises
        JetstreamError: OffsetOutOfRangeError below the log start, too."""
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(id=stream.id), offset=offset, bytes_max=bytes_max
        )

        async def fetch_here(replica: Replica) -> pb.FetchResponse:
            position = FetchPosition.checked(
                offset=offset, last_epoch=None, bytes_max=bytes_max, bytes_min=1, wait_ms_max=0
            )
            found = await self._fetches.fetch(replica, position, self._identity)
            return (await answer(self._fetches, replica, found, position)).response

        async def fetch_there(node_id: NodeId, _: StreamId) -> pb.FetchResponse:
            found: pb.FetchResponse = await self._peers.ask(node_id, request)
            return found

        return await self._ask(stream, fetch_here, fetch_there)

    async def _resolve(
        self, stream: StreamMetadata, *queries: pb.ListOffsetsRequest.Query
    ) -> list[pb.ListOffsetsResponse.Result]:
        for query in queries:
            query.stream.CopyFrom(common_pb2.StreamRef(id=stream.id))

        async def resolve_here(replica: Replica) -> list[pb.ListOffsetsResponse.Result]:
            lake = self._fetches.lake
            found = [await resolve_anywhere(replica, query, lake) for query in queries]
            return [
                pb.ListOffsetsResponse.Result(offset=offset, append_timestamp=appended_us)
                for offset, appended_us in found
            ]

        async def resolve_there(
            node_id: NodeId, _: StreamId
        ) -> list[pb.ListOffsetsResponse.Result]:
            request = pb.ListOffsetsRequest(queries=queries)
            results = list((await self._peers.ask(node_id, request)).results)
            for each in results:
                if each.HasField("error"):
                    raise from_proto(each.error)
            return results

        return await self._ask(stream, resolve_here, resolve_there)

    async def _ask(
        self,
        stream: StreamMetadata,
        here: Callable[[Replica], Awaitable[_Found]],
        there: Callable[[NodeId, StreamId], Awaitable[_Found]],
    ) -> _Found:
        """Ask the leader, and again while a leadership moves."""

        async def attempt() -> _Found:
            # Perhaps altered since: the leader may be another one.
            current = self._registry.stream_of(common_pb2.StreamRef(id=stream.id))
            if current.leader == self._node_id:
                return await here(self._replicas.led_replica_of(current))
            if current.leader == NO_NODE:
                return await here(self._replicas.replica_of(current))
            return await there(current.leader, current.id)

        return await until_settled(attempt, _ATTEMPTS)


async def until_settled(attempt: Callable[[], Awaitable[_Found]], attempts: int) -> _Found:
    """What an attempt returns; again while its error says so, as while a leadership moves.
    Raises the JetstreamError of the last one."""
    for attempts_left in reversed(range(attempts)):
        try:
            return await attempt()
        except JetstreamError as error:
            if not error.retriable or not attempts_left:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def _offsets_of(found: Sequence[Iterator[tuple[bytes, Last]]]) -> list[int]:
    """Blocks."""
    return sorted({last.offset for each in found for _, last in each})
