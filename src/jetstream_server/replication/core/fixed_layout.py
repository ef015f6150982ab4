"""The hot frames between replicas in a fixed layout: positions, and the leader's plain answers.

Every acknowledged message takes one of each for every follower. Whatever is rarer, such as errors,
divergence, damage and dropped streams, goes in protobuf messages (wire.py), on connections on which
both ends have stated in their hello that they know this layout, and all of it on others.

    FIXED_POSITIONS, for each stream:        FIXED_RECORDS, for each stream:

     0  u64 stream_id                         0  u64 stream_id
     8  i64 leader_epoch                      8  i64 leader_epoch
    16  i64 fetch_offset                     16  i64 fetch_offset
    24  i64 last_epoch                       24  i64 last_epoch
    32  i64 flushed_offset                   32  i64 high_watermark
    40  i64 stream_epoch                     40  i64 log_start_offset
                                             48  i64 stream_epoch
                                             56  i64 tombstones_gone_below
                                             64  u32 length
                                             68  u32 reserved: 0

Little-endian. The fields mean what those of the protobuf messages mean. The lengths of a frame's
answers are the length of its tail. Pure. Decoding raises InvalidRequestError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.messages import FetchRequest, LeaderSnapshot, Records
from jetstream_server.replication.core.wire import POSITIONS_MAX

ANSWERS_MAX = 256
"""Upper bound on the answers of one frame, whatever its layout."""

_POSITION = struct.Struct("<Qqqqqq")
_ANSWER = struct.Struct("<QqqqqqqqII")


def has_fixed_layout(request: FetchRequest) -> bool:
    """Whether the layout has room for everything that the position says."""
    return request.damaged is None and not request.cannot_append


def encode_positions(requests: Iterable[FetchRequest]) -> bytes:
    """requests: of `has_fixed_layout`."""
    return b"".join([
        _POSITION.pack(
            each.stream_id, each.leader_epoch, each.fetch_offset, each.last_epoch,
            each.flushed_offset, each.stream_epoch,
        )
        for each in requests
    ])  # fmt: skip


def decode_positions(head: bytes, follower: int, incarnation: int) -> list[FetchRequest]:
    """Follower and incarnation come from the connection, which has authenticated them."""
    if len(head) % _POSITION.size or len(head) > POSITIONS_MAX * _POSITION.size:
        raise InvalidRequestError(f"{len(head)} bytes are no positions")
    return [
        FetchRequest(
            StreamId(stream_id), NodeId(follower), incarnation, leader_epoch, fetch_offset,
            last_epoch, flushed_offset, stream_epoch,
        )
        for stream_id, leader_epoch, fetch_offset, last_epoch, flushed_offset, stream_epoch
        in _POSITION.iter_unpack(head)
    ]  # fmt: skip


def encode_answer(request: FetchRequest, snapshot: LeaderSnapshot, length: int) -> bytes:
    """One answer. length: of the batches that go with it."""
    return _ANSWER.pack(
        request.stream_id, request.leader_epoch, request.fetch_offset, request.last_epoch,
        snapshot.high_watermark, snapshot.log_start_offset, snapshot.stream_epoch,
        snapshot.tombstones_gone_below, length, 0,
    )  # fmt: skip


def decode_answers(head: bytes, tail_length: int, follower: int, incarnation: int) -> list[Records]:
    """tail_length: bytes of batches that came with the head."""
    if len(head) % _ANSWER.size or len(head) > ANSWERS_MAX * _ANSWER.size:
        raise InvalidRequestError(f"{len(head)} bytes are no answers")
    answers = []
    for fields in _ANSWER.iter_unpack(head):
        stream_id, leader_epoch, fetch_offset, last_epoch = fields[:4]
        length, reserved = fields[8:]
        if reserved:
            raise InvalidRequestError("an answer of a later layout")
        tail_length -= length
        request = FetchRequest(
            StreamId(stream_id), NodeId(follower), incarnation, leader_epoch, fetch_offset,
            last_epoch, 0, 0,  # These two are not compared with the request.
        )  # fmt: skip
        # The position in the leader's file does not matter to the follower.
        found = LogSlice("", 0, length, fetch_offset, fetch_offset) if length else None
        answers.append(Records(request, LeaderSnapshot(*fields[4:8]), found))
    if tail_length:
        raise InvalidRequestError("the answers' lengths are not that of what came with them")
    return answers
