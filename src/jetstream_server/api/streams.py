"""The `Streams` service: create, describe, list, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc import aio

from jetstream_protocol import subjects
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc
from jetstream_server.api.convert import config_from_proto, stream_to_proto
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.replicas import Replicas

_Context = aio.ServicerContext[Any, Any]
CreateStream = Callable[[str, str, dict[str, Any]], Awaitable[tuple[StreamMetadata, bool]]]
"""(name, subject, config) -> (stream, created): returns once the leader's subscription stands."""


class StreamsService(api_pb2_grpc.StreamsServicer):
    """Authorises, checks the request's form, and hands over; the registry decides."""

    def __init__(
        self,
        metadata: MetadataLog,
        replicas: Replicas,
        authorize: Authorize,
        create_stream: CreateStream,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._authorize = authorize
        self._create_stream = create_stream

    async def CreateStream(
        self, request: pb.CreateStreamRequest, context: _Context
    ) -> pb.CreateStreamResponse:
        self._authorize(ANONYMOUS, Operation.CREATE, f"{request.name}@{request.subject}")
        subjects.check_name(request.name)
        subjects.check_pattern(request.subject)
        if request.config.group:
            subjects.check_name(request.config.group)
        stream, created = await self._create_stream(
            request.name, request.subject, config_from_proto(request.config)
        )
        return pb.CreateStreamResponse(stream=stream_to_proto(stream), created=created)

    async def DescribeStream(
        self, request: pb.DescribeStreamRequest, context: _Context
    ) -> pb.DescribeStreamResponse:
        replica = self._replicas.resolve(request.stream)
        self._authorize(ANONYMOUS, Operation.DESCRIBE, replica.stream.full_name)
        log = replica.log
        counters = replica.counters
        description = pb.StreamDescription(
            stream=stream_to_proto(replica.stream),
            log_start_offset=log.log_start_offset,
            high_watermark=replica.high_watermark,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            size_bytes=log.size_bytes,
            segments=log.segment_count,
            state=f"offline: {log.offline_reason}" if log.offline_reason else "online",
            records_appended=counters.records_appended,
            acks_sent=counters.acks_sent,
            nacks_sent=counters.nacks_sent,
            acks_suppressed=counters.acks_suppressed,
            suspected_gaps=counters.suspected_gaps,
        )
        return pb.DescribeStreamResponse(description=description)

    async def ListStreams(
        self, request: pb.ListStreamsRequest, context: _Context
    ) -> pb.ListStreamsResponse:
        self._authorize(ANONYMOUS, Operation.DESCRIBE, "*")
        registry = self._metadata.registry
        if request.feeding_subject:
            subjects.check_literal(request.feeding_subject)
            streams = registry.feeding(request.feeding_subject)
        else:
            streams = sorted(registry.streams.values(), key=lambda s: (s.name, s.subject))
        return pb.ListStreamsResponse(
            streams=map(stream_to_proto, streams), revision=registry.revision
        )

    async def DeleteStream(
        self, request: pb.DeleteStreamRequest, context: _Context
    ) -> pb.DeleteStreamResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.DELETE, stream.full_name)
        await self._metadata.propose({"op": "delete_stream", "stream_id": stream.id})
        return pb.DeleteStreamResponse()
