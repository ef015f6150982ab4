"""Data-plane frames out of a byte stream, without I/O: buffers to fill in, frames out.

Small frames are cut out of a scratch buffer; the tail of a large one is received straight into
its own buffer, so that batches are copied at most once between the socket and their decoding.
The shape is that of asyncio.BufferedProtocol: `buffer()` says where to receive into, `received(n)`
that n bytes have arrived there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

from jetstream_protocol.frames import (
    PREFIX_BYTES,
    RESPONSE_BYTES_MAX,
    Prefix,
    decode_prefix,
)

SCRATCH_BYTES = 64 * 1024

# A bytearray that has not been set to zero: it is received into from end to end.
_unset = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


class Frame(NamedTuple):
    """`tail` is whole batches, back to back."""

    kind: int
    correlation: int
    head: bytes
    tail: bytearray | bytes


class FrameReader:
    """Raises InvalidRequestError from `received` for bytes that are not the protocol's."""

    def __init__(self) -> None:
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._begin = 0  # the bytes at [begin, end) of the scratch wait to be cut
        self._end = 0
        self._prefix: Prefix | None = None
        self._head = b""
        self._tail = bytearray()
        self._tail_filled = -1  # -1: not receiving a tail

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._tail_filled >= 0:
            return memoryview(self._tail)[self._tail_filled :]
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._end == len(self._scratch):
            self._make_room()
        return self._view[self._end :]

    @property
    def missing(self) -> int:
        """How many bytes the tail that is being received still lacks; 0 between tails."""
        return len(self._tail) - self._tail_filled if self._tail_filled >= 0 else 0

    def _make_room(self) -> None:
        """Move what waits to the front; a head may be as long as the scratch, hence the growth."""
        waiting = bytes(self._view[self._begin : self._end])
        if len(waiting) == len(self._scratch):
            self._view.release()
            self._scratch = bytearray(2 * len(waiting))
            self._view = memoryview(self._scratch)
        self._view[: len(waiting)] = waiting
        self._begin, self._end = 0, len(waiting)

    def received(self, count: int) -> Iterator[Frame]:
        """The frames completed by the `count` bytes just received."""
        if self._tail_filled >= 0:
            self._tail_filled += count
            if self._tail_filled < len(self._tail):
                return
            self._tail_filled = -1
            yield self._finished(self._tail)
        else:
            self._end += count
        while (frame := self._cut()) is not None:
            yield frame

    def _cut(self) -> Frame | None:
        """The next whole frame of the scratch, or None until more arrives."""
        if self._prefix is None:
            if self._end - self._begin < PREFIX_BYTES:
                return None
            prefix = self._view[self._begin : self._begin + PREFIX_BYTES]
            self._prefix = decode_prefix(prefix, RESPONSE_BYTES_MAX)
            self._begin += PREFIX_BYTES
        if self._end - self._begin < self._prefix.head_length:
            return None
        self._head = self._take(self._prefix.head_length)
        length = self._prefix.tail_length
        if self._end - self._begin >= length:
            return self._finished(self._take(length))
        self._tail = _unset(None, length)
        self._tail_filled = self._end - self._begin
        self._tail[: self._tail_filled] = self._take(self._tail_filled)
        return None

    def _take(self, length: int) -> bytes:
        taken = bytes(self._view[self._begin : self._begin + length])
        self._begin += length
        return taken

    def _finished(self, tail: bytearray | bytes) -> Frame:
        assert self._prefix is not None
        frame = Frame(self._prefix.kind, self._prefix.correlation, self._head, tail)
        self._prefix = None
        self._tail = bytearray()
        return frame
