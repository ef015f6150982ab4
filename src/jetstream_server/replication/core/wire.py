"""Converts between the messages of the cores (messages.py) and protobuf messages. Pure.

fixed_layout.py is the layout of the hot frames.
"""

from __future__ import annotations

from jetstream_protocol.errors import JetstreamError, from_proto
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.messages import (
    Answer,
    Diverging,
    FetchRequest,
    LeaderSnapshot,
    OutOfRange,
    Records,
    Refused,
)

POSITIONS_MAX = 500
"""Positions in one frame: it must fit in REQUEST_BYTES_MAX, and not occupy the leader for long."""


def position_to_proto(request: FetchRequest) -> pb.Positions.Position:
    position = pb.Positions.Position(
        stream_id=request.stream_id,
        leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_epoch=request.last_epoch,
        flushed_offset=request.flushed_offset,
        stream_epoch=request.stream_epoch,
        cannot_append=request.cannot_append,
    )
    if request.damaged is not None:
        position.damaged_start_offset, position.damaged_end_offset = request.damaged
    return position


def position_from_proto(
    position: pb.Positions.Position, follower: int, incarnation: int
) -> FetchRequest:
    """Decode. Follower and incarnation come from the connection, which has authenticated them."""
    damaged = None
    if position.HasField("damaged_start_offset"):
        damaged = position.damaged_start_offset, position.damaged_end_offset
    return FetchRequest(
        stream_id=StreamId(position.stream_id),
        follower=NodeId(follower),
        incarnation=incarnation,
        leader_epoch=position.leader_epoch,
        fetch_offset=position.fetch_offset,
        last_epoch=position.last_epoch,
        flushed_offset=position.flushed_offset,
        stream_epoch=position.stream_epoch,
        damaged=damaged,
        cannot_append=position.cannot_append,
    )


def answer_to_proto(answer: Answer) -> pb.Records.Part:
    """Encode a part of a frame. The bytes of `Records.slice` follow in the frame's tail."""
    request, snapshot = answer.request, answer.snapshot
    part = pb.Records.Part(
        stream_id=request.stream_id,
        leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_epoch=request.last_epoch,
        high_watermark=snapshot.high_watermark,
        log_start_offset=snapshot.log_start_offset,
        stream_epoch=snapshot.stream_epoch,
        tombstones_gone_below=snapshot.tombstones_gone_below,
    )
    match answer:
        case Records(slice=LogSlice() as found):
            part.length = found.length
        case Diverging():
            part.diverging_epoch = answer.epoch
            part.diverging_end_offset = answer.end_offset
        case OutOfRange():
            part.out_of_range = True
    return part


def part_to_proto(part: Answer | Refused) -> pb.Records.Part:
    """Encode an answer or a refusal."""
    if isinstance(part, Refused):
        return error_to_proto(part.request, part.error)
    return answer_to_proto(part)


def error_to_proto(request: FetchRequest, error: JetstreamError) -> pb.Records.Part:
    return pb.Records.Part(
        stream_id=request.stream_id,
        leader_epoch=request.leader_epoch,
        fetch_offset=request.fetch_offset,
        last_epoch=request.last_epoch,
        error=error.to_proto(),
    )


def part_from_proto(part: pb.Records.Part, follower: int, incarnation: int) -> Answer | Refused:
    """Decode an answer or a refusal."""
    answer = answer_from_proto(part, follower, incarnation)
    return Refused(answer.request, from_proto(part.error)) if part.HasField("error") else answer


def answer_from_proto(part: pb.Records.Part, follower: int, incarnation: int) -> Answer:
    """Decode the answer in a part without an error."""
    request = FetchRequest(
        stream_id=StreamId(part.stream_id),
        follower=NodeId(follower),
        incarnation=incarnation,
        leader_epoch=part.leader_epoch,
        fetch_offset=part.fetch_offset,
        last_epoch=part.last_epoch,
        flushed_offset=0,  # This field and the next are not compared with the request.
        stream_epoch=0,
    )
    snapshot = LeaderSnapshot(
        part.high_watermark, part.log_start_offset, part.stream_epoch, part.tombstones_gone_below
    )
    if part.out_of_range:
        return OutOfRange(request, snapshot)
    if part.HasField("diverging_epoch"):
        return Diverging(request, snapshot, part.diverging_epoch, part.diverging_end_offset)
    found = None
    if part.length:
        # The position in the leader's file does not matter to the follower.
        found = LogSlice("", 0, part.length, part.fetch_offset, part.fetch_offset)
    return Records(request, snapshot, found)
