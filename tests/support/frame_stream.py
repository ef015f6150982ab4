"""Bytes for a frame decoder, in pieces of any size."""

from __future__ import annotations

from itertools import cycle

from jetstream_protocol.frame_decoder import Frame, FrameDecoder


def feed(decoder: FrameDecoder, data: bytes, *steps: int) -> list[Frame]:
    """Give `data` as a socket would, in turn at most so many bytes at a time: into the decoder's
    room where it has one."""
    found = []
    for step in cycle(steps):
        if not data:
            return found
        room = decoder.room()
        count = min(step, len(data)) if room is None else min(len(room), step, len(data))
        assert count > 0
        if room is None:
            decoder.feed(data[:count])
        else:
            room[:count] = data[:count]
            decoder.filled(count)
        data = data[count:]
        while (frame := decoder.next()) is not None:
            found.append(frame)
    return found
