"""The fixed layout of positions and records: it says what the protobuf messages say, and refuses
what it cannot read."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.fixed_layout import (
    ANSWERS_MAX,
    decode_answers,
    decode_positions,
    encode_answer,
    encode_positions,
    has_fixed_layout,
)
from jetstream_server.replication.core.messages import FetchRequest, LeaderSnapshot, Records
from jetstream_server.replication.core.wire import (
    POSITIONS_MAX,
    answer_from_proto,
    answer_to_proto,
    position_from_proto,
    position_to_proto,
)

FOLLOWER, INCARNATION = 2, 77
STREAM_IDS = st.integers(0, 2**64 - 1).map(StreamId)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
LENGTHS = st.integers(0, 2**32 - 1)
POSITION_BYTES, ANSWER_BYTES = 48, 72

REQUESTS = st.builds(
    FetchRequest,
    STREAM_IDS, st.just(NodeId(FOLLOWER)), st.just(INCARNATION),
    *[NUMBERS] * 5,
)  # fmt: skip
SNAPSHOTS = st.builds(LeaderSnapshot, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@given(st.lists(REQUESTS, max_size=5))
def test_positions_say_the_same_in_both_layouts(requests: list[FetchRequest]) -> None:
    assert all(map(has_fixed_layout, requests))
    fixed = decode_positions(encode_positions(requests), FOLLOWER, INCARNATION)
    protobuf = [
        position_from_proto(position_to_proto(each), FOLLOWER, INCARNATION) for each in requests
    ]
    assert fixed == protobuf == requests


@given(st.lists(st.tuples(REQUESTS, SNAPSHOTS, LENGTHS), max_size=5))
def test_answers_say_the_same_in_both_layouts(
    sent: list[tuple[FetchRequest, LeaderSnapshot, int]],
) -> None:
    total = sum(length for _, _, length in sent)
    head = b"".join(encode_answer(*each) for each in sent)
    fixed = decode_answers(head, total, FOLLOWER, INCARNATION)
    parts = [
        answer_to_proto(Records(request, snapshot, slice_of(length)))
        for request, snapshot, length in sent
    ]
    assert fixed == [answer_from_proto(part, FOLLOWER, INCARNATION) for part in parts]
    with pytest.raises(InvalidRequestError):
        decode_answers(head, total + 1, FOLLOWER, INCARNATION)


def slice_of(length: int) -> LogSlice | None:
    return LogSlice("", 0, length, 0, 0) if length else None


@given(st.binary(max_size=400), LENGTHS)
def test_any_bytes_are_decoded_or_refused(head: bytes, tail_length: int) -> None:
    with suppress(InvalidRequestError):
        assert encode_positions(decode_positions(head, FOLLOWER, INCARNATION)) == head
    with suppress(InvalidRequestError):
        answers = decode_answers(head, tail_length, FOLLOWER, INCARNATION)
        again = [
            encode_answer(each.request, each.snapshot, each.slice.length if each.slice else 0)
            for each in answers
        ]
        assert b"".join(again) == head


@pytest.mark.parametrize("length", [1, POSITION_BYTES - 1, (POSITIONS_MAX + 1) * POSITION_BYTES])
def test_what_is_not_positions_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequestError, match="no positions"):
        decode_positions(bytes(length), FOLLOWER, INCARNATION)


@pytest.mark.parametrize("length", [1, ANSWER_BYTES + 1, (ANSWERS_MAX + 1) * ANSWER_BYTES])
def test_what_is_not_answers_is_refused(length: int) -> None:
    with pytest.raises(InvalidRequestError, match="no answers"):
        decode_answers(bytes(length), 0, FOLLOWER, INCARNATION)


def test_an_answer_of_a_later_layout_is_refused() -> None:
    head = bytes(ANSWER_BYTES - 4) + struct.pack("<I", 1)
    with pytest.raises(InvalidRequestError, match="later layout"):
        decode_answers(head, 0, FOLLOWER, INCARNATION)
