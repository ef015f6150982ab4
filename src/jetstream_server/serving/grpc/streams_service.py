"""The `Streams` service: create, describe, list, alter, purge, pause, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import structlog

from jetstream_protocol import stream_names, subjects
from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.errors import (
    JetstreamError,
    NotLeaderError,
    PreconditionFailedError,
    StorageFullError,
    UnavailableError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.clocks import WallClock
from jetstream_server.consumers.manager import Consumers
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.cluster import ClusterSettings
from jetstream_server.metadata.state.commands import (
    ACK_CLUSTER_LEVEL,
    SCHEMA_LEVEL,
    DeleteStream,
    SetSchema,
    SetStreamAccess,
)
from jetstream_server.metadata.state.operations import check_feature
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.core.log_config import active_key_id
from jetstream_server.replication.core.unreadable import is_readable
from jetstream_server.replication.drivers.compaction import status_of
from jetstream_server.replication.drivers.replica_changes import ReplicaChanges
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.subjects import count_if_known
from jetstream_server.serving.grpc.convert import (
    config_from_proto,
    leaderless_state,
    stream_to_proto,
)
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.lakes import Lakes
from jetstream_server.serving.grpc.peers import Peers, until_known, was_forwarded
from jetstream_server.serving.grpc.purges import Purges, Visit
from jetstream_server.serving.grpc.restores import Restores
from jetstream_server.serving.produces import Produces
from jetstream_server.serving.stream_access import StreamAccess

logger = structlog.get_logger("jetstream.server")

DAMAGED_MAX = 100
EPOCH_SECONDS = 1.5
"""How long a call waits until this node has applied a change; in touch, that is milliseconds."""
_DESCRIBED_PER_TURN = 50
"""Streams per turn: about 2 ms of the event loop."""

Confirm = Callable[[int], Awaitable[None]]
"""(stream id): returns once NATS has confirmed the subscription of this node, its leader."""

Drained = Callable[[], Awaitable[None]]
"""Returns once every message that NATS has delivered to paused streams is stored."""


class StreamsService:
    """Checks the request. The registry decides. guard.py checks the caller's rights before."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        replicas: ReplicaManager,
        changes: ReplicaChanges,
        access: StreamAccess,
        streams: Streams,
        confirm: Confirm,
        drained: Drained,
        peers: Peers,
        node_id: int,
        wall_clock: WallClock,
        visit: Visit,
        produces: Produces,
        lakes: Lakes,
        consumers: Consumers,
    ) -> None:
        self._metadata = metadata
        self._lakes = lakes
        self._consumers = consumers
        self._replicas = replicas
        self._access = access
        self._streams = streams
        self._confirm = confirm
        self._drained = drained
        self._peers = peers
        self._node_id = node_id
        self._purges = Purges(metadata, changes, visit)
        self._restores = Restores(wall_clock)
        self._produces = produces
        self._listing = asyncio.Lock()

    async def CreateStream(
        self, request: pb.CreateStreamRequest, call: Call
    ) -> pb.CreateStreamResponse:
        stream_names.check_own_name(request.name)
        subjects.check_pattern(request.subject)
        if request.config.group:
            stream_names.check_own_name(request.config.group)
        config = request.config
        stream_names.check_partition(config.group, config.partition, config.partitions)
        self._streams.check_room(self._node_id, self._replicas.full_reason)
        self._check_lake(request.config)
        self._check_encryption(request.config, call)
        stream, created = await self._create(request, call)
        if stream.leader == NO_NODE:
            raise UnavailableError(f"stream {stream.name!r} exists, but has no leader; try again")
        if stream.leader == self._node_id:
            if self._replicas.full_reason:
                raise StorageFullError(self._replicas.full_reason)
            await self._confirm(stream.id)
        elif was_forwarded(call):
            raise NotLeaderError(f"node {stream.leader} leads stream {stream.name!r}; try again")
        else:
            try:
                await self._peers.ask(stream.leader, request)
            except StorageFullError as error:
                raise StorageFullError(
                    f"stream {stream.name!r} exists, but node {stream.leader} leads it: "
                    f"{error.message}"
                ) from error
        if not was_forwarded(call):
            await self._until_known(stream.id, stream.leader)
        return pb.CreateStreamResponse(stream=stream_to_proto(stream), created=created)

    async def _create(
        self, request: pb.CreateStreamRequest, call: Call
    ) -> tuple[StreamMetadata, bool]:
        """The stream, and whether it is new. A node has created it already, by its caller's rights
        and quota, and asks the leader: what is gone by now is not created again without them."""
        if call.identity.is_node:
            return await self._streams.existing(request.name, request.subject), False
        return await self._streams.create(
            request.name,
            request.subject,
            config_from_proto(request.config),
            request.allow_same_name,
            check_names=partial(self._access.check_new, call.identity, request),
            creator=self._access.control.quota_holder(call.identity),
            streams_max=self._access.control.quotas.streams,
            made_at=call.made_at,
        )

    async def _until_known(self, stream_id: StreamId, leader: NodeId = NO_NODE) -> None:
        """Return once the other nodes have heard of a change, as its leader has, or a moment
        later."""
        knowing = {NodeId(self._node_id), leader}
        await until_known(self._peers, self._metadata.registry, stream_id, knowing)

    async def DescribeStream(
        self, request: pb.DescribeStreamRequest, call: Call
    ) -> pb.DescribeStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        if stream.stream_epoch < request.min_stream_epoch:
            stream = await self._reach_epoch(stream, request.min_stream_epoch)
        if request.registry_only:
            known = pb.StreamDescription(stream=stream_to_proto(stream))
            return pb.DescribeStreamResponse(description=known)
        if stream.leader == NO_NODE:
            description = pb.StreamDescription(
                stream=stream_to_proto(stream),
                state=leaderless_state(stream, self._metadata.registry),
            )
            return pb.DescribeStreamResponse(description=description)
        replica = self._replicas.resolve_led(request.stream)
        return pb.DescribeStreamResponse(description=description_of(replica, self._consumers))

    async def _reach_epoch(self, stream: StreamMetadata, stream_epoch: int) -> StreamMetadata:
        """The stream once it is at that epoch here. Raises StreamNotFoundError, and
        UnavailableError after EPOCH_SECONDS."""
        changed = asyncio.Event()
        stop = self._metadata.watch(lambda _: changed.set())
        try:
            async with asyncio.timeout(EPOCH_SECONDS):
                while stream.stream_epoch < stream_epoch:
                    changed.clear()
                    await changed.wait()
                    stream = self._metadata.registry.stream_of(common_pb2.StreamRef(id=stream.id))
        except TimeoutError:
            raise UnavailableError(
                f"stream {stream.name!r} is at stream epoch {stream.stream_epoch} on node "
                f"{self._node_id}, not at {stream_epoch} yet"
            ) from None
        finally:
            stop()
        return stream

    async def ListStreams(
        self, request: pb.ListStreamsRequest, call: Call
    ) -> pb.ListStreamsResponse:
        registry = self._metadata.registry
        if request.feeding_subject:
            subjects.check_literal(request.feeding_subject)
            fed = registry.feeding(request.feeding_subject)
            streams = [stream for stream in fed if not stream.config.restoring]
        else:
            listed = (
                stream
                for stream in registry.streams.values()
                if request.include_internal or not stream.is_internal
            )
            streams = sorted(listed, key=lambda s: (s.name, s.subject))
        streams = [stream for stream in streams if self._access.knows(call.identity, stream)]
        # One call per turn, whatever the number of callers: 5 µs a stream.
        async with self._listing:
            answer = pb.ListStreamsResponse(
                streams=map(stream_to_proto, streams),
                revision=registry.revision,
                ack_cluster=ack_cluster(registry.settings),
            )
            await asyncio.sleep(0)
            if request.describe_led:
                led = [stream.id for stream in streams if stream.leader == self._node_id]
                for start in range(0, len(led), _DESCRIBED_PER_TURN):
                    answer.led.extend(self._descriptions(led[start : start + _DESCRIBED_PER_TURN]))
                    await asyncio.sleep(0)
        return answer

    def _descriptions(self, stream_ids: Sequence[int]) -> Iterator[pb.StreamDescription]:
        """The descriptions of streams that this node leads."""
        for stream_id in stream_ids:
            with suppress(JetstreamError):
                led = self._replicas.resolve_led(common_pb2.StreamRef(id=stream_id))
                yield description_of(led, self._consumers)

    async def DeleteStream(
        self, request: pb.DeleteStreamRequest, call: Call
    ) -> pb.DeleteStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        await self._metadata.propose(DeleteStream(stream_id=stream.id), made_at=call.made_at)
        await self._until_known(stream.id)
        return pb.DeleteStreamResponse()

    async def PurgeStream(
        self, request: pb.PurgeStreamRequest, call: Call
    ) -> pb.PurgeStreamResponse:
        replica = self._replicas.resolve_led(request.stream)
        offset = request.offset if request.HasField("offset") else None
        start = await self._purges.purge(replica, offset)
        return pb.PurgeStreamResponse(stream_id=replica.stream.id, log_start_offset=start)

    async def RestoreBatches(
        self, request: pb.RestoreBatchesRequest, call: Call
    ) -> pb.RestoreBatchesResponse:
        replica = self._replicas.resolve_led(request.stream)
        next_offset = await self._restores.restore(replica, request.batches)
        return pb.RestoreBatchesResponse(stream_id=replica.stream.id, next_offset=next_offset)

    async def ProduceBatch(
        self, request: pb.ProduceBatchRequest, call: Call
    ) -> pb.ProduceBatchResponse:
        answer: asyncio.Future[pb.ProduceBatchResponse] = asyncio.Future()

        def stored(base_offset: int, record_count: int, is_duplicate: bool) -> None:
            if not answer.done():
                answer.set_result(
                    pb.ProduceBatchResponse(
                        base_offset=base_offset, record_count=record_count, duplicate=is_duplicate
                    )
                )

        def refuse(error: JetstreamError) -> None:
            if not answer.done():
                answer.set_exception(error)

        asked = dataplane_pb2.ProduceRequest(
            stream=request.stream, subject=request.subject, ack_leader=request.ack_leader
        )
        self._produces.begin(asked, request.batch, call.identity, stored, refuse)
        delay_us = self._access.control.write_delay_us(call.identity, len(request.batch))
        found = await answer
        await asyncio.sleep(delay_us / 1e6)
        return found

    async def AlterStream(
        self, request: pb.AlterStreamRequest, call: Call
    ) -> pb.AlterStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        self._check_lake(request.config)
        self._check_encryption(request.config, call)
        epoch = request.stream_epoch if request.HasField("stream_epoch") else None
        altered = await self._streams.alter(
            stream, config_from_proto(request.config), epoch, call.made_at
        )
        if altered.leader not in (NO_NODE, self._node_id):
            await self._wait_for_leader(altered)
        await self._until_known(altered.id, altered.leader)
        return pb.AlterStreamResponse(stream=stream_to_proto(altered))

    async def _wait_for_leader(self, stream: StreamMetadata) -> None:
        """Return once the leader has the stream as it is here: it is the leader that serves
        publishers by the new settings. One that does not answer will have it, too."""
        try:
            await self._peers.reach_epoch(stream.leader, stream.id, stream.stream_epoch)
        except JetstreamError as error:
            logger.info("leader_not_waited_for", stream=stream.full_name, reason=error.message)

    def _check_encryption(self, config: pb.StreamConfig, call: Call) -> None:
        """Refuse a stream that must be encrypted if this node has no key. If another node with keys
        has asked, this one will give its leadership up (resignation.py)."""
        keys = self._replicas.log_config.keys
        must_encrypt = config.encryption == pb.ENCRYPTION_AES_256_GCM
        if must_encrypt and not (keys and keys.can_encrypt) and not was_forwarded(call):
            raise PreconditionFailedError(
                f"encryption 'aes-256-gcm' needs keys, and node {self._node_id} has none: give "
                "every node keys (encryption.key_file)"
            )

    def _check_lake(self, config: pb.StreamConfig) -> None:
        """**safety** Refuse a stream that relies on a lake where there is none, or where nothing
        would be copied: its disks would fill."""
        if config.lake and not self._lakes.is_there:
            raise PreconditionFailedError(
                f"node {self._node_id} has no lake: give every node lake.url"
            )
        keys = self._replicas.log_config.keys
        if config.lake and keys and keys.encrypts:
            raise PreconditionFailedError(
                f"node {self._node_id} encrypts what it stores, and the lake would hold it plain: "
                "no stream can have lake there"
            )

    async def SetStreamReadonly(
        self, request: pb.SetStreamReadonlyRequest, call: Call
    ) -> pb.SetStreamReadonlyResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        after = await self._set_access(call, stream, readonly=request.readonly)
        return pb.SetStreamReadonlyResponse(stream=stream_to_proto(after))

    async def PauseStream(
        self, request: pb.PauseStreamRequest, call: Call
    ) -> pb.PauseStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        after = await self._set_access(call, stream, paused=True)
        await self._drained()
        return pb.PauseStreamResponse(stream=stream_to_proto(after))

    async def ResumeStream(
        self, request: pb.ResumeStreamRequest, call: Call
    ) -> pb.ResumeStreamResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        after = await self._set_access(call, stream, paused=False)
        if after.leader == self._node_id:
            await self._confirm(after.id)
        return pb.ResumeStreamResponse(stream=stream_to_proto(after))

    async def SetSchema(self, request: pb.SetSchemaRequest, call: Call) -> pb.SetSchemaResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        check_feature(self._metadata.registry, SCHEMA_LEVEL, "a schema")
        result = await self._metadata.propose(
            SetSchema(
                stream_id=stream.id, schema=request.schema, schema_version=request.schema_version
            ),
            made_at=call.made_at,
        )
        await self._until_known(stream.id)
        return pb.SetSchemaResponse(schema_version=result["schema_version"])

    async def DescribeSchema(
        self, request: pb.DescribeSchemaRequest, call: Call
    ) -> pb.DescribeSchemaResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        return pb.DescribeSchemaResponse(
            schemas=stream.schemas, schema_version=stream.schema_version
        )

    async def DescribeLake(
        self, request: pb.DescribeLakeRequest, call: Call
    ) -> pb.DescribeLakeResponse:
        stream = self._metadata.registry.stream_of(request.stream)
        return await self._lakes.describe(stream, request.with_metadata)

    async def AdoptLake(self, request: pb.AdoptLakeRequest, call: Call) -> pb.AdoptLakeResponse:
        replica = self._replicas.resolve_led(request.stream)
        await self._lakes.adopt(replica, request.table_url)
        return pb.AdoptLakeResponse()

    async def SweepLake(self, request: pb.SweepLakeRequest, call: Call) -> pb.SweepLakeResponse:
        replica = self._replicas.resolve_led(request.stream)
        return await self._lakes.sweep(replica, dry_run=request.dry_run)

    async def _set_access(
        self,
        call: Call,
        stream: StreamMetadata,
        *,
        readonly: bool | None = None,
        paused: bool | None = None,
    ) -> StreamMetadata:
        """Change the access, and return the stream. Raises NotLeaderError, also if the leadership
        has moved meanwhile. When the call is repeated, the new leader has applied the change."""
        ref = common_pb2.StreamRef(id=stream.id)
        if stream.leader != NO_NODE:
            self._replicas.resolve_led(ref)
        await self._metadata.propose(
            SetStreamAccess(stream_id=stream.id, readonly=readonly, paused=paused),
            made_at=call.made_at,
        )
        after = self._metadata.registry.stream_of(ref)
        if after.leader != NO_NODE:
            self._replicas.resolve_led(ref)
        return after


def description_of(replica: Replica, consumers: Consumers) -> pb.StreamDescription:
    """The description of a stream that this node leads."""
    log = replica.log
    counters = replica.counters
    offline = replica.why_no_appends
    return pb.StreamDescription(
        stream=stream_to_proto(replica.stream),
        log_start_offset=start_offset(replica.stream, replica.log),
        high_watermark=replica.high_watermark,
        log_end_offset=log.log_end_offset,
        flushed_offset=log.flushed_offset,
        size_bytes=log.size_bytes,
        segments=log.segment_count,
        state=_state(replica, offline),
        records_appended=counters.records_appended,
        acks_sent=counters.acks_sent,
        nacks_sent=counters.nacks_sent,
        acks_suppressed=counters.acks_suppressed,
        suspected_gaps=counters.suspected_gaps,
        hand_overs=counters.hand_overs,
        hand_over_gap_us=counters.hand_over_gap_us,
        progress=_progress(replica),
        damaged=_damaged_ranges(replica),
        compaction=_compaction(replica) if replica.stream.was_compacted else None,
        last_append_us=(log.last_append_timestamp if log.log_end_offset else 0) or None,
        key_id=active_key_id(replica.stream.config, log),
        end_unknown=not _knows_end(replica),
        subjects=count_if_known(replica),
        consumers=consumers.count(replica.stream.id),
    )


def _knows_end(replica: Replica) -> bool:
    """Whether it knows what was committed. A log that cannot be read looks empty."""
    is_known = replica.leadership is None or replica.leadership.knows_end
    return is_known and is_readable(replica.check_readable)


def _state(replica: Replica, offline: str) -> str:
    if offline:
        return f"offline: {offline}"
    return f"not listening: {replica.why_unheard}" if replica.why_unheard else "online"


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


def _damaged_ranges(replica: Replica) -> list[pb.DamagedRange]:
    """The ranges that the leader's disk has lost, and the first range of each follower."""
    damaged = [
        pb.DamagedRange(
            node_id=replica.node_id, start_offset=bad.start_offset, end_offset=bad.end_offset
        )
        for bad in replica.log.damage.ranges[:DAMAGED_MAX]
    ]
    leadership = replica.leadership
    for node_id in replica.stream.copies:
        if leadership is not None and node_id != replica.node_id:
            first = leadership.damaged_of(node_id)
            if first is not None:
                damaged.append(
                    pb.DamagedRange(node_id=node_id, start_offset=first[0], end_offset=first[1])
                )
    return damaged


def _progress(replica: Replica) -> list[pb.ReplicaProgress]:
    """The progress of each follower, observers included."""
    leadership = replica.leadership
    if leadership is None:
        return []
    return [
        pb.ReplicaProgress(node_id=node_id, offset=leadership.position_of(node_id))
        for node_id in replica.stream.copies
        if node_id != replica.node_id
    ]


def ack_cluster(settings: ClusterSettings) -> str:
    """What all acks of the cluster carry; "": some may not."""
    if settings.feature_level < ACK_CLUSTER_LEVEL:
        return ""
    return mark_of(settings.cluster_id)
