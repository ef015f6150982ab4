"""Reading backwards: newest first, without reading what lies before it.

A log is read forwards. So its end is read in windows, the last one first. After a window with few
wanted records the next one is larger; a window with too many bytes for memory is made smaller and
read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from jetstream_client.reading.messages import Chunk, Message, Messages

FIRST_OFFSETS = 1024
"""A first window: one answer of a server, also where messages are long."""
_GROWTH = 4
_SHRINK = 8


class Windows:
    """[start, stop) in pieces, the last one first. size: offsets in the first piece."""

    def __init__(self, start: int, stop: int, size: int = FIRST_OFFSETS) -> None:
        self._start = start
        self.size = size
        self.end = stop

    @property
    def window(self) -> tuple[int, int] | None:
        """The one to read now, [start, stop); None: all are read."""
        if self.end <= self._start:
            return None
        return max(self._start, self.end - self.size), self.end

    def was_read(self, *, grow: bool = True) -> None:
        """Go on with the one before it, which is larger if `grow`."""
        self.end = max(self._start, self.end - self.size)
        if grow:
            self.size *= _GROWTH

    def was_too_large(self) -> bool:
        """Make it smaller; False: it cannot be."""
        if self.size == 1:
            return False
        self.size = max(1, min(self.size, self.end - self._start) // _SHRINK)
        return True


ReadWindow: TypeAlias = Callable[[int, int], Awaitable[Messages | None]]
"""The wanted records of [start, stop); None: that would be too much at a time."""


async def last_of(windows: Windows, read: ReadWindow) -> Message | None:
    """The last record that is wanted."""
    while (window := windows.window) is not None:
        messages = await read(*window)
        if messages is None:
            windows.was_too_large()
            continue
        if len(messages):
            return messages[-1]
        windows.was_read()
    return None


async def newest_first(
    stream: str,
    windows: Windows,
    read: ReadWindow,
    *,
    count_max: int | None = None,
    bytes_max: int,
    bytes_min: int = 1,
) -> Messages:
    """The records that are wanted, newest first: at most `count_max`, and no further window once
    there are `bytes_min` bytes of them. bytes_max: beyond this `read` returns None.

    `next_offset` of what is returned is the end of what has not been read.
    """
    chunks: list[Chunk] = []
    count = size = log_start_offset = high_watermark = 0
    next_offset = windows.end
    while (window := windows.window) is not None:
        messages = await read(*window)
        if messages is None:
            windows.was_too_large()
            continue
        log_start_offset, high_watermark = messages.log_start_offset, messages.high_watermark
        count += len(messages)
        missed = 0 if count_max is None else max(0, count - count_max)
        came = _newest_first(messages, missed)
        chunks += came
        length = sum(map(_bytes_of, messages.chunks))
        size += length
        windows.was_read(grow=length * _GROWTH <= bytes_max)
        next_offset = windows.end
        if count_max is not None and count >= count_max:
            next_offset = chunks[-1].offsets()[-1]
            break
        if size >= bytes_min:
            break
    return Messages(
        stream,
        chunks,
        next_offset=next_offset,
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
    )


def _newest_first(messages: Messages, missed: int) -> list[Chunk]:
    """Without the `missed` oldest records."""
    turned = []
    for chunk in messages.chunks:
        if missed < len(chunk):
            turned.append(chunk.newest_first(missed))
        missed = max(0, missed - len(chunk))
    return turned[::-1]


def _bytes_of(chunk: Chunk) -> int:
    header = chunk.batch.header
    return max(header.length, header.uncompressed_length)
