"""The `Reads` service: the same batches as the data plane, for clients that only speak gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_server.api.answers import answer, next_offset
from jetstream_server.api.grpc_loop import Call
from jetstream_server.api.outstanding import ANSWER_BYTES_MAX, Outstanding
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.refusals import bounded
from jetstream_server.replication.fetch import WAIT_MS_LIMIT, Fetches, FetchPosition
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

QUERIES_MAX = 100_000
_QUERIES_PER_TURN = 100
"""About 2 ms of the event loop; then others have their turn."""


class ReadsService(api_pb2_grpc.ReadsServicer):
    """Serves from the replicas of this node; committed records only (design 8)."""

    def __init__(
        self,
        replicas: Replicas,
        fetches: Fetches,
        authorize: Authorize,
        outstanding: Outstanding,
    ) -> None:
        self._replicas = replicas
        self._fetches = fetches
        self._authorize = authorize
        self._outstanding = outstanding
        self._listing = asyncio.Lock()
        self._decoding = asyncio.Lock()

    def _readable(self, stream: Any) -> Replica:
        replica = self._replicas.resolve(stream)
        self._authorize(ANONYMOUS, Operation.READ, replica.stream.full_name)
        return replica

    async def Fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        replica = self._readable(request.stream)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=min(request.bytes_max, ANSWER_BYTES_MAX),
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        found = await self._fetches.fetch(replica, position)
        if found is not None:
            held = await self._outstanding.reserve(call.peer, found.length)
            call.when_ended(partial(self._outstanding.release, held))
        decoding = self._decoding if request.decode else None
        response = await answer(replica, found, position.offset, decoding)
        response.out_of_sync = self._fetches.is_out_of_sync(replica)
        return response

    async def Consume(
        self, request: pb.ConsumeRequest, call: Call
    ) -> AsyncIterator[pb.FetchResponse]:
        replica = self._readable(request.stream)
        offset = request.offset
        last_epoch = request.last_epoch if request.HasField("last_epoch") else None
        decoding = self._decoding if request.decode else None
        while True:
            position = FetchPosition.checked(
                offset=offset,
                last_epoch=last_epoch,
                bytes_max=min(request.bytes_max, ANSWER_BYTES_MAX),
                bytes_min=1,
                wait_ms_max=WAIT_MS_LIMIT,
            )
            found = await self._fetches.fetch(replica, position)
            if found is None:
                continue
            held = await self._outstanding.reserve(call.peer, found.length, None)
            try:
                response = await answer(replica, found, offset, decoding)
                response.out_of_sync = self._fetches.is_out_of_sync(replica)
                yield response  # Resumed once the transport has taken it.
            finally:
                self._outstanding.release(held)
            offset = next_offset(response, found)
            last_epoch = None  # Checked once: what this server sends next follows from it.

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, call: Call
    ) -> pb.ListOffsetsResponse:
        if len(request.queries) > QUERIES_MAX:
            raise InvalidRequestError(f"at most {QUERIES_MAX} queries in one call")
        results: list[pb.ListOffsetsResponse.Result] = []
        for start in range(0, len(request.queries), _QUERIES_PER_TURN):
            async with self._listing:  # However many calls there are, one turn at a time.
                queries = request.queries[start : start + _QUERIES_PER_TURN]
                results += map(self._list_offset, queries)
                await asyncio.sleep(0)
        return pb.ListOffsetsResponse(results=results)

    def _list_offset(self, query: pb.ListOffsetsRequest.Query) -> pb.ListOffsetsResponse.Result:
        try:
            replica = self._readable(query.stream)
            if query.WhichOneof("position") != "earliest":
                # Only the leader knows where the log ends now.
                replica = self._replicas.resolve_led(query.stream)
            offset = _resolve(replica, query)
        except JetstreamError as error:
            return pb.ListOffsetsResponse.Result(error=bounded(error))
        return pb.ListOffsetsResponse.Result(
            stream_id=replica.stream.id,
            offset=offset,
            leader_epoch=replica.stream.leader_epoch,
        )


def _resolve(replica: Replica, query: pb.ListOffsetsRequest.Query) -> int:
    """The offset a query asks for; the high watermark where no record is late enough."""
    replica.check_readable()
    position = query.WhichOneof("position")
    if position == "earliest":
        return replica.log.log_start_offset
    if position == "latest":
        return replica.high_watermark
    if position == "timestamp_us":
        found = replica.log.offset_for_timestamp(query.timestamp_us)
        return replica.high_watermark if found is None else min(found[0], replica.high_watermark)
    raise InvalidRequestError("a query needs a position: earliest, latest or timestamp_us")
