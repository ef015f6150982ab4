"""The streams a campaign has, and what is published to them.

Every value says which stream and which number it is, and the rest of it follows from both: so any
byte of any record can be checked, whether it was acknowledged or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetstream_protocol.generated import api_pb2 as pb

SEGMENT_BYTES = 64 * 1024
"""The least there may be: many files."""
KEYS = 60
FILLER = bytes(range(97, 123)) * 40
LEAST_BYTES, MORE_BYTES = 200, 700
WINDOW_SECONDS = 3600
"""Message ids are remembered for longer than a campaign keeps its cluster."""


@dataclass(frozen=True, slots=True)
class Stream:
    """max_bytes: of its retention, 0 for none."""

    name: str
    flush: str = "interval"
    compacted: bool = False
    max_bytes: int = 0

    def config(self, replicas: int) -> dict[str, Any]:
        return {
            "replicas": replicas,
            "flush": pb.FLUSH_GROUP if self.flush == "group" else pb.FLUSH_INTERVAL,
            "compact": self.compacted,
            "max_bytes": self.max_bytes,
            "segment_bytes": SEGMENT_BYTES,
            "duplicate_window_us": WINDOW_SECONDS * 1_000_000,
        }

    def key(self, number: int) -> bytes | None:
        return b"k%d" % (number * number % KEYS) if self.compacted else None

    def value(self, number: int) -> bytes:
        start = number % 26
        length = LEAST_BYTES + number * 7919 % MORE_BYTES
        return b"%s:%d:%b" % (self.name.encode(), number, FILLER[start : start + length])

    def number(self, value: bytes | None) -> int:
        """-1 for a value that was never published here."""
        parts = (value or b"").split(b":", 2)
        if len(parts) != 3 or not parts[1].isdigit():
            return -1
        number = int(parts[1])
        return number if value == self.value(number) else -1


STREAMS = (
    Stream("plain"),
    Stream("grouped", flush="group"),
    Stream("compacted", compacted=True),
    Stream("limited", max_bytes=5 * SEGMENT_BYTES),
)
