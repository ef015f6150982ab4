"""The frame decoder: every sequence of frames, split anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frame_decoder import IN_PLACE_BYTES, FrameDecoder
from jetstream_protocol.frames import RESPONSE_BYTES_MAX, TAILED, Kind
from tests.support.frame_stream import feed

LONG = IN_PLACE_BYTES * 4
TAILS = st.binary(max_size=60) | st.sampled_from(
    [b"t" * IN_PLACE_BYTES, b"t" * (IN_PLACE_BYTES + 1), b"t" * (LONG + 1)]
)
FRAME = st.tuples(
    st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=40), st.just(b"")
) | st.tuples(
    st.sampled_from(sorted(TAILED)), st.integers(0, 2**32 - 1), st.binary(max_size=40), TAILS
)


@given(st.lists(FRAME, max_size=6), st.lists(st.integers(1, 2 * LONG), min_size=1))
def test_frames_come_out_as_they_went_in(
    sent: list[tuple[Kind, int, bytes, bytes]], steps: list[int]
) -> None:
    data = b"".join(frames.encode(k, c, head, len(tail)) + tail for k, c, head, tail in sent)
    decoder = FrameDecoder(RESPONSE_BYTES_MAX)
    found = feed(decoder, data, *steps)
    assert [(f.kind, f.correlation, f.head, bytes(f.tail)) for f in found] == sent
    assert decoder.is_empty


@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_or_waited_on_never_misread(data: bytes, step: int) -> None:
    try:
        for frame in feed(FrameDecoder(RESPONSE_BYTES_MAX), data, step):
            assert len(frame.head) + len(frame.tail) <= 300
    except InvalidRequestError:
        pass
