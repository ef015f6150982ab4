"""The client's frame reader: every sequence of frames, split anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client._frames import SCRATCH_BYTES, FrameReader
from jetstream_protocol import frames
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import Kind

FRAME = st.tuples(
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=40),
    st.binary(max_size=60) | st.just(b"t" * (SCRATCH_BYTES + 1)),
)


@given(st.lists(FRAME, max_size=6), st.lists(st.integers(1, 2 * SCRATCH_BYTES), min_size=1))
def test_frames_come_out_as_they_went_in(
    sent: list[tuple[Kind, int, bytes, bytes]], steps: list[int]
) -> None:
    data = b"".join(frames.encode(k, c, head, len(tail)) + tail for k, c, head, tail in sent)
    reader = FrameReader()
    found = []
    turn = 0
    while data:
        buffer = reader.buffer()
        count = min(len(buffer), steps[turn % len(steps)], len(data))
        buffer[:count] = data[:count]
        found += [(f.kind, f.correlation, f.head, bytes(f.tail)) for f in reader.received(count)]
        data = data[count:]
        turn += 1
    assert found == sent


@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_refused_or_waited_on_never_misread(data: bytes, step: int) -> None:
    reader = FrameReader()
    try:
        while data:
            count = min(step, len(data), len(reader.buffer()))
            reader.buffer()[:count] = data[:count]
            for frame in reader.received(count):
                assert len(frame.head) + len(frame.tail) <= 300
            data = data[count:]
    except InvalidRequestError:
        pass
