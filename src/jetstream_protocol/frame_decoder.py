"""Decodes data-plane frames from a byte stream, without I/O; for both ends of a connection.

    room = decoder.room()              where to read the next bytes to …
        None: decoder.feed(data)       … anywhere: read some bytes, and pass them
        else: decoder.filled(count)    … into `room`: `count` bytes were received there
    while frame := decoder.next(): …

Frames are cut out of the bytes read. The tail of a long frame is received directly into its own
buffer, so that its batches are not copied before they are decoded or appended to the log.

Bounds. A prefix is checked before memory is held for its frame. The decoder holds bytes that were
fed and not yet taken, and at most one tail.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container
from typing import NamedTuple

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.frames import PREFIX_BYTES, TAILED, Prefix, decode_prefix

IN_PLACE_BYTES = 16 * 1024
"""A tail that still lacks more bytes than this is received into its own buffer. Copying fewer bytes
is cheaper than one more system call."""

# A bytearray that is not set to zero, because received bytes fill it from end to end.
_unset = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


class Frame(NamedTuple):
    """One frame. `tail` holds whole batches, back to back; b"": the frame carries none."""

    kind: int
    correlation: int
    head: bytes
    tail: bytes | bytearray


class FrameDecoder:
    """See the module. `next` raises InvalidRequestError for bytes that violate the protocol; the
    decoder cannot be used afterwards. is_empty: every received byte belongs to a frame that was
    taken."""

    __slots__ = (
        "_at", "_bytes_max", "_filled", "_head", "_held", "_prefix", "_tail", "is_empty", "wanted",
    )  # fmt: skip

    def __init__(self, frame_bytes_max: int) -> None:
        self.wanted: Container[int] | None = None
        """The frame kinds that are accepted; None: all."""
        self._bytes_max = frame_bytes_max
        self._held = b""
        self._at = 0  # what lies before it in `_held` has been taken
        self._prefix: Prefix | None = None  # of the frame that is being received
        self._head = b""
        self._tail: bytearray | None = None  # of the same, `_filled` so far
        self._filled = 0
        self.is_empty = True

    @property
    def missing(self) -> int:
        """How many bytes are missing from the tail being received; 0: no tail is."""
        return 0 if self._tail is None else len(self._tail) - self._filled

    @property
    def held(self) -> int:
        """How many bytes were fed and not taken yet."""
        return len(self._held) - self._at

    def room(self) -> memoryview | None:
        """The memory for the next bytes; None: pass them to `feed`."""
        if self._tail is None or self._filled == len(self._tail):
            return None
        return memoryview(self._tail)[self._filled :]

    def filled(self, count: int) -> None:
        """Note that `count` bytes were received into `room`."""
        self._filled += count

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Call it only while `room` returns None."""
        self._held = self._held[self._at :] + data if self._at < len(self._held) else data
        self._at = 0
        self.is_empty = self.is_empty and not data

    def next(self) -> Frame | None:
        """Take the next frame; None: it is not complete yet. Raises InvalidRequestError."""
        prefix = self._prefix
        if prefix is None:
            if len(self._held) - self._at < PREFIX_BYTES:
                return None
            prefix = self._prefix = self._begun()
        kind, correlation, head_length, tail_length = prefix
        if self._tail is not None:
            if self._filled < tail_length:
                return None
            frame = Frame(kind, correlation, self._head, self._tail)
            # What came after it may have been fed already.
            self._tail, self.is_empty = None, self._at == len(self._held)
        else:
            start = self._at
            middle = start + head_length
            lacking = middle + tail_length - len(self._held)
            if lacking > 0:
                if lacking > IN_PLACE_BYTES and lacking <= tail_length:
                    self._begin_tail(middle, tail_length)
                return None
            self._at = end = middle + tail_length
            tail = self._held[middle:end] if tail_length else b""
            self.is_empty = end == len(self._held)
            frame = Frame(kind, correlation, self._held[start:middle], tail)
        self._prefix = None
        return frame

    def _begun(self) -> Prefix:
        """Take the prefix of the next frame, and check it before more bytes of the frame are
        awaited."""
        prefix = decode_prefix(self._held, self._bytes_max, self._at)
        kind, _, _, tail_length = prefix
        self._at += PREFIX_BYTES
        if self.wanted is not None and kind not in self.wanted:
            raise InvalidRequestError(f"unexpected frame of kind {kind}")
        if tail_length and kind not in TAILED:
            raise InvalidRequestError(f"a frame of kind {kind} with a tail")
        return prefix

    def _begin_tail(self, middle: int, length: int) -> None:
        """Receive the rest of the tail in its own buffer. Its bytes so far begin at `middle`."""
        self._head = self._held[self._at : middle]
        self._filled = len(self._held) - middle
        self._tail = tail = _unset(None, length)
        tail[: self._filled] = memoryview(self._held)[middle:]
        self._held, self._at = b"", 0
