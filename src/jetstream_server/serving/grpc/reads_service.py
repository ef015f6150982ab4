"""The `Reads` service: the same batches as the data plane, for clients that use gRPC only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    JetstreamError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.subjects import check_pattern
from jetstream_protocol.types import WallUs
from jetstream_server.lake.reader import LakeReader
from jetstream_server.net.error_limits import bounded
from jetstream_server.origins import origin_of_peer
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.unreadable import InLakeError, in_lake_error, search_error
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.subjects import committed_subjects, last_committed
from jetstream_server.security.acl import Operation
from jetstream_server.security.audit import Refusals
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.lakes import LACKS_LAKE
from jetstream_server.serving.grpc.read_answers import answer
from jetstream_server.serving.grpc.response_memory import (
    ANSWER_BYTES_MAX,
    ROOM_SECONDS,
    Reservation,
    ResponseMemoryLimiter,
)
from jetstream_server.serving.grpc.turns import Turns
from jetstream_server.serving.lag import appended_us
from jetstream_server.serving.long_poll import LAKE_SECONDS, WAIT_MS_LIMIT, FetchPosition, LongPoll
from jetstream_server.serving.stream_access import StreamAccess

QUERIES_MAX = 100_000
SUBJECTS_MAX = 10_000
"""In one answer to ListSubjects."""
_QUERIES_PER_TURN = 25
"""Queries per turn: about 3 ms of the event loop if all of them look into a file."""


class ReadsService:
    """Serves committed records from the replicas of this node."""

    def __init__(
        self,
        replicas: ReplicaManager,
        fetches: LongPoll,
        access: StreamAccess,
        outstanding: ResponseMemoryLimiter,
    ) -> None:
        self._replicas = replicas
        self._fetches = fetches
        self._access = access
        self._outstanding = outstanding
        self._listing = Turns(_QUERIES_PER_TURN)
        self._decoding = asyncio.Lock()
        self._sorting = asyncio.Lock()

    async def Fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        replica = self._replicas.resolve(request.stream)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=self._bytes_max(request.bytes_max, call),
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        found = await self._fetches.fetch(replica, position, call.identity)
        if found is not None:
            await self._access.control.pace(call.identity, replica.stream, found.length)
            held = await self._reserve(call, found.length)
            call.when_ended(partial(self._outstanding.release, held))
        decoding = self._decoding if request.decode else None
        response, _ = await answer(self._fetches, replica, found, position, decoding)
        response.out_of_sync = self._fetches.is_out_of_sync(replica)
        return response

    async def Consume(
        self, request: pb.ConsumeRequest, call: Call
    ) -> AsyncIterator[pb.FetchResponse]:
        replica = self._replicas.resolve(request.stream)
        offset = request.offset
        last_epoch = request.last_epoch if request.HasField("last_epoch") else None
        decoding = self._decoding if request.decode else None
        while True:
            position = FetchPosition.checked(
                offset=offset,
                last_epoch=last_epoch,
                bytes_max=self._bytes_max(request.bytes_max, call),
                bytes_min=1,
                wait_ms_max=WAIT_MS_LIMIT,
            )
            found = await self._fetches.fetch(replica, position, call.identity)
            if found is None:
                continue
            await self._access.control.pace(call.identity, replica.stream, found.length)
            held = await self._reserve(call, found.length, None)
            try:
                response, last_epoch = await answer(
                    self._fetches, replica, found, position, decoding
                )
                response.out_of_sync = self._fetches.is_out_of_sync(replica)
                yield response  # Continues once the transport has taken it.
            finally:
                self._outstanding.release(held)
            offset = response.next_offset

    async def _reserve(
        self, call: Call, length: int, seconds: float | None = ROOM_SECONDS
    ) -> Reservation:
        holder = self._access.control.quota_holder(call.identity) or origin_of_peer(call.peer)
        return await self._outstanding.reserve(call.peer, length, seconds, principal=holder)

    def _bytes_max(self, wanted: int, call: Call) -> int:
        return min(self._access.control.bytes_max(call.identity, wanted), ANSWER_BYTES_MAX)

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, call: Call
    ) -> pb.ListOffsetsResponse:
        if len(request.queries) > QUERIES_MAX:
            raise InvalidRequestError(f"at most {QUERIES_MAX} queries in one call")
        with self._access.control.refusals(call.identity, Operation.READ) as refusals:
            searches: list[_Search] = []
            work = partial(self._list_offset, call.identity, refusals, searches)
            results = await self._listing.map(work, request.queries)
            for each in searches:
                await self._search_lake(each)
        return pb.ListOffsetsResponse(results=results)

    def _list_offset(
        self,
        identity: Identity,
        refusals: Refusals,
        searches: list[_Search],
        query: pb.ListOffsetsRequest.Query,
    ) -> pb.ListOffsetsResponse.Result:
        """searches: a result that the lake has to tell is added, and filled in later."""
        try:
            stream = self._access.resolve(identity, Operation.READ, query.stream, refusals)
            query.stream.CopyFrom(common_pb2.StreamRef(id=stream.id))
            replica = self._replicas.resolve(query.stream)
            if query.WhichOneof("position") != "earliest":
                # Only the leader knows the current log end.
                replica = self._replicas.resolve_led(query.stream)
            offset, appended_us = self._resolve(replica, query)
        except InLakeError:
            result = pb.ListOffsetsResponse.Result(stream_id=query.stream.id)
            searches.append(_Search(result, replica, query))
            return result
        except JetstreamError as error:
            return pb.ListOffsetsResponse.Result(error=bounded(error))
        return pb.ListOffsetsResponse.Result(
            stream_id=replica.stream.id,
            offset=offset,
            leader_epoch=replica.stream.leader_epoch,
            append_timestamp=appended_us,
        )

    async def _search_lake(self, search: _Search) -> None:
        """Fill in the result of a query about records that are only in the lake."""
        result, replica = search.result, search.replica
        try:
            offset, appended_us = await resolve_in_lake(replica, search.query, self._fetches.lake)
        except JetstreamError as error:
            result.error.CopyFrom(bounded(error))
            return
        result.offset, result.leader_epoch = offset, replica.stream.leader_epoch
        if appended_us is not None:
            result.append_timestamp = appended_us

    async def ListSubjects(
        self, request: pb.ListSubjectsRequest, call: Call
    ) -> pb.ListSubjectsResponse:
        replica = self._replicas.resolve_led(request.stream)
        async with self._sorting:
            return await subjects_of(replica, request)

    def _resolve(
        self, replica: Replica, query: pb.ListOffsetsRequest.Query
    ) -> tuple[int, int | None]:
        """Resolve. Raises UnavailableError for bad or unreadable bytes, which are then inspected,
        and while the log's beginning is missing."""
        try:
            return resolve_query(replica, query)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(error, CorruptBatchError):
                file = error.file
            elif isinstance(cause, OSError):
                file = cause.filename or ""
            else:
                raise  # It is known.
            replica.suspect_file(file, error)
            raise search_error(replica.stream, replica.node_id, cause) from error


async def subjects_of(replica: Replica, request: pb.ListSubjectsRequest) -> pb.ListSubjectsResponse:
    """A page of the subjects of a stream that this node leads. Sorts them all, in a thread."""
    if request.pattern:
        check_pattern(request.pattern)
    if request.offset < 0 or not 0 <= request.limit <= SUBJECTS_MAX:
        raise InvalidRequestError(f"offset: 0 or more; limit: at most {SUBJECTS_MAX}")
    found = committed_subjects(replica, request.pattern)
    if request.only_live:
        found = (each for each in found if not each[1].is_tombstone)
    ends = await asyncio.to_thread(sorted, found)
    page = ends[request.offset : request.offset + request.limit]
    subjects = [
        pb.ListSubjectsResponse.Subject(
            subject=subject.decode("utf-8", "replace"), last_offset=last.offset
        )
        for subject, last in page
    ]
    return pb.ListSubjectsResponse(subjects=subjects, total=len(ends))


@dataclass(frozen=True, slots=True)
class _Search:
    """A query that only the lake can answer. result: is filled in."""

    result: pb.ListOffsetsResponse.Result
    replica: Replica
    query: pb.ListOffsetsRequest.Query


async def resolve_anywhere(
    replica: Replica, query: pb.ListOffsetsRequest.Query, lake: LakeReader | None
) -> tuple[int, int | None]:
    """`resolve_query`, also of what is only in the lake. lake: None: this node cannot read it."""
    try:
        return resolve_query(replica, query)
    except InLakeError:
        return await resolve_in_lake(replica, query, lake)


async def resolve_in_lake(
    replica: Replica, query: pb.ListOffsetsRequest.Query, lake: LakeReader | None
) -> tuple[int, int | None]:
    """Resolve a query for which `resolve_query` has raised InLakeError. Raises UnavailableError."""
    mark = replica.stream.lake
    if lake is None:
        raise UnavailableError(LACKS_LAKE)
    try:
        async with asyncio.timeout(LAKE_SECONDS):
            if query.WhichOneof("position") == "offset":
                offset = max(query.offset, start_offset(replica.stream, replica.log))
                return offset, await lake.appended_at(mark.location, offset)
            found = await lake.offset_at(mark.location, query.timestamp_us)
    except TimeoutError:
        raise UnavailableError("the lake does not answer; try again") from None
    at = mark.end if found is None else found
    return max(at, start_offset(replica.stream, replica.log)), None


def resolve_query(replica: Replica, query: pb.ListOffsetsRequest.Query) -> tuple[int, int | None]:
    """The offset that a query asks for; the high watermark when no record is late enough. For a
    query by offset also the time at which the record was appended. Raises UnavailableError where
    the answer is the end of what is committed, and the leader does not know it yet; InLakeError
    where the lake has the answer (`resolve_anywhere`)."""
    replica.check_readable()
    position = query.WhichOneof("position")
    start, end = start_offset(replica.stream, replica.log), replica.high_watermark
    if position == "earliest":
        replica.check_start()
        return start, None
    if position == "offset":
        return min(max(start, query.offset), end), appended_us(replica, query.offset)
    if position == "last_of_subject":
        last = last_committed(replica, query.last_of_subject.encode())
        return -1 if last is None else last.offset, None
    if position == "timestamp_us":
        found = replica.log.offset_for_timestamp(WallUs(query.timestamp_us))
        log_start = replica.log.log_start_offset
        is_at_start = found[0] == log_start if found else log_start == replica.log.log_end_offset
        if start < log_start and is_at_start:
            raise in_lake_error(replica.stream, start)
        if found is not None and found[0] < end:
            return found[0], None
    elif position != "latest":
        raise InvalidRequestError(
            "a query needs a position: earliest, latest, timestamp_us, offset or last_of_subject"
        )
    if replica.leadership is not None:
        replica.leadership.check_end()
    return end, None
