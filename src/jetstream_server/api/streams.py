"""The `Streams` service: create, describe, list, alter, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jetstream_protocol import subjects
from jetstream_protocol.errors import NotLeaderError, StorageFullError, UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import api_pb2_grpc, common_pb2
from jetstream_protocol.types import NO_NODE
from jetstream_server.api.convert import config_from_proto, leaderless_state, stream_to_proto
from jetstream_server.api.grpc_loop import Call
from jetstream_server.api.peers import Peers, was_forwarded
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.metadata.alteration import StreamAlteration
from jetstream_server.metadata.log import MetadataLog
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.compaction import status_of
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

DAMAGED_MAX = 100

CreateStream = Callable[[str, str, dict[str, Any], bool], Awaitable[tuple[StreamMetadata, bool]]]
"""(name, subject, config, allow_same_name) -> (stream, created): created in the metadata."""
Confirm = Callable[[int], Awaitable[None]]
"""(stream id): returns once this node, its leader, has its subscription confirmed by NATS."""


class StreamsService(api_pb2_grpc.StreamsServicer):
    """Authorises, checks the request's form, and hands over; the registry decides."""

    def __init__(
        self,
        metadata: MetadataLog,
        replicas: Replicas,
        authorize: Authorize,
        create_stream: CreateStream,
        alteration: StreamAlteration,
        confirm: Confirm,
        peers: Peers,
        node_id: int,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._authorize = authorize
        self._create_stream = create_stream
        self._alteration = alteration
        self._confirm = confirm
        self._peers = peers
        self._node_id = node_id
        self._listing = asyncio.Lock()

    async def CreateStream(
        self, request: pb.CreateStreamRequest, call: Call
    ) -> pb.CreateStreamResponse:
        self._authorize(ANONYMOUS, Operation.CREATE, f"{request.name}@{request.subject}")
        subjects.check_name(request.name)
        subjects.check_pattern(request.subject)
        if request.config.group:
            subjects.check_name(request.config.group)
        if self._replicas.full_reason:
            # It could not be appended to, and the metadata needs the room that is left.
            raise StorageFullError(self._replicas.full_reason)
        stream, created = await self._create_stream(
            request.name,
            request.subject,
            config_from_proto(request.config),
            request.allow_same_name,
        )
        if stream.leader == NO_NODE:
            raise UnavailableError(f"stream {stream.name!r} exists, but has no leader; try again")
        if stream.leader == self._node_id:
            await self._confirm(stream.id)
        elif was_forwarded(call):
            raise NotLeaderError(f"node {stream.leader} leads stream {stream.name!r}; try again")
        else:
            await self._peers.create_stream(stream.leader, request)
        return pb.CreateStreamResponse(stream=stream_to_proto(stream), created=created)

    async def DescribeStream(
        self, request: pb.DescribeStreamRequest, call: Call
    ) -> pb.DescribeStreamResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.DESCRIBE, stream.full_name)
        if request.registry_only:
            known = pb.StreamDescription(stream=stream_to_proto(stream))
            return pb.DescribeStreamResponse(description=known)
        if stream.leader == NO_NODE:
            description = pb.StreamDescription(
                stream=stream_to_proto(stream),
                state=leaderless_state(stream, self._metadata.registry),
            )
            return pb.DescribeStreamResponse(description=description)
        replica = self._replicas.resolve_led(common_pb2.StreamRef(id=stream.id))
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
            hand_overs=counters.hand_overs,
            hand_over_gap_us=counters.hand_over_gap_us,
            progress=_progress(replica),
            damaged=_damaged(replica),
            compaction=_compaction(replica) if replica.stream.was_compacted else None,
        )
        return pb.DescribeStreamResponse(description=description)

    async def ListStreams(
        self, request: pb.ListStreamsRequest, call: Call
    ) -> pb.ListStreamsResponse:
        self._authorize(ANONYMOUS, Operation.DESCRIBE, "*")
        registry = self._metadata.registry
        if request.feeding_subject:
            subjects.check_literal(request.feeding_subject)
            streams = registry.feeding(request.feeding_subject)
        else:
            streams = sorted(registry.streams.values(), key=lambda s: (s.name, s.subject))
        async with self._listing:  # However many ask, one in a turn: 5 µs a stream.
            answer = pb.ListStreamsResponse(
                streams=map(stream_to_proto, streams), revision=registry.revision
            )
            await asyncio.sleep(0)
        return answer

    async def DeleteStream(
        self, request: pb.DeleteStreamRequest, call: Call
    ) -> pb.DeleteStreamResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.DELETE, stream.full_name)
        await self._metadata.propose({"op": "delete_stream", "stream_id": stream.id})
        return pb.DeleteStreamResponse()

    async def AlterStream(
        self, request: pb.AlterStreamRequest, call: Call
    ) -> pb.AlterStreamResponse:
        stream = self._replicas.stream_of(request.stream)
        self._authorize(ANONYMOUS, Operation.ALTER, stream.full_name)
        epoch = request.stream_epoch if request.HasField("stream_epoch") else None
        altered = await self._alteration.alter(stream, config_from_proto(request.config), epoch)
        return pb.AlterStreamResponse(stream=stream_to_proto(altered))


def _compaction(replica: Replica) -> pb.Compaction:
    status = status_of(replica)
    state = status.state
    return pb.Compaction(
        cleaned_to=state.cleaned_to,
        dirty_bytes=status.dirty_bytes,
        clean_bytes=status.clean_bytes,
        ended_at_us=state.ended_at_us,
        duration_us=state.duration_us,
        bytes_before=state.bytes_before,
        bytes_after=state.bytes_after,
        records_removed=state.records_removed,
        tombstones=state.tombstones,
    )


def _damaged(replica: Replica) -> list[pb.DamagedRange]:
    """What the leader's disk has lost, and the first of what each follower's has."""
    damaged = [
        pb.DamagedRange(
            node_id=replica.node_id, start_offset=bad.start_offset, end_offset=bad.end_offset
        )
        for bad in replica.log.damage.ranges[:DAMAGED_MAX]
    ]
    leadership = replica.leadership
    for node_id in replica.stream.replicas:
        if leadership is not None and node_id != replica.node_id:
            first = leadership.damaged_of(node_id)
            if first is not None:
                damaged.append(
                    pb.DamagedRange(node_id=node_id, start_offset=first[0], end_offset=first[1])
                )
    return damaged


def _progress(replica: Replica) -> list[pb.ReplicaProgress]:
    """How far each follower has come."""
    leadership = replica.leadership
    if leadership is None:
        return []
    return [
        pb.ReplicaProgress(node_id=node_id, offset=leadership.position_of(node_id))
        for node_id in replica.stream.replicas
        if node_id != replica.node_id
    ]
