"""Data-plane frames: what one side encodes, the other reads, and any prefix is read or refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import PREFIX_BYTES, REQUEST_BYTES_MAX, Kind, decode_prefix, encode


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=200), st.binary())
def test_a_frame_is_cut_back_into_its_parts(
    kind: Kind, correlation: int, head: bytes, tail: bytes
) -> None:
    frame = encode(kind, correlation, head, len(tail)) + tail
    prefix = decode_prefix(frame, REQUEST_BYTES_MAX)
    assert (prefix.kind, prefix.correlation) == (kind, correlation)
    rest = frame[PREFIX_BYTES:]
    assert (rest[: prefix.head_length], rest[prefix.head_length :]) == (head, tail)
    assert prefix.tail_length == len(tail)


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES), st.integers(PREFIX_BYTES, 2**20))
def test_no_prefix_promises_more_than_the_bound(data: bytes, bytes_max: int) -> None:
    try:
        prefix = decode_prefix(data, bytes_max)
    except InvalidRequestError:
        return
    assert prefix.tail_length >= 0
    assert PREFIX_BYTES + prefix.head_length + prefix.tail_length <= bytes_max
