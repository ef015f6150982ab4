"""How much a node unpacks of batches that are packed more closely than data usually is.

Seven hundred bytes may unpack to 16 MiB, which takes some ten milliseconds of the event loop.
Without a limit, a publisher that sends twenty kilobytes a second to its own stream would keep
the whole node from its work. So what a batch unpacks to beyond USUAL_RATIO times its length has a
limit per second: for each stream, so that one leaves the others theirs, and for all of them.
"""

from __future__ import annotations

from typing import Final

from jetstream_protocol.types import MonotonicUs

USUAL_RATIO: Final = 64
"""Batches that are packed less closely have no limit."""
STREAM_BYTES_PER_SECOND: Final = 32 * 1024 * 1024
NODE_BYTES_PER_SECOND: Final = 4 * STREAM_BYTES_PER_SECOND
BURST_SECONDS: Final = 2


class Unpacking:
    """What may be unpacked at once: it refills as time goes by."""

    __slots__ = ("_at_us", "_most", "_per_second", "_room")

    def __init__(self, bytes_per_second: int) -> None:
        self._per_second = bytes_per_second
        self._room = self._most = float(BURST_SECONDS * bytes_per_second)
        self._at_us: MonotonicUs | None = None

    def has_room(self, length: int, now_us: MonotonicUs) -> bool:
        elapsed_us = 0 if self._at_us is None else max(0, now_us - self._at_us)
        self._at_us = now_us
        self._room = min(self._most, self._room + self._per_second * elapsed_us / 1e6)
        return length <= self._room

    def take(self, length: int) -> None:
        self._room -= length


def unusual_bytes(unpacked: int, length: int) -> int:
    """How much of what a batch of that length unpacks to counts."""
    return max(0, unpacked - USUAL_RATIO * length)
