"""The session codec: what is encoded is decoded, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.metadata.member.extension import is_extension_frame
from jetstream_server.metadata.raft.messages import decode as decode_raft
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.sessions.lease import Heartbeat
from jetstream_server.replication.sessions.session_messages import (
    REPORTS_MAX,
    Echo,
    Grant,
    LogEnd,
    Message,
    Ping,
    Reports,
    decode,
    encode,
)

SENDER = NodeId(7)
numbers = st.integers(0, 2**64 - 1)


def reports(incarnation: int, rows: list[tuple[int, int, int, int, bool]]) -> Reports:
    return Reports(
        incarnation,
        tuple(
            LogEnd(StreamId(stream), epoch, ReplicaReport(incarnation, last, end, damaged))
            for stream, epoch, last, end, damaged in rows
        ),
    )


rows = st.tuples(numbers, numbers, st.integers(-1, 2**63 - 1), numbers, st.booleans())
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Heartbeat, st.just(SENDER), numbers, numbers, numbers),
    st.builds(Grant, numbers, numbers, numbers),
    st.builds(Ping, numbers, numbers),
    st.builds(Echo, numbers, numbers, numbers),
    st.builds(reports, numbers, st.lists(rows, max_size=5)),
)


@given(messages)
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    frame = encode(message)
    assert decode(SENDER, frame) == message
    assert is_extension_frame(frame)


@given(messages, st.data())
def test_a_message_cut_short_or_with_something_after_it_is_refused(
    message: Message, data: st.DataObject
) -> None:
    frame = encode(message)
    shorter = frame[: data.draw(st.integers(0, len(frame) - 1))]
    for wrong in (shorter, frame + b"\0"):
        with pytest.raises(InvalidRequestError):
            decode(SENDER, wrong)


@given(st.binary(min_size=1, max_size=60))
def test_foreign_bytes_are_refused_or_read_exactly(data: bytes) -> None:
    try:
        message = decode(SENDER, data)
    except InvalidRequestError:
        return
    assert encode(message) == data


@given(messages)
def test_raft_and_its_passenger_never_take_each_others_frames(message: Message) -> None:
    with pytest.raises(InvalidRequestError):
        decode_raft(encode(message))


@pytest.mark.parametrize("kind", [b"\x01", b"\x09", b"\x45", b"\xff"])
def test_an_unknown_kind_is_refused(kind: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="unknown kind"):
        decode(SENDER, kind + bytes(16))


def test_a_full_report_fits_and_a_count_beyond_it_is_refused() -> None:
    row = (1, 2, 3, 4, False)
    full = encode(reports(5, [row] * REPORTS_MAX))
    assert len(decode(SENDER, full).log_ends) == REPORTS_MAX  # type: ignore[union-attr]
    count = (REPORTS_MAX + 1).to_bytes(4, "little")
    with pytest.raises(InvalidRequestError):
        decode(SENDER, full[:9] + count + full[13:] + full[-33:])


def test_a_heartbeat_is_the_senders_whatever_it_says() -> None:
    frame = encode(Heartbeat(NodeId(1), 5, 6, 7))
    assert decode(NodeId(2), frame) == Heartbeat(NodeId(2), 5, 6, 7)
