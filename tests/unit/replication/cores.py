"""A stream, its nodes and a log that is only numbers, for the tests of the replication cores."""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.logfiles.recorded import NO_EPOCH_LED, LedEpoch
from jetstream_protocol.types import LeaderEpoch, NodeId, StreamId
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.nodes import Addresses, NodeMetadata
from jetstream_server.metadata.state.setting_fields import FlushPolicy
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from jetstream_server.replication.core.messages import FetchRequest

LEADER = NodeId(0)


@dataclass
class Log:
    """A `LogView`."""

    log_end_offset: int = 0
    flushed_offset: int = 0
    log_start_offset: int = 0
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    tombstones_gone_below: int = 0
    copied_under: int = 0
    committed_below: int = 0
    offline_reason: str = ""
    is_damaged: bool = False
    led_epoch: LedEpoch = NO_EPOCH_LED
    lost_range: tuple[int, int] | None = None


def stream(
    isr: tuple[int, ...] = (0, 1, 2),
    *,
    minimum: int = 2,
    flush: FlushPolicy = "none",
    stream_epoch: int = 7,
    leader_epoch: int = 3,
    unflushed: tuple[int, ...] = (),
) -> StreamMetadata:
    return StreamMetadata(
        id=StreamId(1),
        name="orders",
        subject="orders",
        group="",
        config=StreamSettings(replicas=3, min_insync_replicas=minimum, flush=flush, acks="reply"),
        replicas=(NodeId(0), NodeId(1), NodeId(2)),
        leader=LEADER,
        leader_epoch=LeaderEpoch(leader_epoch),
        stream_epoch=stream_epoch,
        isr=tuple(map(NodeId, isr)),
        elr=(),
        created_at_us=0,
        unflushed=tuple(map(NodeId, unflushed)),
    )


def node(node_id: int, *, incarnation: int = 10, fenced: bool = False) -> NodeMetadata:
    return NodeMetadata(
        node_id=NodeId(node_id),
        incarnation=incarnation,
        fenced=fenced,
        draining=False,
        rack="",
        addresses=Addresses("a:1", "a:2", "a:3", "a:4"),
    )


def nodes(**fenced: bool) -> dict[NodeId, NodeMetadata]:
    return {NodeId(i): node(i, fenced=fenced.get(f"n{i}", False)) for i in range(3)}


def request(
    follower: int,
    fetch_offset: int,
    *,
    last_epoch: int = 3,
    leader_epoch: int = 3,
    incarnation: int = 10,
    flushed_offset: int = 0,
    stream_epoch: int = 7,
    stream_id: int = 1,
    cannot_append: bool = False,
) -> FetchRequest:
    return FetchRequest(
        stream_id=StreamId(stream_id),
        follower=NodeId(follower),
        incarnation=incarnation,
        leader_epoch=leader_epoch,
        fetch_offset=fetch_offset,
        last_epoch=last_epoch,
        flushed_offset=flushed_offset,
        stream_epoch=stream_epoch,
        cannot_append=cannot_append,
    )
