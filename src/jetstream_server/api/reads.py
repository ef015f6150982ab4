"""The `Reads` service: the same batches as the data plane, for clients that only speak gRPC."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from jetstream_protocol import batch as batches
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.fetch import WAIT_MS_LIMIT, FetchPosition, fetch
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.residency import make_resident

_Context = aio.ServicerContext[Any, Any]
QUERIES_MAX = 100_000


class ReadsService(api_pb2_grpc.ReadsServicer):
    """Serves from the replicas of this node; committed records only (design 8)."""

    def __init__(self, replicas: Replicas, authorize: Authorize) -> None:
        self._replicas = replicas
        self._authorize = authorize

    def _readable(self, stream: Any) -> Replica:
        replica = self._replicas.resolve(stream)
        self._authorize(ANONYMOUS, Operation.READ, replica.stream.full_name)
        return replica

    async def Fetch(self, request: pb.FetchRequest, context: _Context) -> pb.FetchResponse:
        replica = self._readable(request.stream)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=request.bytes_max,
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        found = await fetch(replica, position)
        return await _response(replica, found, position.offset, request.decode)

    async def Consume(
        self, request: pb.ConsumeRequest, context: _Context
    ) -> AsyncIterator[pb.FetchResponse]:
        replica = self._readable(request.stream)
        offset = request.offset
        last_epoch = request.last_epoch if request.HasField("last_epoch") else None
        while True:
            position = FetchPosition.checked(
                offset=offset,
                last_epoch=last_epoch,
                bytes_max=request.bytes_max,
                bytes_min=1,
                wait_ms_max=WAIT_MS_LIMIT,
            )
            found = await fetch(replica, position)
            if found is not None:
                yield await _response(replica, found, offset, request.decode)
                offset = found.next_offset
                last_epoch = None  # Checked once: what this server sends next follows from it.

    async def ListOffsets(
        self, request: pb.ListOffsetsRequest, context: _Context
    ) -> pb.ListOffsetsResponse:
        if len(request.queries) > QUERIES_MAX:
            raise InvalidRequestError(f"at most {QUERIES_MAX} queries in one call")
        return pb.ListOffsetsResponse(results=[self._list_offset(q) for q in request.queries])

    def _list_offset(self, query: pb.ListOffsetsRequest.Query) -> pb.ListOffsetsResponse.Result:
        try:
            replica = self._readable(query.stream)
            if query.WhichOneof("position") != "earliest":
                # Only the leader knows where the log ends now.
                replica = self._replicas.resolve_led(query.stream)
            offset = _resolve(replica, query)
        except JetstreamError as error:
            return pb.ListOffsetsResponse.Result(error=error.to_proto())
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


async def _response(
    replica: Replica, found: LogSlice | None, offset: int, decode: bool
) -> pb.FetchResponse:
    response = pb.FetchResponse(
        stream_id=replica.stream.id,
        log_start_offset=replica.log.log_start_offset,
        high_watermark=replica.high_watermark,
        leader_epoch=replica.stream.leader_epoch,
    )
    if found is not None:
        data = await _read(found)
        if decode:
            response.messages.extend(_messages(data, offset, found.path))
        else:
            response.batches = data
    return response


async def _read(found: LogSlice) -> bytes:
    """The bytes of a slice, without blocking the loop on a cold disk."""
    fd = os.open(found.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        await make_resident(fd, found.position, found.length)
        return os.pread(fd, found.length, found.position)
    finally:
        os.close(fd)


def _messages(data: bytes, offset: int, path: str) -> list[pb.Message]:
    """The records of whole batches from `offset` on."""
    messages = []
    for batch in batches.iterate(data, file=path):
        rows = zip(
            batch.offsets(),
            batch.timestamps(),
            batch.subjects(),
            batch.keys(),
            batch.values(),
            batch.header_blocks(),
            strict=True,
        )
        messages += [
            pb.Message(
                offset=at, timestamp_us=time, subject=subject, key=key, value=value,
                header_block=block,
            )
            for at, time, subject, key, value, block in rows
            if at >= offset
        ]  # fmt: skip
    return messages
